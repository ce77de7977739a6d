package gemm

import (
	"fmt"
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
type Rows struct {
	tiles  bool
	m, k   int
	steps  int
	stride int // bytes between rows, or between panels of tiles
	base   unsafe.Pointer
	block  *offheap.Block
}

// NewRows returns empty rows for products with weights of format dt on level. The owner MUST Free
// them.
func NewRows(level feature.Level, dt compute.DType) *Rows {
	return &Rows{tiles: kernelsFor(level, dt).tiles, block: &offheap.Block{}}
}

// Reset makes room for m rows of depth k, whose values are undefined until they are set. It
// allocates only to grow.
func (r *Rows) Reset(m, k int) error {
	r.m, r.k, r.steps = m, k, (k+stepDepth-1)/stepDepth
	panels := m
	if r.tiles {
		panels = (m + tileRows - 1) / tileRows
		r.stride = r.steps * tileStepBytes
	} else {
		r.stride = r.steps*stepDepth*4 + 64
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
	if k%stepDepth != 0 {
		for i := range m {
			clear(unsafe.Slice((*byte)(r.at(i, r.steps-1)), r.rowStepBytes()))
		}
	}
	return nil
}

// Borrow makes m rows of depth k out of values that start stride apart, without a copy, and reports
// whether it could: rows of tiles, and depths that need padding, have to be filled. The values are
// read until the next Reset or Borrow, and Set writes to them.
func (r *Rows) Borrow(values []float32, stride, m, k int) bool {
	if r.tiles || k%stepDepth != 0 || m == 0 || k == 0 {
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
func (r *Rows) Free() { r.block.Free() }

// Set writes values of a row from place k on. Different rows, and runs of a row that share no
// value, may be set at the same time. Runs that start and end at multiples of 32 are the fastest.
func (r *Rows) Set(row, k int, values []float32) {
	if uint(row) >= uint(r.m) || k < 0 || k+len(values) > r.k {
		panic(fmt.Sprintf("gemm: set %d values at %d of row %d in rows %d×%d", len(values), k, row, r.m, r.k))
	}
	if len(values) == 0 {
		return
	}
	if !r.tiles {
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

// rowStepBytes returns the bytes of one row in one step.
func (r *Rows) rowStepBytes() int {
	if r.tiles {
		return tileStepBytes / tileRows
	}
	return stepDepth * 4
}

// at returns the address of a step of a row.
func (r *Rows) at(row, step int) unsafe.Pointer {
	if r.tiles {
		return unsafe.Add(r.base, row/tileRows*r.stride+step*tileStepBytes+row%tileRows*64)
	}
	return unsafe.Add(r.base, row*r.stride+step*stepDepth*4)
}

// place returns the address of a step of a row, the bytes to the next row and the number of rows
// that follow at this distance, itself included.
func (r *Rows) place(row, step int) (p unsafe.Pointer, stride, run int) {
	if r.tiles {
		return r.at(row, step), 64, tileRows - row%tileRows
	}
	return r.at(row, step), r.stride, r.m - row
}
