package driver

import (
	"errors"
	"fmt"
	"unsafe"

	"grebe/internal/offheap"
)

// Number is the type of a matrix's values, as the matrix library numbers them.
type Number int32

// Numbers.
const (
	NumberF32  Number = 0
	NumberBF16 Number = 14
	NumberE4M3 Number = 28
)

// Product is out[M][N] = x[M][K] · w[N][K]ᵀ, all row by row without gaps, summed in float32.
type Product struct {
	M, N, K int
	In, Out Number
	Add     bool // add to what out holds
	Fast    bool // sums of products of e4m3 may have fewer bits than float32
}

// Algorithm is one of the matrix library's ways to compute a product. It may be kept and used again
// with the same version of the library.
type Algorithm [64]byte

// candidate is the library's own structure of one answer.
type candidate struct {
	algorithm Algorithm
	workspace uint64
	state     int32
	waves     float32
	reserved  [4]int32
}

// Blas is the matrix library on one GPU.
type Blas struct {
	c      *Context
	handle uintptr
}

// NewBlas starts the matrix library. The caller MUST Close it.
func (c *Context) NewBlas() (*Blas, error) {
	b := &Blas{c: c}
	if err := c.call(lt.create, uintptr(unsafe.Pointer(&b.handle))); err != nil {
		return nil, err
	}
	return b, nil
}

// Close ends it.
func (b *Blas) Close() error { return b.c.call(lt.destroy, b.handle) }

// BlasVersion returns the matrix library's version.
func BlasVersion() (int, error) {
	if _, err := Open(); err != nil {
		return 0, err
	}
	return int(invoke(&lt.version, nil)), nil
}

// Plan is a product that is ready to run.
type Plan struct {
	b                *Blas
	product          Product
	desc             uintptr
	w, x, out        uintptr // layouts
	fixed            *offheap.Block
	alpha, beta, how uintptr // in fixed
}

// howAt is where the algorithm lies in fixed, behind alpha and beta.
const howAt = 64

// NewPlan makes the descriptions of a product, without an algorithm. The caller MUST Close it.
func (b *Blas) NewPlan(p Product) (*Plan, error) {
	const compute32, transposed = 68, 1
	pl := &Plan{b: b, product: p}
	fixed, err := offheap.Alloc(howAt + len(Algorithm{}))
	if err != nil {
		return nil, err
	}
	pl.fixed = fixed
	numbers := offheap.Slice[float32](fixed.Bytes, 2)
	if numbers[0] = 1; p.Add {
		numbers[1] = 1
	}
	pl.alpha = uintptr(unsafe.Pointer(&numbers[0]))
	pl.beta, pl.how = pl.alpha+4, pl.alpha+howAt
	op := int32(transposed)
	err = errors.Join(
		b.c.call(lt.descCreate, uintptr(unsafe.Pointer(&pl.desc)), compute32, uintptr(NumberF32)),
		b.layout(&pl.w, p.In, p.K, p.N), b.layout(&pl.x, p.In, p.K, p.M), b.layout(&pl.out, p.Out, p.N, p.M))
	if err == nil {
		const attrTransA = 3
		err = b.c.call(lt.descSet, pl.desc, attrTransA, uintptr(unsafe.Pointer(&op)), unsafe.Sizeof(op))
	}
	if err == nil && p.Fast {
		const attrFastSums = 25
		fast := int8(1)
		err = b.c.call(lt.descSet, pl.desc, attrFastSums, uintptr(unsafe.Pointer(&fast)), unsafe.Sizeof(fast))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("product %+v: %w", p, err), pl.Close())
	}
	return pl, nil
}

// layout describes a matrix by columns, which is ours by rows, transposed.
func (b *Blas) layout(to *uintptr, t Number, rows, cols int) error {
	return b.c.call(lt.layoutCreate, uintptr(unsafe.Pointer(to)), uintptr(t), uintptr(rows), uintptr(cols), uintptr(rows))
}

// Close gives the plan back.
func (pl *Plan) Close() error {
	var errs []error
	for _, l := range []uintptr{pl.w, pl.x, pl.out} {
		if l != 0 {
			errs = append(errs, pl.b.c.call(lt.layoutDestroy, l))
		}
	}
	if pl.desc != 0 {
		errs = append(errs, pl.b.c.call(lt.descDestroy, pl.desc))
	}
	pl.fixed.Free()
	return errors.Join(errs...)
}

// Candidates asks for up to n algorithms that need at most workspace bytes, the most promising first.
func (pl *Plan) Candidates(workspace, n int) ([]Algorithm, error) {
	const attrWorkspace = 1
	var pref uintptr
	if err := pl.b.c.call(lt.preferenceCreate, uintptr(unsafe.Pointer(&pref))); err != nil {
		return nil, err
	}
	defer pl.b.c.call(lt.preferenceDestroy, pref)
	size := uint64(workspace)
	if err := pl.b.c.call(lt.preferenceSet, pref, attrWorkspace, uintptr(unsafe.Pointer(&size)),
		unsafe.Sizeof(size)); err != nil {
		return nil, err
	}
	found := make([]candidate, n)
	var count int32
	if err := pl.b.c.call(lt.heuristic, pl.b.handle, pl.desc, pl.w, pl.x, pl.out, pl.out, pref, uintptr(n),
		uintptr(unsafe.Pointer(&found[0])), uintptr(unsafe.Pointer(&count))); err != nil {
		return nil, fmt.Errorf("algorithms of product %+v: %w", pl.product, err)
	}
	var out []Algorithm
	for _, f := range found[:count] {
		if f.state == 0 {
			out = append(out, f.algorithm)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("driver: no algorithm for product %+v", pl.product)
	}
	return out, nil
}

// Use makes the plan run by a.
func (pl *Plan) Use(a Algorithm) {
	copy(pl.fixed.Bytes[howAt:], a[:])
}

// Accepts reports whether the product can run by a.
func (pl *Plan) Accepts(a Algorithm) bool {
	var c candidate
	err := pl.b.c.call(lt.check, pl.b.handle, pl.desc, pl.w, pl.x, pl.out, pl.out, uintptr(unsafe.Pointer(&a)),
		uintptr(unsafe.Pointer(&c)))
	return err == nil && c.state == 0
}

// Run puts the product into the stream. workspace has as many bytes as Candidates was asked with.
func (pl *Plan) Run(s *Stream, out, x, w, workspace Ptr, size int) error {
	err := pl.b.c.hot(&lt.matmul, pl.b.handle, pl.desc, pl.alpha, uintptr(w), pl.w, uintptr(x), pl.x, pl.beta,
		uintptr(out), pl.out, uintptr(out), pl.out, pl.how, uintptr(workspace), uintptr(size), s.handle)
	if err != nil {
		return fmt.Errorf("product %+v: %w", pl.product, err)
	}
	return nil
}
