package computetest

import (
	"errors"
	"fmt"
	"math"

	"grebe/compute"
)

// formats are the formats of products and of K and V.
var formats = []struct{ dt, kv compute.DType }{
	{compute.F32, compute.F32}, {compute.F32, compute.BF16}, {compute.BF16, compute.BF16}, {compute.BF16, compute.F32},
}

// sources are the formats of checkpoints.
var sources = []compute.DType{compute.F32, compute.F16, compute.BF16}

// geometry is a shape without formats.
type geometry struct{ hidden, heads, kvHeads, headDim, inter int }

// geometries has the head dimensions of models that exist, group sizes 1 to 8, seven KV heads, and
// widths that are no multiple of any vector's length.
var geometries = []geometry{
	{256, 4, 2, 64, 384},
	{256, 2, 1, 128, 172},
	{240, 3, 3, 80, 200},
	{112, 7, 7, 16, 50},
	{72, 8, 1, 16, 37},
	{100, 14, 2, 64, 90},
	{33, 10, 2, 8, 31},
	{64, 8, 8, 8, 172},
	{130, 12, 3, 16, 65},
	{17, 3, 1, 6, 5},
	{48, 6, 1, 16, 7},
	{24, 5, 1, 6, 1},
}

func (g geometry) shape(layers int, kv compute.DType) compute.Shape {
	return shape(layers, g.hidden, g.heads, g.kvHeads, g.headDim, g.inter, kv)
}

// randomGeometry draws sizes without any regularity.
func (r random) randomGeometry() geometry {
	headDim := []int{6, 8, 16, 64, 80, 128}[r.IntN(6)]
	kvHeads := []int{1, 2, 3, 7}[r.IntN(4)]
	group := 1 + r.IntN(8)
	for group > 1 && group*kvHeads*headDim > 512 {
		group--
	}
	return geometry{5 + r.IntN(150), group * kvHeads, kvHeads, headDim, 1 + r.IntN(200)}
}

var rowCounts = []int{1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 47, 64, 65, 100, 128, 129, 300}

// opChecks run operations that need no attention.
func opChecks() []check {
	var out []check
	add := func(op string, c config, rows int, do steps, l limits) {
		s := &c.shape
		name := fmt.Sprintf("%s/seed%d/%d×%d,%d×%d×%d,%d,%v→%v,kv_%v", op, c.seed, rows, s.Hidden, s.Heads, s.KVHeads,
			s.HeadDim, s.Inter, c.src, c.dt, s.KV)
		out = append(out, check{name, func(d compute.Device) error {
			r := newRandom(c.seed + 1000)
			plans := []plan{r.causal(int32(r.IntN(40000)), rows)}
			if err := agree(d, c, do, l, plans...); err != nil {
				return fmt.Errorf("%s: %w", op, err)
			}
			return nil
		}})
	}
	norm := within(varNorm())
	for i, rows := range rowCounts {
		for j, f := range formats {
			seed := uint64(10*i + j)
			r := newRandom(seed)
			g := geometries[(i*len(formats)+j)%len(geometries)]
			if i%2 == 1 {
				g = r.randomGeometry()
			}
			c := config{seed: seed, shape: g.shape(1, f.kv), dt: f.dt, src: sources[(i+j)%3],
				bare: i%3 == 1, headed: i%3 != 2, sharp: 1}
			add("qkv", c, rows, steps{qkv: true}, limits{exact, norm, norm, limitKV(c)})
			if j%2 == 0 {
				x := within(varFFN(f.dt))
				add("ffn", c, rows, steps{ffn: true}, limits{x, x, x, exact})
			}
			if j == 0 {
				add("embed", c, rows, steps{}, limits{exact, norm, norm, exact})
			}
		}
	}
	return append(out, check{"weights rounded to nearest", roundedWeights}, check{"kv rounded to nearest", roundedKV})
}

// limitKV is the limit of what QKV writes.
func limitKV(c config) limit {
	kv := c.shape.KV
	if kv == compute.F32 {
		return within(c.narrowHeads() * varKV(c.dt, kv))
	}
	l := within(c.narrowHeads() * varQKV(c.dt))
	l.rms = within(c.narrowHeads() * varKV(c.dt, kv)).rms
	l.step = stepBF16
	if kv == compute.FP8 {
		l.step = stepFP8
		l.max += smallFP8
	}
	return l
}

