package computetest

import (
	"errors"
	"fmt"
	"math"

	"grebe/compute"
)

// errNoInt8 skips the cases of a device that does not compute in INT8.
var errNoInt8 = errors.New("the device is no compute.Quantiser")

func quantiser(d compute.Device) bool {
	if s, ok := d.(*scope); ok {
		d = s.Device // which has what is optional
	}
	q, ok := d.(compute.Quantiser)
	return ok && q.Quantises()
}

// int8Checks hold a Quantiser to the bits of its products, and to ref in operations and layers.
func int8Checks(opts Options) []check {
	out := []check{{"int8/product", int8Product}, {"int8/pack refuses", int8Refuses}}
	add := func(name string, c config, run func(d compute.Device) error) {
		s := &c.shape
		name = fmt.Sprintf("int8/%s/seed%d/%d,%d×%d×%d,%d,%v", name, c.seed, s.Hidden, s.Heads, s.KVHeads,
			s.HeadDim, s.Inter, c.src)
		out = append(out, check{name, run})
	}
	norm := within(varNorm())
	for i, rows := range []int{1, 17, 33, 130} {
		g := geometries[i%4]
		c := config{seed: uint64(5000 + i), shape: g.shape(1, compute.F32), dt: compute.INT8, src: sources[i%3],
			bare: i%3 == 1, headed: i%2 == 1, sharp: 1}
		x := within(varFFN(compute.INT8))
		plans := func() []plan { return []plan{newRandom(c.seed).causal(3, rows)} }
		add("qkv", c, func(d compute.Device) error {
			return agree(d, c, steps{qkv: true}, limits{exact, norm, norm.rounded(compute.INT8), limitKV(c)},
				plans()...)
		})
		add("ffn", c, func(d compute.Device) error {
			return agree(d, c, steps{ffn: true}, limits{x, x, x.rounded(compute.INT8), exact}, plans()...)
		})
	}
	for i := range 4 {
		c := config{seed: uint64(5100 + i), shape: geometries[i].shape(1+i%2, compute.F32), dt: compute.INT8,
			src: sources[i%3], headed: i%2 == 0, sharp: 1}
		// Differences grow from product to product, up to the noise of the rounding itself: a step, 1/36 of
		// the RMS, over √12.
		x := within(4 * float64(c.shape.Layers) / (36 * 36 * 12))
		add("layers", c, func(d compute.Device) error {
			r := newRandom(c.seed)
			return agree(d, c, wholeLayers, limits{x, x, x, x}, r.mixed(&c.shape, int32(r.IntN(3000)))...)
		})
	}
	c := config{seed: 5200, shape: geometry{75, 7, 7, 16, 70}.shape(2, compute.BF16), dt: compute.INT8,
		src: compute.F32, sharp: 2}
	if opts.SameBits {
		add("same bits", c, func(d compute.Device) error { return sameBits(d, c) })
	}
	if opts.NoAlloc {
		add("no allocation", c, func(d compute.Device) error { return allocatesNothing(d, c) })
	}
	for i, c := range out {
		out[i].run = func(d compute.Device) error {
			if !quantiser(d) {
				return errNoInt8
			}
			return c.run(d)
		}
	}
	return out
}

// int8Values is the definition: the scale of values and what they are in it.
func int8Values(values []float32) (scale float32, q []int64) {
	largest, q := 0.0, make([]int64, len(values))
	for _, v := range values {
		largest = max(largest, math.Abs(float64(v)))
	}
	if largest == 0 {
		return 0, q
	}
	inverse := 127 / float32(largest)
	for i, v := range values {
		q[i] = int64(math.RoundToEven(float64(float32(v * inverse))))
	}
	return float32(largest) / 127, q
}

// int8Product: on the same input a product has the bits of the definition, from every format of weights.
func int8Product(d compute.Device) error {
	for i, g := range geometries {
		r, s := newRandom(uint64(i)), g.shape(1, compute.F32)
		n, rows := 1+r.IntN(100), rowCounts[i]
		embed := r.tensor(compute.F32, rows, s.Hidden, 0, 1)
		given := compute.Tensor{DType: compute.INT8, Rows: n, Cols: s.Hidden}
		for range n {
			given.Scales = append(given.Scales, 0.01+r.Float32())
			for range s.Hidden {
				given.Data = append(given.Data, byte(r.IntN(256)))
			}
		}
		parts := []compute.Tensor{given, r.tensor(compute.F32, 3, s.Hidden, 0, 1), r.tensor(compute.BF16, 2,
			s.Hidden, 0, 5)}
		got, width, err := int8Project(d, s, embed, parts)
		if err != nil {
			return err
		}
		scales, weights := int8Weights(parts)
		for row := range rows {
			x := make([]float32, s.Hidden)
			for k := range x {
				x[k] = value(compute.F32, embed.Data, row*s.Hidden+k)
			}
			scale, q := int8Values(x)
			for j := range width {
				sum := int64(0)
				for k, v := range q {
					sum += v * weights[j][k]
				}
				if want := float32(float32(float32(sum)*scales[j]) * scale); got[row*width+j] != want {
					return fmt.Errorf("%d rows × %d, depth %d: row %d column %d is %v, want %v", rows, width,
						s.Hidden, row, j, got[row*width+j], want)
				}
			}
		}
	}
	return nil
}

// int8Weights returns scale and integers of each row of parts.
func int8Weights(parts []compute.Tensor) (scales []float32, weights [][]int64) {
	for _, t := range parts {
		for row := range t.Rows {
			if t.DType == compute.INT8 {
				q := make([]int64, t.Cols)
				for k := range q {
					q[k] = int64(int8(t.Data[row*t.Cols+k]))
				}
				scales, weights = append(scales, t.Scales[row]), append(weights, q)
				continue
			}
			v := make([]float32, t.Cols)
			for k := range v {
				v[k] = value(t.DType, t.Data, row*t.Cols+k)
			}
			scale, q := int8Values(v)
			scales, weights = append(scales, scale), append(weights, q)
		}
	}
	return scales, weights
}

// int8Project multiplies the rows of embed, as they are, by parts.
func int8Project(d compute.Device, s compute.Shape, embed compute.Tensor, parts []compute.Tensor) (out []float32,
	width int, err error) {
	table, err1 := d.Table(embed)
	w, err2 := d.Linear(compute.INT8, parts...)
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

func int8Refuses(d compute.Device) error {
	good := compute.Tensor{DType: compute.INT8, Rows: 2, Cols: 4, Data: make([]byte, 8), Scales: []float32{1, 1}}
	bare, cut := good, good
	bare.Scales, cut.Data = bare.Scales[:1], cut.Data[:7]
	for name, try := range map[string]func() error{
		"a scale short":      func() error { _, err := d.Linear(compute.INT8, bare); return err },
		"cut data":           func() error { _, err := d.Linear(compute.INT8, cut); return err },
		"GateUp of cut data": func() error { _, err := d.GateUp(compute.INT8, good, cut); return err },
		"integers as bf16":   func() error { _, err := d.Linear(compute.BF16, good); return err },
		"a vector of int8": func() error {
			_, err := d.Vector(compute.Tensor{DType: compute.INT8, Rows: 1, Cols: 4, Data: make([]byte, 4),
				Scales: []float32{1}})
			return err
		},
		"a table of integers": func() error { _, err := d.Table(good); return err },
	} {
		if try() == nil {
			return fmt.Errorf("%s: no error", name)
		}
	}
	return nil
}
