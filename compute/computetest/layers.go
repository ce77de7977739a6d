package computetest

import (
	"fmt"
	"math"

	"grebe/compute"
)

// mixed returns plans of every kind, with their K and V scattered.
func (r random) mixed(s *compute.Shape, start int32) []plan {
	plans := []plan{
		r.userFirst(start, 1+r.IntN(40), []int{1, 10, 1 + r.IntN(20)}, 1+r.IntN(6)),
		r.itemFirst(start, r.IntN(4), 70, []int{10, 3, 64, 1}, 2),
		r.pointwise(start, 5+r.IntN(80), []int{4, 1 + r.IntN(12)}, 3),
		r.userFirst(start, 0, []int{5, 2}, 1), // nobody is known about the user
		r.itemFirst(start, 1, 0, []int{7}, 1), // the same, and one item
		r.causal(start, 1+r.IntN(130)),        // a plain prompt
		r.userFirst(start, 1, []int{1}, 1),    // as small as can be
	}
	r.Shuffle(len(plans), func(i, j int) { plans[i], plans[j] = plans[j], plans[i] })
	plans = plans[:2+r.IntN(3)]
	for i := range plans {
		plans[i] = r.scatterRandom(s, plans[i])
	}
	return plans
}

// attendChecks run QKV, Attend and Output of one layer.
func attendChecks() []check {
	var out []check
	for i, g := range wideGeometries {
		for j, f := range formats {
			// on GPUs, the first go through the tensor cores
			if f.dt == compute.BF16 && f.kv == compute.BF16 || i < 3 && f.kv == compute.F32 {
				out = append(out, attendCheck(config{seed: uint64(900 + 10*i + j), shape: g.shape(1, f.kv), dt: f.dt,
					src:    sources[(i+j)%3],
					headed: i%2 == 0, quiet: true, sharp: 1}, int32(i)*700))
			}
		}
	}
	for i := range 2 * len(geometries) {
		for j, f := range formats {
			seed := uint64(100 + 10*i + j)
			g := geometries[i%len(geometries)]
			if i >= len(geometries) {
				if i%2 != j%2 {
					continue // half of the formats
				}
				g = newRandom(seed).randomGeometry()
			}
			sharp := []float64{1, 4, 0.25}[(i+j)%3]
			c := config{seed: seed, shape: g.shape(1, f.kv), dt: f.dt, src: sources[(i+j)%3], headed: i%2 == 0,
				eye: g.hidden == g.heads*g.headDim, quiet: true, sharp: sharp}
			out = append(out, attendCheck(c, int32(i%4)*9000))
		}
	}
	return out
}

// wideGeometries have heads of other sizes than most, and many query heads on a KV head: more than 8, and more than any
// tile has rows.
var wideGeometries = []geometry{{96, 2, 1, 96, 1}, {64, 2, 1, 256, 1}, {64, 20, 1, 64, 1}, {48, 24, 2, 128, 1},
	{40, 130, 1, 64, 1}, {66, 3, 3, 96, 1}}

func attendCheck(c config, start int32) check {
	s := &c.shape
	name := fmt.Sprintf("attend/seed%d/%d,%d×%d×%d,%v,kv_%v", c.seed, s.Hidden, s.Heads, s.KVHeads, s.HeadDim, c.dt,
		s.KV)
	return check{name, func(d compute.Device) error {
		plans := newRandom(c.seed).mixed(&c.shape, start)
		if err := agree(d, c, steps{qkv: true, attend: true}, attendLimits(c), plans...); err != nil {
			return fmt.Errorf("attend: %w", err)
		}
		return nil
	}}
}

// attendLimits: the scores' deviation is sharp but for the rotation's scale, which turns both sides.
func attendLimits(c config) limits {
	s := &c.shape
	sharp := c.sharp * float64(s.Rope.Scale) * float64(s.Rope.Scale) * math.Sqrt(c.narrowHeads())
	x := within(varAttend(c.dt, s.KV, sharp))
	return limits{x, x, x, limitKV(c)}
}

// minInter is the least width of the feed-forward layer in whole models.
const minInter = 16

// layerChecks run whole models.
func layerChecks() []check {
	var out []check
	for i := range 2 * len(geometries) {
		f := formats[i%len(formats)]
		seed := uint64(1000 + i)
		g := geometries[(i*5+i/12)%len(geometries)]
		// The limits take errors to be independent. A feed-forward layer of a few units has few, which
		// whole layers multiply; the FFN check alone runs those.
		g.inter = max(g.inter, minInter)
		c := config{seed: seed, shape: g.shape(1+i%3, f.kv), dt: f.dt, src: sources[i%3], bare: i%4 == 3, headed: i%2 == 0,
			sharp: 1}
		out = append(out, layerCheck(c, i%2 == 1, func(r random) []plan { return r.mixed(&c.shape, int32(r.IntN(3000))) }))
	}
	// Large enough for every kernel's inner tiles.
	for i, f := range formats {
		if f.dt != f.kv {
			continue
		}
		c := config{seed: uint64(2000 + i), shape: geometries[0].shape(2, f.kv), dt: f.dt, src: sources[i%3], headed: true,
			sharp: 1}
		out = append(out, layerCheck(c, true, func(r random) []plan {
			return []plan{r.causal(0, 190), r.userFirst(0, 70, []int{10, 10, 7}, 5)}
		}))
	}
	return append(out, check{"layers/no rows", noRows})
}

func layerCheck(c config, keep bool, plans func(r random) []plan) check {
	s := &c.shape
	name := fmt.Sprintf("layers/seed%d/%d×%d,%d×%d×%d,%d,%v→%v,kv_%v", c.seed, s.Layers, s.Hidden, s.Heads, s.KVHeads,
		s.HeadDim, s.Inter, c.src, c.dt, s.KV)
	return check{name, func(d compute.Device) error {
		r := newRandom(c.seed)
		batch := plans(r)
		do := wholeLayers
		if keep {
			do.keep = r.someRows(rows(batch))
		}
		x := within(varLayers(s.Layers, c.dt, s.KV, 1.5))
		kv := x
		kv.step = limitKV(c).step
		if err := agree(d, c, do, limits{x, x, x, kv}, batch...); err != nil {
			return fmt.Errorf("whole layers: %w", err)
		}
		return nil
	}}
}

// someRows draws ascending rows, at least one.
func (r random) someRows(n int) []int32 {
	rows := []int32{}
	last := r.IntN(n)
	for row := range n {
		if row == last || r.IntN(4) == 0 {
			rows = append(rows, int32(row))
		}
	}
	return rows
}

// noRows: a batch may have nothing to compute, and Keep may leave nothing.
func noRows(d compute.Device) error {
	c := config{seed: 1, shape: geometries[3].shape(2, compute.BF16), dt: compute.BF16, sharp: 1}
	r := newRandom(1)
	cached := r.causal(0, 20)
	cached[0].cached, cached[0].kv = 20, r.kv(&c.shape, 20)
	for _, plans := range [][]plan{nil, {{}}, {r.causal(0, 0)}, {cached}} {
		if err := agree(d, c, wholeLayers, limits{}, plans...); err != nil {
			return fmt.Errorf("nothing to compute: %w", err)
		}
	}
	do := wholeLayers
	do.keep = []int32{}
	l := limitKV(c)
	l.rms, l.max = 10*l.rms, 10*l.max // two layers; what counts is that it runs
	if err := agree(d, c, do, limits{kv: l}, r.causal(0, 5)); err != nil {
		return fmt.Errorf("nothing kept: %w", err)
	}
	return nil
}
