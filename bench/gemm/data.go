package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/gemm"
	"grebe/internal/offheap"
)

// data is one shape's values: activations [m][k] and weights [n][k], float32 off the heap, where
// libraries may read them. Weights are exact in bf16, so that both formats multiply the same values.
type data struct {
	shape
	m     int
	a, w  []float32
	block [2]*offheap.Block
}

func newData(m int, s shape) (*data, error) {
	d := &data{shape: s, m: m}
	var err error
	if d.block[0], d.a, err = floats(m * s.k); err != nil {
		return nil, err
	}
	if d.block[1], d.w, err = floats(s.n * s.k); err != nil {
		d.block[0].Free()
		return nil, err
	}
	r := rand.New(rand.NewPCG(uint64(s.n), uint64(s.k)))
	for i := range d.a {
		d.a[i] = r.Float32()*2 - 1
	}
	for i := range d.w {
		d.w[i] = math.Float32frombits(math.Float32bits((r.Float32()*2-1)/16) &^ 0xffff)
	}
	return d, nil
}

func (d *data) free() {
	for _, b := range d.block {
		b.Free()
	}
}

func floats(n int) (*offheap.Block, []float32, error) {
	b, err := offheap.Alloc(4 * n)
	if err != nil {
		return nil, nil, err
	}
	return b, offheap.Slice[float32](b.Bytes, n), nil
}

// compare compares results with each other, and some rows of each against float64.
func (d *data) compare(cs []contender, dt compute.DType, m int) error {
	// Sums of k products of size 1/32: rounding of the sum, and of the activations where they
	// become bf16, which only some do.
	scale := math.Sqrt(float64(d.k)) / 16
	tol := 1e-4 * scale
	switch dt {
	case compute.BF16:
		tol = 2e-2 * scale
	case compute.INT8:
		// Rounding of both operands to steps of 1/127: 2.6e-3 of scale in the RMS; the largest of 10⁷ values
		// has 6 of these.
		tol = 3e-2 * scale
	}
	for _, c := range cs {
		for _, i := range []int{0, m / 3, m - 1} {
			if err := d.checkRow(c, i, tol); err != nil {
				return err
			}
		}
	}
	first := cs[0].out()
	for _, c := range cs[1:] {
		for i, v := range c.out() {
			if !(math.Abs(float64(v-first[i])) <= tol) {
				return fmt.Errorf("%s has %v at row %d column %d, %s %v", c.name(), v, i/d.n, i%d.n, cs[0].name(), first[i])
			}
		}
	}
	return nil
}

func (d *data) checkRow(c contender, i int, tol float64) error {
	a, got := d.a[i*d.k:(i+1)*d.k], c.out()[i*d.n:(i+1)*d.n]
	for j := 0; j < d.n; j += 1 + j%7 {
		w, want := d.w[j*d.k:(j+1)*d.k], 0.0
		for k, x := range a {
			want += float64(x) * float64(w[k])
		}
		if !(math.Abs(float64(got[j])-want) <= tol) {
			return fmt.Errorf("%s has %v at row %d column %d, want %v", c.name(), got[j], i, j, want)
		}
	}
	return nil
}

const (
	grebeName = "grebe"
	ownBF16   = "bf16" // Grebe's own, beside int8
)

func levelName() string { return gemm.Best().String() }

// grebe is this project's product.
type grebe struct {
	d    *data
	mul  *gemm.Multiplier
	w    *gemm.Weights
	rows *gemm.Rows
	c    []float32
	mem  *offheap.Block
	as   string
}

func newGrebe(dt compute.DType, d *data, threads, m int) (contender, error) {
	mul, err := gemm.Standalone(threads)
	if err != nil {
		return nil, err
	}
	g := &grebe{d: d, mul: mul, rows: gemm.NewRows(gemm.Best(), dt), as: grebeName}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&d.w[0])), 4*len(d.w))
	g.w, err = gemm.Pack(mul.Team(), gemm.Best(), dt,
		compute.Tensor{DType: compute.F32, Rows: d.n, Cols: d.k, Data: bytes})
	if err == nil {
		err = g.rows.Reset(m, d.k)
	}
	if err == nil {
		g.mem, g.c, err = floats(m * d.n)
	}
	if err != nil {
		g.free()
		return nil, err
	}
	return g, nil
}

func (g *grebe) name() string { return g.as }

func (g *grebe) run() error {
	if !g.rows.Borrow(g.d.a, g.d.k, g.rows.Len(), g.d.k) {
		g.mul.Fill(g.rows, g.d.a, g.d.k)
	}
	g.mul.Store(g.c, g.d.n, g.rows, g.w, nil)
	return nil
}

func (g *grebe) out() []float32 { return g.c }

func (g *grebe) free() {
	g.mul.Free()
	g.rows.Free()
	if g.w != nil {
		g.w.Free()
	}
	if g.mem != nil {
		g.mem.Free()
	}
}

// contenders returns all that can multiply in dt.
func contenders(libs *libraries, dt compute.DType, d *data, threads, m int) (cs []contender, err error) {
	make := []func() (contender, error){func() (contender, error) { return newGrebe(dt, d, threads, m) }}
	if dt == compute.INT8 {
		make = append(make, func() (contender, error) {
			c, err := newGrebe(compute.BF16, d, threads, m)
			if err == nil {
				c.(*grebe).as = ownBF16
			}
			return c, err
		})
	}
	if libs.onednn.ready() {
		make = append(make, func() (contender, error) { return libs.onednn.product(dt, d, threads, m) })
	}
	if libs.openblas.ready() && dt == compute.F32 {
		make = append(make, func() (contender, error) { return libs.openblas.product(d, threads, m) })
	}
	for _, f := range make {
		c, err := f()
		if err != nil {
			return cs, err
		}
		cs = append(cs, c)
	}
	return cs, nil
}
