package computetest

import (
	"errors"
	"fmt"
	"math"

	"grebe/compute"
	"grebe/compute/internal/fp8"
)

// errNoEight skips the cases of formats that a device does not compute in.
var errNoEight = errors.New("the device does not compute in it")

func quantises(d compute.Device, dt compute.DType) bool {
	if s, ok := d.(*scope); ok {
		d = s.Device // which has what is optional
	}
	q, ok := d.(compute.Quantiser)
	return ok && q.Quantises(dt)
}

// eightChecks hold a Quantiser to the bits of its integer products, to the sums of those in FP8, and to ref in
// operations and layers.
func eightChecks(dt compute.DType, opts Options) []check {
	group := fmt.Sprintf("%v products", dt)
	out := []check{
		{group + "/product", func(d compute.Device) error { return eightProduct(d, dt) }},
		{group + "/pack refuses", func(d compute.Device) error { return eightRefuses(d, dt) }},
	}
	add := func(name string, c config, run func(d compute.Device) error) {
		s := &c.shape
		name = fmt.Sprintf("%s/%s/seed%d/%d,%d×%d×%d,%d,%v", group, name, c.seed, s.Hidden, s.Heads, s.KVHeads,
			s.HeadDim, s.Inter, c.src)
		out = append(out, check{name, run})
	}
	norm, seed := within(varNorm()), uint64(5000)
	// Differences grow from product to product, up to the noise of the rounding itself: of integers a step, 1/36 of
	// the RMS, over √12.
	rounding := 1.0 / (36 * 36 * 12)
	if dt == compute.FP8 {
		seed, rounding = 6000, noiseFP8*noiseFP8
	}
	for i, rows := range []int{1, 17, 33, 130} {
		g := geometries[i%4]
		c := config{seed: seed + uint64(i), shape: g.shape(1, compute.F32), dt: dt, src: sources[i%3],
			bare: i%3 == 1, headed: i%2 == 1, sharp: 1}
		x := within(varFFN(dt))
		plans := func() []plan { return []plan{newRandom(c.seed).causal(3, rows)} }
		add("qkv", c, func(d compute.Device) error {
			return agree(d, c, steps{qkv: true}, limits{exact, norm, norm.rounded(dt), limitKV(c)}, plans()...)
		})
		add("ffn", c, func(d compute.Device) error {
			return agree(d, c, steps{ffn: true}, limits{x, x, x.rounded(dt), exact}, plans()...)
		})
	}
	for i := range 8 {
		c := config{seed: seed + 100 + uint64(i), shape: geometries[i].shape(1+i%2, compute.F32), dt: dt,
			src: sources[i%3], headed: i%2 == 0, bare: i >= 4, sharp: 1}
		if dt == compute.INT8 && i >= 4 {
			break
		}
		if i%4 == 3 {
			c.shape.KV = compute.BF16
		}
		x := within(4 * float64(c.shape.Layers) * rounding)
		add("layers", c, func(d compute.Device) error {
			r := newRandom(c.seed)
			return agree(d, c, wholeLayers, limits{x, x, x, x}, r.mixed(&c.shape, int32(r.IntN(3000)))...)
		})
	}
	c := config{seed: seed + 200, shape: geometry{75, 7, 7, 16, 70}.shape(2, compute.BF16), dt: dt,
		src: compute.F32, sharp: 2}
	if opts.SameBits {
		add("same bits", c, func(d compute.Device) error { return sameBits(d, c) })
	}
	if opts.NoAlloc {
		add("no allocation", c, func(d compute.Device) error { return allocatesNothing(d, c) })
	}
	for i, c := range out {
		out[i].run = func(d compute.Device) error {
			if !quantises(d, dt) {
				return errNoEight
			}
			return c.run(d)
		}
	}
	return out
}

// largest8 is what the largest magnitude of a row becomes.
func largest8(dt compute.DType) float32 {
	if dt == compute.FP8 {
		return fp8.Largest
	}
	return 127
}

// eightValues is the definition: the scale of values and what they are in it.
func eightValues(dt compute.DType, values []float32) (scale float32, q []float64) {
	largest, most, q := 0.0, largest8(dt), make([]float64, len(values))
	for _, v := range values {
		largest = max(largest, math.Abs(float64(v)))
	}
	if largest == 0 {
		return 0, q
	}
	inverse := most / float32(largest)
	for i, v := range values {
		if w := float32(v * inverse); dt == compute.FP8 {
			q[i] = float64(fp8.Decode(fp8.Encode(w)))
		} else {
			q[i] = math.RoundToEven(float64(w))
		}
	}
	return float32(largest) / most, q
}

// sumsFP8 is how far products of FP8 on the same input may be off: their sums may have fewer bits than float32.
var sumsFP8 = limit{rms: 1e-2, max: 5e-2}

