package profile

import (
	"errors"
	"math"
	"math/bits"
	"slices"

	"grebe/bench/report"
	"grebe/schedule"
	"grebe/sim"
)

// tileSizes are the rows of a tile that are tried. The last one tells nothing more of segments than the number of them.
var tileSizes = []int{1, 2, 4, 8, 16, 32, 64}

// fit fits the profile's models: what nodes decide with, and what batches take. A second one is fitted to half of the
// samples.
func (r *Report) fit() error {
	var all []schedule.Sample
	var half []Sample
	for i := range r.Samples {
		x := &r.Samples[i]
		all = append(all, schedule.Sample{Rows: x.Rows, Keys: x.Keys, Requests: x.Requests, Ms: x.Ms})
		if i%2 == 0 {
			half = append(half, *x)
		}
	}
	var err error
	if r.Profile.Prefill, err = schedule.Fit(all); err != nil {
		return err
	}
	b, err := fitBatches(r.Samples, r.sizes)
	if err != nil {
		return err
	}
	part, err := fitBatches(half, r.sizes)
	if err != nil {
		return err
	}
	r.Profile.Batches = b
	var errs, left, spreads []float64
	for i := range r.Samples {
		x := &r.Samples[i]
		x.Tiled = x.ByTile[slices.Index(tileSizes, b.Tile)]
		x.Predicted = b.Predict(&x.Work)
		errs = append(errs, math.Abs(x.Predicted-x.Ms)/x.Ms)
		spreads = append(spreads, x.Spread)
		if i%2 == 1 {
			w := x.Work
			w.Tiled = x.ByTile[slices.Index(tileSizes, part.Tile)]
			left = append(left, math.Abs(part.Predict(&w)-x.Ms)/x.Ms)
		}
	}
	slices.Sort(errs)
	r.Error = Error{Median: report.Median(errs), P90: errs[len(errs)*9/10], Max: errs[len(errs)-1],
		LeftOut: report.Median(left)}
	r.Profile.Noise = round(report.Median(spreads), 3)
	return nil
}

// fitBatches finds the coefficients, none below 0, and the tile with the least sum of squared relative errors. Sizes
// are those that the device's products are tuned for, if that is not every one.
func fitBatches(samples []Sample, sizes []int) (best *sim.Batches, err error) {
	products := sim.Batches{}
	products.Multiple, products.Sizes = steps(sizes)
	least := math.Inf(1)
	for k, tile := range tileSizes {
		var sums moments
		for i := range samples {
			x := &samples[i]
			rows, spare, large := products.Products(x.Rows)
			sums.add(vector{1, float64(x.Requests), float64(x.Segments), float64(rows), one(large), float64(spare),
				float64(x.ByTile[k]),
				float64(x.Cached)}, x.Ms, x.Ms)
		}
		c, off := sums.solve()
		if off < least {
			least = off
			b := products
			b.Fixed, b.Request, b.Segment, b.Row, b.Large, b.Spare, b.Tile, b.Tiled, b.Cached = c[0], c[1], c[2], c[3], c[4],
				c[5], tile, c[6], c[7]
			best = &b
		}
	}
	if best == nil || best.Row+best.Tiled == 0 {
		return nil, errors.New("the time of batches does not grow with rows or keys")
	}
	return best, nil
}

// one returns 1 if it is so.
func one(so bool) float64 {
	if so {
		return 1
	}
	return 0
}

// steps returns the step between sizes, where two are the same, and the sizes from the end of these steps on.
func steps(sizes []int) (multiple int, larger []int) {
	for i := 2; i < len(sizes); i++ {
		step := sizes[i] - sizes[i-1]
		switch {
		case multiple == 0 && step == sizes[i-1]-sizes[i-2]:
			multiple = step
		case multiple > 0 && step > multiple:
			return multiple, sizes[i-1:]
		}
	}
	return multiple, nil
}

const features = 8

type vector [features]float64

// moments are the sums that a fit of relative errors needs.
type moments struct {
	squares float64
	product [features]vector
	sum     vector
}

// add adds a batch. Errors are relative to base: a value that does not depend on the noise of ms, if that is large.
func (m *moments) add(x vector, ms, base float64) {
	m.squares += ms / base * ms / base
	for i := range x {
		m.sum[i] += x[i] / base * ms / base
		for j := range x {
			m.product[i][j] += x[i] / base * x[j] / base
		}
	}
}

// solve returns the coefficients of at least 0 with the least sum of squared relative errors, and that sum. It tries
// all sets of features.
func (m *moments) solve() (best vector, least float64) {
	least = m.squares
	for set := uint(1); set < 1<<features; set++ {
		c, ok := m.solveFor(set)
		if !ok || slices.Min(c[:]) < 0 {
			continue
		}
		off := m.squares
		for i := range c {
			off -= 2 * c[i] * m.sum[i]
			for j := range c {
				off += c[i] * c[j] * m.product[i][j]
			}
		}
		if off < least {
			best, least = c, off
		}
	}
	return best, least
}

// solveFor solves the equations of a set of features, the others being 0, by elimination.
func (m *moments) solveFor(set uint) (c vector, ok bool) {
	var rows [features][features + 1]float64
	var of []int
	for s := set; s != 0; s &= s - 1 {
		of = append(of, bits.TrailingZeros(s))
	}
	for r, i := range of {
		unit := math.Sqrt(m.product[i][i])
		if unit == 0 {
			return c, false
		}
		for k, j := range of {
			rows[r][k] = m.product[i][j] / unit / math.Sqrt(m.product[j][j])
		}
		rows[r][features] = m.sum[i] / unit
	}
	for k := range of {
		pivot := k
		for r := k + 1; r < len(of); r++ {
			if math.Abs(rows[r][k]) > math.Abs(rows[pivot][k]) {
				pivot = r
			}
		}
		rows[k], rows[pivot] = rows[pivot], rows[k]
		if math.Abs(rows[k][k]) < 1e-9 {
			return c, false
		}
		for r := range of {
			if r == k {
				continue
			}
			by := rows[r][k] / rows[k][k]
			for i := range rows[r] {
				rows[r][i] -= by * rows[k][i]
			}
		}
	}
	for k, i := range of {
		c[i] = rows[k][features] / rows[k][k] / math.Sqrt(m.product[i][i])
	}
	return c, true
}
