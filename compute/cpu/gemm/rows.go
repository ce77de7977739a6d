package gemm

import (
	"fmt"
	"slices"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
	"grebe/internal/offheap"
)

const (
	tileRows      = 32   // rows of a panel of tiles
	tileStepBytes = 2048 // a panel's step: 32 rows of 64 bytes, which are two tiles
)

// Rows holds m rows of activations of depth k in the form that a level's kernels read.
//
// Where weights are bf16 on AMX: panels of 32 rows, per step of 32 k one row of 32 bf16 after the
// other. Elsewhere: float32 rows, an odd number of cache lines apart, so that the rows that a kernel
// reads side by side do not compete for a set of the cache; or the caller's own rows (Borrow). Depth
// is padded with zeros to steps.
//
// Int8: tiles of 64 k on AMX, bytes in rows with AVX-512 and in plain Go, 16 bits for each value with AVX2,
// and a scale for each row: its largest magnitude becomes 127.
type Rows struct {
	form   form
	m, k   int
	steps  int
	stride int // bytes between rows, or between panels of tiles
	base   unsafe.Pointer
	block  *offheap.Block

	// Of int8:
	kernels *kernels
	scales  []rowScale
	results bool  // floats has room for all values
	floats  *Rows // results of a gated product, before they are quantised; nil until they are wanted
}

// form is how a level's kernels want rows.
type form uint8

const (
	formFloats    form = iota
	formTiles          // of bf16
	formBytes          // of int8
	formByteTiles      // of int8
	formWords          // int8 in 16 bits
)

// depth returns the k of a step.
func (f form) depth() int {
	if f.quantised() {
		return int8Depth
	}
	return stepDepth
}

// stepBytes returns the bytes of one row in one step.
func (f form) stepBytes() int {
	if f == formFloats || f == formWords {
		return 128
	}
	return 64
}

func (f form) tiled() bool { return f == formTiles || f == formByteTiles }

func (f form) quantised() bool { return f >= formBytes }

// NewRows returns empty rows for products with weights of format dt on level. The owner MUST Free
// them.
func NewRows(level feature.Level, dt compute.DType) *Rows {
	k := kernelsFor(level, dt)
	return &Rows{form: k.form, kernels: k, block: &offheap.Block{}}
}

// Reset makes room for m rows of depth k, whose values are undefined until they are set. It
// allocates only to grow.
func (r *Rows) Reset(m, k int) error {
	depth := r.form.depth()
	r.m, r.k, r.steps, r.results = m, k, (k+depth-1)/depth, false
	panels := m
	if r.form.tiled() {
		panels = (m + tileRows - 1) / tileRows
		r.stride = r.steps * tileStepBytes
	} else {
		r.stride = r.steps*r.form.stepBytes() + 64
	}
	if need := panels * r.stride; need > len(r.block.Bytes) {
		r.block.Free()
		block, err := alloc(need)
		if err != nil {
			r.m, r.block = 0, &offheap.Block{}
			return fmt.Errorf("gemm: make room for %d rows of %d: %w", m, k, err)
		}
		r.block = block
	}
	if len(r.block.Bytes) > 0 {
		r.base = unsafe.Pointer(&r.block.Bytes[0])
	}
	if k%depth != 0 {
		for i := range m {
			clear(unsafe.Slice((*byte)(r.at(i, r.steps-1)), r.form.stepBytes()))
		}
	}
	if r.form.quantised() {
		r.scales = slices.Grow(r.scales[:0], m)[:m]
	}
	return nil
}

// ResetResults is Reset for rows that a gated product sets: those of int8 need its results as floats first.
func (r *Rows) ResetResults(m, k int) error {
	if err := r.Reset(m, k); err != nil || !r.form.quantised() {
		return err
	}
	if r.floats == nil {
		r.floats = &Rows{block: &offheap.Block{}}
	}
	if err := r.floats.Reset(m, k); err != nil {
		r.m = 0
		return err
	}
	r.results = true
	return nil
}

// values returns all values of float32 rows, which lie stride bytes apart.
func (r *Rows) values() []float32 {
	if r.m == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(r.base), (r.m-1)*r.stride/4+r.k)
}

// Borrow makes m rows of depth k out of values that start stride apart, without a copy, and reports
// whether it could: rows of tiles, and depths that need padding, have to be filled. The values are
// read until the next Reset or Borrow, and Set writes to them.
func (r *Rows) Borrow(values []float32, stride, m, k int) bool {
	if r.form != formFloats || k%stepDepth != 0 || m == 0 || k == 0 {
		return false
	}
	if stride < k || len(values) < (m-1)*stride+k {
		panic(fmt.Sprintf("gemm: borrow rows %d×%d from %d values, rows %d apart", m, k, len(values), stride))
	}
	r.m, r.k, r.steps, r.stride = m, k, k/stepDepth, stride*4
	r.base = unsafe.Pointer(&values[0])
	return true
}

// Len returns the number of rows.
func (r *Rows) Len() int { return r.m }

// Depth returns the depth of the rows.
func (r *Rows) Depth() int { return r.k }

// Free releases the memory.
func (r *Rows) Free() {
	r.block.Free()
	if r.floats != nil {
		r.floats.Free()
	}
}

// Set writes values of a row from place k on. Different rows, and runs of a row that share no
// value, may be set at the same time. Runs that start and end at multiples of 32 are the fastest. Rows of int8
// are set as a whole: their scale depends on all values.
func (r *Rows) Set(row, k int, values []float32) {
	if uint(row) >= uint(r.m) || k < 0 || k+len(values) > r.k {
		panic(fmt.Sprintf("gemm: set %d values at %d of row %d in rows %d×%d", len(values), k, row, r.m, r.k))
	}
	if len(values) == 0 {
		return
	}
	if r.form.quantised() {
		if k != 0 || len(values) != r.k {
			panic(fmt.Sprintf("gemm: set %d values at %d of a row of %d that is quantised as a whole", len(values),
				k, r.k))
		}
		r.quantise(row, values)
		return
	}
	if r.form == formFloats {
		copy(unsafe.Slice((*float32)(r.at(row, 0)), r.k)[k:], values)
		return
	}
	if head := -k & (stepDepth - 1); head > 0 {
		head = min(head, len(values))
		r.setPart(row, k, values[:head])
		k, values = k+head, values[head:]
	}
	if steps := len(values) / stepDepth; steps > 0 {
		convertRow(steps, unsafe.Pointer(&values[0]), r.at(row, k/stepDepth))
		k, values = k+steps*stepDepth, values[steps*stepDepth:]
	}
	if len(values) > 0 {
		r.setPart(row, k, values)
	}
}

// setPart writes values within one step of a row of tiles.
func (r *Rows) setPart(row, k int, values []float32) {
	dst := (*[stepDepth]uint16)(r.at(row, k/stepDepth))
	for i, v := range values {
		dst[k%stepDepth+i] = toBF16(v)
	}
}

// at returns the address of a step of a row.
func (r *Rows) at(row, step int) unsafe.Pointer {
	if r.form.tiled() {
		return unsafe.Add(r.base, row/tileRows*r.stride+step*tileStepBytes+row%tileRows*64)
	}
	return unsafe.Add(r.base, row*r.stride+step*r.form.stepBytes())
}

// place returns the address of a step of a row, the bytes to the next row and the number of rows
// that follow at this distance, itself included.
func (r *Rows) place(row, step int) (p unsafe.Pointer, stride, run int) {
	if r.form.tiled() {
		return r.at(row, step), 64, tileRows - row%tileRows
	}
	return r.at(row, step), r.stride, r.m - row
}
