package computetest

import (
	"encoding/binary"
	"fmt"
	"math"

	"grebe/compute"
	"grebe/compute/internal/fp8"
)

// scaledChecks run K and V in e4m3 with scales. Values that two devices compute a little differently may be
// stored a whole step apart, 2⁻³, which limits the comparison of what was written and attended to in one
// pass. So there are two more: nearly all values must be stored alike, and attention to what is in the
// chunks already must agree as it does for bf16.
func scaledChecks(opts Options) []check {
	var out []check
	add := func(name string, c config, run func(d compute.Device, c config) error) {
		s := &c.shape
		name = fmt.Sprintf("fp8/%s/seed%d/%d,%d×%d×%d,%v", name, c.seed, s.Hidden, s.Heads, s.KVHeads, s.HeadDim, c.dt)
		out = append(out, check{name, func(d compute.Device) error {
			if err := run(d, c); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		}})
	}
	for i, g := range geometries {
		dt := []compute.DType{compute.F32, compute.BF16}[i%2]
		g.inter = max(g.inter, minInter)
		c := config{seed: uint64(5000 + i), shape: g.shape(1, compute.FP8), dt: dt, src: sources[i%3], headed: i%3 == 0,
			sharp: 1}
		add("qkv", c, scaledQKV)
		attending := c
		attending.eye, attending.quiet, attending.sharp = g.hidden == g.heads*g.headDim, true, []float64{1, 0.25}[i%2]
		add("attend", attending, scaledAttend)
		add("attend to cached", attending, scaledCached)
		if attending.dt = compute.BF16; dt != compute.BF16 { // a GPU's tensor cores
			attending.seed += 100
			add("attend", attending, scaledAttend)
			add("attend to cached", attending, scaledCached)
		}
		if i%2 == 0 {
			whole := c
			whole.dt, whole.shape.Layers = []compute.DType{compute.F32, compute.BF16}[i/2%2], 2
			add("layers", whole, scaledLayers)
		}
		if opts.SameBits && i < 3 {
			bits := config{seed: c.seed, shape: geometries[3+i].shape(2, compute.FP8), dt: dt, src: compute.F32, sharp: 2}
			add("same bits", bits, sameBits)
		}
		if opts.NoAlloc && i < 2 {
			add("no allocation", config{seed: c.seed, shape: geometries[3].shape(2, compute.FP8), dt: dt, sharp: 1},
				allocatesNothing)
		}
	}
	return out
}

func scaledQKV(d compute.Device, c config) error {
	r := newRandom(c.seed)
	p := r.causal(int32(r.IntN(4000)), 150)
	p[0].chunks = chain(150, 64)
	norm := within(varNorm())
	return agree(d, c, steps{qkv: true}, limits{exact, norm, norm, limitKV(c)}, p, r.causal(0, 3))
}

// scaledAttend: some chunks are written, some read, some both.
func scaledAttend(d compute.Device, c config) error {
	r := newRandom(c.seed)
	return agree(d, c, steps{qkv: true, attend: true}, attendLimits(c), r.mixed(&c.shape, int32(r.IntN(4))*900)...)
}

// scaledCached: one token is computed, whose own key and value hardly weigh.
func scaledCached(d compute.Device, c config) error {
	r := newRandom(c.seed)
	var plans []plan
	for _, n := range []int{200, 333} {
		p := r.itemFirst(0, 3, n, []int{9, 64, 1}, 1)
		for i := range p[:len(p)-1] {
			p[i].cached, p[i].kv = len(p[i].tokens), r.kv(&c.shape, len(p[i].tokens))
		}
		plans = append(plans, p)
	}
	l := attendLimits(c)
	kv := l.kv
	c.shape.KV = compute.BF16
	l = attendLimits(c)
	c.shape.KV, l.kv = compute.FP8, kv
	return agree(d, c, steps{qkv: true, attend: true}, l, plans...)
}

func scaledLayers(d compute.Device, c config) error {
	r := newRandom(c.seed)
	x := within(varLayers(c.shape.Layers, c.dt, compute.FP8, 1.5))
	kv := x
	kv.step, kv.max = stepFP8, kv.max+smallFP8
	return agree(d, c, wholeLayers, limits{x, x, x, kv}, r.mixed(&c.shape, 7)...)
}

// scaledKV draws a chunk of n tokens in e4m3.
func (r random) scaledKV(s *compute.Shape, n int) []byte {
	kv := make([]byte, s.ChunkBytes(n, false))
	whole := []compute.Chunk{{Bytes: kv, Tokens: n}}
	for l := range s.Layers {
		for i := range 2 * s.KVHeads {
			if n == 0 {
				continue
			}
			scale := math.Ldexp(1, r.IntN(5)-2)
			binary.LittleEndian.PutUint32(scaleAt(s, whole, l, i, 0), math.Float32bits(float32(scale)))
			for t := range n {
				v := vectorAt(s, whole, l, i, t)
				for j := range v {
					v[j] = fp8.Encode(float32(r.NormFloat64() / scale))
				}
			}
		}
	}
	return kv
}

// scaleAt returns the bytes of the scale of a token's K or V of one head; none where there are no scales.
func scaleAt(s *compute.Shape, chunks []compute.Chunk, layer, i, token int) []byte {
	if s.ScaleBytes() == 0 {
		return nil
	}
	c, _, layer := chunkOf(chunks, token, layer)
	at := s.TokenAt(layer, i, 0, c.Tokens) - s.ScaleBytes()
	return c.Bytes[at : at+4]
}

// appendScaled decodes a vector.
func appendScaled(out []float32, vector, scale []byte) []float32 {
	s := math.Float32frombits(binary.LittleEndian.Uint32(scale))
	for _, b := range vector {
		out = append(out, s*fp8.Decode(b))
	}
	return out
}

// uncut has every segment in one chunk of its exact length.
func (p plan) uncut() {
	for i := range p {
		p[i].chunks = nil
	}
}
