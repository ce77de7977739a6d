package computetest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
)

var errNoRetriever = errors.New("this device is no compute.Retriever")

// retrieveCase is random vectors and queries.
type retrieveCase struct {
	items, width, queries int
	k                     int // up to so many items for each query
	values                int // of whole numbers, so that sums are exact; 0: of any numbers
	sorted                bool
	allowed               int // one in so many items; 0: all
	without               int // one in so many items; 0: none
	none                  bool
	broken                bool
	after                 bool
}

func retrieveCases() []retrieveCase {
	return []retrieveCase{
		{items: 1, width: 1, queries: 1, k: 1, values: 5},
		{items: 31, width: 3, queries: 2, k: 100, values: 5},
		{items: 5000, width: 64, queries: 3, k: 1024, values: 17},
		{items: 20000, width: 24, queries: 64, k: 1000, values: 17},
		{items: 20000, width: 65, queries: 33, k: 100, values: 2},
		{items: 100000, width: 16, queries: 3, k: 1000, values: 3, without: 7},
		{items: 120000, width: 8, queries: 2, k: 100, sorted: true},
		{items: 120000, width: 8, queries: 4, k: 1024, sorted: true, allowed: 100},
		{items: 40000, width: 24, queries: 2, k: 500, values: 1},
		{items: 40000, width: 24, queries: 2, k: 500, values: 9, none: true},
		{items: 40000, width: 40, queries: 3, k: 300, values: 9, broken: true, without: 3},
		{items: 40000, width: 40, queries: 3, k: 300, values: 9, after: true, allowed: 2},
		{items: 20000, width: 200, queries: 2, k: 100},
		{items: 300, width: 1000, queries: 64, k: 50, values: 9},
	}
}

func retrieveChecks() []check {
	var out []check
	for i, c := range retrieveCases() {
		out = append(out, check{fmt.Sprint("retrieve ", i), func(d compute.Device) error { return c.on(d, uint64(i)) }})
	}
	return append(out, check{"misuse/retrieve", retrieveMisuse})
}

// vectorsOf gives two devices the same vectors.
func vectorsOf(d compute.Device, items, width int, data []float32) (fast, want compute.Vectors, err error) {
	s, ok := under(d).(compute.Retriever)
	if !ok {
		return nil, nil, errNoRetriever
	}
	read := func(first int, to []float32) error {
		copy(to, data[first*width:])
		return nil
	}
	if fast, err = s.Vectors(items, width, read); err != nil {
		return nil, nil, err
	}
	want, err = ref.Retrieving(nil).(compute.Retriever).Vectors(items, width, read)
	return fast, want, err
}

// under returns the device below the suite's own.
func under(d compute.Device) compute.Device {
	if s, ok := d.(*scope); ok {
		return s.Device
	}
	return d
}

func (c retrieveCase) on(d compute.Device, seed uint64) error {
	r := rand.New(rand.NewPCG(7100, seed))
	data := make([]float32, c.items*c.width)
	for i := range data {
		data[i] = c.value(r)
		if c.sorted { // whole numbers below 2¹⁶ in two parts, the larger ones in the end
			data[i] = [2]float32{float32(i / c.width % 256), float32(i / c.width / 256)}[i%2] * float32(1-min(1, i%c.width/2))
		}
		if c.broken && r.IntN(9000) == 0 {
			data[i] = [3]float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))}[r.IntN(3)]
		}
	}
	fast, want, err := vectorsOf(d, c.items, c.width, data)
	if err != nil {
		return err
	}
	if fast.Bytes() < 2*int64(len(data)) {
		return fmt.Errorf("%d bytes for %d values", fast.Bytes(), len(data))
	}
	for range 2 { // the second search finds what the first one left behind
		got, expected := c.draw(r), []compute.Query(nil)
		expected = append(expected, got...)
		if err := errors.Join(fast.Best(got), want.Best(expected)); err != nil {
			return err
		}
		for i := range got {
			if err := c.compare(&got[i], &expected[i]); err != nil {
				return fmt.Errorf("%+v, query %d of %d, the best %d: %w", c, i, len(got), got[i].K, err)
			}
		}
		alone := []compute.Query{got[len(got)/2]}
		if err := fast.Best(alone); err != nil {
			return err
		}
		if !slices.Equal(alone[0].Hits, got[len(got)/2].Hits) {
			return fmt.Errorf("%+v: query %d finds other items alone", c, len(got)/2)
		}
	}
	return nil
}

func (c retrieveCase) value(r *rand.Rand) float32 {
	if c.values > 0 {
		return float32(r.IntN(c.values) - c.values/2)
	}
	return float32(r.NormFloat64())
}