// eightProduct: on the same input a product has the bits of the definition, or its sums, from every format of weights.
func eightProduct(d compute.Device, dt compute.DType) error {
	for i, g := range geometries {
		r, s := newRandom(uint64(i)), g.shape(1, compute.F32)
		n, rows := 1+r.IntN(100), rowCounts[i]
		embed := r.tensor(compute.F32, rows, s.Hidden, 0, 1)
		parts := []compute.Tensor{r.eightTensor(dt, n, s.Hidden), r.tensor(compute.F32, 3, s.Hidden, 0, 1),
			r.tensor(compute.BF16, 2, s.Hidden, 0, 5)}
		if i%3 == 0 {
			parts = parts[:1] // as it is stored
		}
		got, width, err := eightProject(d, dt, s, embed, parts)
		if err != nil {
			return err
		}
		want := make([]float32, len(got))
		scales, weights := eightWeights(dt, parts)
		for row := range rows {
			x := make([]float32, s.Hidden)
			for k := range x {
				x[k] = value(compute.F32, embed.Data, row*s.Hidden+k)
			}
			scale, q := eightValues(dt, x)
			for j := range width {
				sum := 0.0 // exact, of integers
				for k, v := range q {
					sum += v * weights[j][k]
				}
				want[row*width+j] = float32(float32(float32(sum)*scales[j]) * scale)
			}
		}
		l := exact
		if dt == compute.FP8 {
			l = sumsFP8
		}
		if err := l.compare(got, want, width, func(i int) string { return fmt.Sprintf("row %d", i) }); err != nil {
			return fmt.Errorf("%d rows × %d, depth %d: %w", rows, width, s.Hidden, err)
		}
	}
	return nil
}

// eightTensor is a matrix that is stored in dt.
func (r random) eightTensor(dt compute.DType, rows, cols int) compute.Tensor {
	t := compute.Tensor{DType: dt, Rows: rows, Cols: cols}
	for range rows {
		t.Scales = append(t.Scales, 0.01+r.Float32())
		for range cols {
			b := byte(r.IntN(256))
			if dt == compute.FP8 && b&127 == 127 {
				b-- // no number
			}
			t.Data = append(t.Data, b)
		}
	}
	return t
}

// eightWeights returns scale and numbers of each row of parts.
func eightWeights(dt compute.DType, parts []compute.Tensor) (scales []float32, weights [][]float64) {
	for _, t := range parts {
		for row := range t.Rows {
			if t.DType == dt {
				q := make([]float64, t.Cols)
				for k := range q {
					if b := t.Data[row*t.Cols+k]; dt == compute.FP8 {
						q[k] = float64(fp8.Decode(b))
					} else {
						q[k] = float64(int8(b))
					}
				}
				scales, weights = append(scales, t.Scales[row]), append(weights, q)
				continue
			}
			v := make([]float32, t.Cols)
			for k := range v {
				v[k] = value(t.DType, t.Data, row*t.Cols+k)
			}
			scale, q := eightValues(dt, v)
			scales, weights = append(scales, scale), append(weights, q)
		}
	}
	return scales, weights
}

// eightProject multiplies the rows of embed, as they are, by parts.
func eightProject(d compute.Device, dt compute.DType, s compute.Shape, embed compute.Tensor,
	parts []compute.Tensor) (out []float32, width int, err error) {
	table, err1 := d.Table(embed)
	w, err2 := d.Linear(dt, parts...)
	if err := errors.Join(err1, err2); err != nil {
		return nil, 0, err
	}
	r, err := d.Open(s, embed.Rows)
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	b := newBatch(d.Memory(), &s, newRandom(1).causal(0, embed.Rows))
	rows := make([]int32, embed.Rows)
	for i := range rows {
		rows[i], b.Tokens[i] = int32(i), int32(i)
	}
	if err := b.begin(r); err != nil {
		return nil, 0, err
	}
	r.Embed(table)
	out = make([]float32, len(rows)*w.Out())
	return out, w.Out(), r.Project(nil, w, rows, out)
}

func eightRefuses(d compute.Device, dt compute.DType) error {
	good := compute.Tensor{DType: dt, Rows: 2, Cols: 4, Data: make([]byte, 8), Scales: []float32{1, 1}}
	bare, cut := good, good
	bare.Scales, cut.Data = bare.Scales[:1], cut.Data[:7]
	for name, try := range map[string]func() error{
		"a scale short":      func() error { _, err := d.Linear(dt, bare); return err },
		"cut data":           func() error { _, err := d.Linear(dt, cut); return err },
		"GateUp of cut data": func() error { _, err := d.GateUp(dt, good, cut); return err },
		"as bf16":            func() error { _, err := d.Linear(compute.BF16, good); return err },
		"a vector": func() error {
			_, err := d.Vector(compute.Tensor{DType: dt, Rows: 1, Cols: 4, Data: make([]byte, 4),
				Scales: []float32{1}})
			return err
		},
		"a table": func() error { _, err := d.Table(good); return err },
	} {
		if try() == nil {
			return fmt.Errorf("%s: no error", name)
		}
	}
	return nil
}
