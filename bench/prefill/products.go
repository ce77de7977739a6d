package prefill

import (
	"math/rand/v2"
	"time"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/gemm"
	"grebe/internal/offheap"
)

// products are the four products of a layer by themselves, on random values: what bench gemm
// measures, weighted by how much of each a layer has.
type products struct {
	mul     *gemm.Multiplier
	parts   []product
	in, out []float32
	blocks  []*offheap.Block
}

type product struct {
	n, k    int
	weights *gemm.Weights
	rows    *gemm.Rows
}

// newProducts packs weights for up to m rows.
func newProducts(s compute.Shape, dt compute.DType, threads, m int) (*products, error) {
	mul, err := gemm.Standalone(threads)
	if err != nil {
		return nil, err
	}
	p := &products{mul: mul}
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	for _, x := range [][2]int{{q + 2*kv, s.Hidden}, {s.Hidden, q}, {2 * s.Inter, s.Hidden}, {s.Hidden, s.Inter}} {
		if err := p.add(dt, x[0], x[1]); err != nil {
			p.free()
			return nil, err
		}
	}
	if p.in, err = p.floats(m * max(s.Hidden, q, s.Inter)); err == nil {
		p.out, err = p.floats(m * max(q+2*kv, 2*s.Inter))
	}
	if err != nil {
		p.free()
		return nil, err
	}
	fill(p.in, 1)
	return p, nil
}

func (p *products) add(dt compute.DType, n, k int) error {
	block, err := offheap.Alloc(4 * n * k)
	if err != nil {
		return err
	}
	defer block.Free() // the packed form is a copy
	values := offheap.Slice[float32](block.Bytes, n*k)
	fill(values, uint64(n))
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), 4*len(values))
	w, err := gemm.Pack(p.mul.Team(), gemm.Best(), dt, compute.Tensor{DType: compute.F32, Rows: n, Cols: k, Data: bytes})
	if err != nil {
		return err
	}
	p.parts = append(p.parts, product{n: n, k: k, weights: w, rows: gemm.NewRows(gemm.Best(), dt)})
	return nil
}

func (p *products) floats(n int) ([]float32, error) {
	b, err := offheap.Alloc(4 * n)
	if err != nil {
		return nil, err
	}
	p.blocks = append(p.blocks, b)
	return offheap.Slice[float32](b.Bytes, n), nil
}

func fill(v []float32, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range v {
		v[i] = r.Float32()*2 - 1
	}
}

// The time over which products are measured: about as long as what they are compared with, so that
// both see as much of a noisy machine.
const (
	least = 20 * time.Millisecond
	most  = time.Second
)

// seconds runs a layer's products over m rows for about the time given, and returns the seconds of
// one layer.
func (p *products) seconds(m int, about time.Duration) float64 {
	about = min(max(about, least), most)
	p.layer(m) // wakes the threads
	layers, start := 0, time.Now()
	for {
		p.layer(m)
		layers++
		if d := time.Since(start); d >= about {
			return d.Seconds() / float64(layers)
		}
	}
}

func (p *products) layer(m int) {
	for i := range p.parts {
		x := &p.parts[i]
		if err := x.rows.Reset(m, x.k); err != nil {
			panic(err) // memory for activations that the model's own pass had just before
		}
		p.mul.Fill(x.rows, p.in, x.k)
		p.mul.Store(p.out, x.n, x.rows, x.weights, nil)
	}
}

// flops counts the operations of a layer's products over m rows.
func (p *products) flops(m int) float64 {
	sum := 0.0
	for i := range p.parts {
		sum += 2 * float64(m) * float64(p.parts[i].n) * float64(p.parts[i].k)
	}
	return sum
}

func (p *products) free() {
	for i := range p.parts {
		p.parts[i].weights.Free()
		p.parts[i].rows.Free()
	}
	for _, b := range p.blocks {
		b.Free()
	}
	p.mul.Free()
}