func (c retrieveCase) draw(r *rand.Rand) []compute.Query {
	out := make([]compute.Query, c.queries)
	for i := range out {
		q := &out[i]
		q.K = max(1, c.k-r.IntN(1+c.k/2)*(i%2))
		for d := range c.width {
			v := c.value(r)
			if c.sorted {
				v = [2]float32{1, 256}[d%2]
			}
			q.Vector = append(q.Vector, v)
		}
		if c.allowed > 0 && i%3 != 2 || c.none {
			q.Allowed = make([]uint32, (c.items+31)/32)
			for item := range c.items {
				if !c.none && r.IntN(c.allowed) == 0 {
					q.Allowed[item/32] |= 1 << (item % 32)
				}
			}
		}
		for item := range c.items {
			if c.without > 0 && r.IntN(c.without) == 0 {
				q.Without = append(q.Without, int32(item))
			}
		}
		if c.after {
			q.After = &compute.Hit{Item: r.Int32N(int32(c.items)), Score: float32(r.IntN(100) - 20)}
		}
	}
	return out
}

// compare checks what was found against what sorting yields. Sums that are not exact may differ in the last bits, and
// then so may the order: what was found is sorted by its own scores, which are near those expected at each place.
func (c retrieveCase) compare(got, want *compute.Query) error {
	if got.Broken != want.Broken || len(got.Hits) != len(want.Hits) {
		return fmt.Errorf("%d items and %d broken ones, want %d and %d",
			len(got.Hits), got.Broken, len(want.Hits), want.Broken)
	}
	for i, h := range got.Hits {
		if i > 0 && !got.Hits[i-1].Before(h) {
			return fmt.Errorf("place %d: %v behind %v", i, h, got.Hits[i-1])
		}
		if w := want.Hits[i]; c.values > 0 || c.sorted {
			if h != w {
				return fmt.Errorf("place %d: %v, want %v", i, h, w)
			}
		} else if diff := math.Abs(float64(h.Score - w.Score)); !(diff <= 1e-4*sqrt(c.width)) {
			return fmt.Errorf("place %d: %v, want the score %v, off by %v", i, h, w.Score, diff)
		}
	}
	return nil
}

// retrieveMisuse: what makes no sense is an error, and the next search is right.
func retrieveMisuse(d compute.Device) error {
	data := []float32{1, 2, 3, 4, 5, 6}
	fast, _, err := vectorsOf(d, 3, 2, data)
	if err != nil {
		return err
	}
	good := compute.Query{Vector: []float32{1, 0}, K: 2}
	nan := float32(math.NaN())
	for name, qs := range map[string][]compute.Query{
		"no query":       {},
		"too many":       make([]compute.Query, compute.MaxQueries+1),
		"a short vector": {good, {Vector: []float32{1}, K: 1}},
		"NaN":            {good, {Vector: []float32{1, nan}, K: 1}},
		"infinite":       {{Vector: []float32{1, float32(math.Inf(1))}, K: 1}},
		"none wanted":    {{Vector: []float32{1, 0}}},
		"too many items": {{Vector: []float32{1, 0}, K: compute.MaxHits + 1}},
		"few bits":       {{Vector: []float32{1, 0}, K: 1, Allowed: []uint32{}}},
		"no order":       {{Vector: []float32{1, 0}, K: 1, Without: []int32{2, 1}}},
		"behind NaN":     {{Vector: []float32{1, 0}, K: 1, After: &compute.Hit{Score: nan}}},
	} {
		if fast.Best(qs) == nil {
			return fmt.Errorf("%s: no error", name)
		}
	}
	failed := errors.New("unreadable")
	_, err = under(d).(compute.Retriever).Vectors(3, 2, func(int, []float32) error { return failed })
	if !errors.Is(err, failed) {
		return fmt.Errorf("vectors that cannot be read: %v", err)
	}
	qs := []compute.Query{good}
	if err := fast.Best(qs); err != nil {
		return err
	}
	if want := []compute.Hit{{Item: 2, Score: 5}, {Item: 1, Score: 3}}; !slices.Equal(qs[0].Hits, want) {
		return fmt.Errorf("found %v, want %v", qs[0].Hits, want)
	}
	return nil
}

// Retrieval checks a device that is a compute.Retriever by itself, for one that runs no models.
func Retrieval(t *testing.T, d compute.Device) {
	for _, c := range retrieveChecks() {
		t.Run(c.name, func(t *testing.T) {
			if err := c.run(d); err != nil {
				t.Error(err)
			}
		})
	}
}
