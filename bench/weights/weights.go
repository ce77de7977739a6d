// Package weights makes decoders of random weights on a device, for benchmarks of a shape that needs no checkpoint. The
// same seed gives the same weights.
package weights

import (
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"unsafe"

	"grebe/compute"
	"grebe/model"
	"grebe/model/decoder"
)

// Tensor returns random bf16 values between mean−scale and mean+scale.
func Tensor(seed uint64, rows, cols int, mean, scale float32) compute.Tensor {
	t := compute.Tensor{DType: compute.BF16, Rows: rows, Cols: cols, Data: make([]byte, 2*rows*cols)}
	values := unsafe.Slice((*uint16)(unsafe.Pointer(&t.Data[0])), rows*cols)
	var wg sync.WaitGroup
	step := max(1, len(values)/runtime.GOMAXPROCS(0)+1)
	for from := 0; from < len(values); from += step {
		part := values[from:min(len(values), from+step)]
		wg.Go(func() {
			r := rand.NewPCG(seed, uint64(from))
			for i := 0; i < len(part); i += 4 {
				bits := r.Uint64()
				for j := i; j < min(i+4, len(part)); j++ {
					v := mean + scale*(float32(bits&0xffff)/32768-1)
					part[j] = uint16((math.Float32bits(v) + 0x8000) >> 16)
					bits >>= 16
				}
			}
		})
	}
	wg.Wait()
	return t
}

// Matrix returns a random matrix whose values have the variance 1/cols.
func Matrix(seed uint64, rows, cols int) compute.Tensor {
	return Tensor(seed, rows, cols, 0, float32(math.Sqrt(3/float64(cols))))
}

// Options describe a decoder beside its shape.
type Options struct {
	Vocab, Positions int
	Bias             bool // of QKV, as Qwen2 has
	Norms            bool // of the heads of queries and keys, as Qwen3 has
	// Shared packs one layer's weights, which all layers use. It saves memory and time, and is right where a layer is
	// larger than the device's caches.
	Shared bool
	Seed   uint64
}

// Decoder packs random weights of a shape, whose Rope, Eps and KV it sets.
func Decoder(d compute.Device, s compute.Shape, o Options) (model.Blender, error) {
	s.Eps, s.KV, s.Rope = 1e-6, compute.BF16, compute.Rope{Scale: 1}
	for i := range s.HeadDim / 2 {
		s.Rope.InvFreq = append(s.Rope.InvFreq, float32(math.Pow(1e6, -2*float64(i)/float64(s.HeadDim))))
	}
	p := packer{device: d, shape: &s, options: &o, seed: o.Seed}
	g := &decoder.Given{Config: model.Config{Vocab: o.Vocab, MaxPositions: o.Positions}, Shape: s, DType: compute.BF16}
	g.Norm = p.norm(s.Hidden)
	if p.err == nil {
		g.Embedding, p.err = d.Table(Matrix(o.Seed+1<<32, o.Vocab, s.Hidden))
	}
	for i := range s.Layers {
		if i == 0 || !o.Shared {
			p.layer()
		}
		if p.err != nil {
			return nil, p.err
		}
		g.Attention, g.FFN = append(g.Attention, p.attention), append(g.FFN, p.ffn)
	}
	return decoder.Of(g), nil
}

// packer packs weights until the first error.
type packer struct {
	device    compute.Device
	shape     *compute.Shape
	options   *Options
	seed      uint64
	err       error
	attention compute.AttentionWeights
	ffn       compute.FFNWeights
}

func (p *packer) layer() {
	s := p.shape
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	p.attention = compute.AttentionWeights{Norm: p.norm(s.Hidden), QKV: p.linear(q+2*kv, s.Hidden),
		Out: p.linear(s.Hidden, q)}
	if p.options.Bias {
		p.attention.QKVBias = p.vector(q+2*kv, 0)
	}
	if p.options.Norms {
		p.attention.QNorm, p.attention.KNorm = p.norm(s.HeadDim), p.norm(s.HeadDim)
	}
	p.ffn = compute.FFNWeights{Norm: p.norm(s.Hidden), Down: p.linear(s.Hidden, s.Inter)}
	if p.err == nil {
		p.seed += 2
		p.ffn.GateUp, p.err = p.device.GateUp(compute.BF16, Matrix(p.seed-1, s.Inter, s.Hidden),
			Matrix(p.seed, s.Inter, s.Hidden))
	}
}

func (p *packer) linear(rows, cols int) (l compute.Linear) {
	if p.err == nil {
		p.seed++
		l, p.err = p.device.Linear(compute.BF16, Matrix(p.seed, rows, cols))
	}
	return l
}

func (p *packer) norm(n int) compute.Vector { return p.vector(n, 1) }

func (p *packer) vector(n int, mean float32) (v compute.Vector) {
	if p.err == nil {
		p.seed++
		v, p.err = p.device.Vector(Tensor(p.seed, 1, n, mean, 0.2))
	}
	return v
}