// narrowHeads is what norms per head add to the variance: they raise a head of few values that
// happens to be small, and its error with it.
func (c config) narrowHeads() float64 {
	if c.headed && c.shape.HeadDim < narrow {
		return 4
	}
	return 1
}

// still is a shape whose rotation does nothing.
func still(s compute.Shape) compute.Shape {
	clear(s.Rope.InvFreq)
	s.Rope.Scale = 1
	return s
}

// roundedWeights: with x in bf16 and no norm before it, a bf16 product has the error of its float32
// sums only; truncated weights would be off by a hundred times that.
func roundedWeights(d compute.Device) error {
	for i, g := range geometries {
		c := config{seed: uint64(i), shape: still(g.shape(1, compute.F32)), dt: compute.BF16, src: compute.F32, bare: true,
			sharp: 1}
		m := newModel(c)
		r := newRandom(uint64(i))
		m.embed = r.tensor(compute.BF16, vocabulary, g.hidden, 0, 1)
		p := r.causal(0, 1+r.IntN(40))
		norm := within(varNorm())
		err := m.agree(d, steps{qkv: true}, limits{exact, norm, norm, within(variance(compute.F32))}, p)
		if err != nil {
			return fmt.Errorf("qkv of bf16 activations: %v: %w", c, err)
		}
	}
	return nil
}

// roundedKV: float32 products round to the same values as ref's but for those next to a boundary,
// of which there are few.
func roundedKV(d compute.Device) error {
	return errors.Join(roundedTo(d, compute.BF16), roundedTo(d, compute.FP8))
}

func roundedTo(d compute.Device, kv compute.DType) error {
	g := geometries[0]
	c := config{seed: 1, shape: g.shape(1, kv), dt: compute.F32, src: compute.F32, sharp: 1}
	m := newModel(c)
	plans := []plan{newRandom(1).causal(0, 100)}
	want, _, err1 := m.onRef(steps{qkv: true}, plans)
	got, _, err2 := m.on(d, steps{qkv: true}, plans)
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("qkv: %v: %w", c, err)
	}
	all, differ := 0, 0
	for kv := range 2 {
		for t := range 100 {
			a, b := tokenKV(&m.shape, got.host[0], 0, kv, t), tokenKV(&m.shape, want.host[0], 0, kv, t)
			for i := range a {
				all++
				if a[i] != b[i] {
					differ++
				}
			}
		}
	}
	if differ*50 > all {
		return fmt.Errorf("qkv: %v: %d of %d values of K and V are not the nearest %v, more than 2 %%", c, differ, all, kv)
	}
	return nil
}

// logitCounts: as many logits as are asked for are computed, and each is what it is alone.
func logitCounts(d compute.Device) error {
	c := config{seed: 31, shape: geometries[3].shape(1, compute.BF16), dt: compute.BF16, src: compute.F32, sharp: 1}
	m := newModel(c)
	w, err := m.pack(d)
	if err != nil {
		return err
	}
	r, err := d.Open(m.shape, 8)
	if err != nil {
		return err
	}
	defer r.Close()
	b := newBatch(d.Memory(), &m.shape, newRandom(3).causal(0, 8))
	if err := b.begin(r); err != nil {
		return err
	}
	m.operations(r, w, wholeLayers)
	var alone [8 * vocabulary]float32
	for i := range alone {
		if err := r.Logits(w.norm, w.head, []compute.Pair{{Row: int32(i / vocabulary), ID: int32(i % vocabulary)}},
			alone[i:i+1]); err != nil {
			return err
		}
	}
	for _, n := range []int{1, 2, 127, 128, 129, 255, 256, 257, 512, 513, 769} {
		pairs, out := make([]compute.Pair, n), make([]float32, n)
		for i := range pairs {
			pairs[i] = compute.Pair{Row: int32(i * 3 % 8), ID: int32(i * 7 % vocabulary)}
			out[i] = float32(math.NaN())
		}
		if err := r.Logits(w.norm, w.head, pairs, out); err != nil {
			return err
		}
		for i, p := range pairs {
			if want := alone[int(p.Row)*vocabulary+int(p.ID)]; out[i] != want {
				return fmt.Errorf("logit %d of %d is %v, want %v", i, n, out[i], want)
			}
		}
	}
	return nil
}
