package gemm

import (
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
)

// kernels is what one level does for one format of weights, and the cut that suits it.
type kernels struct {
	tiles     bool    // rows are tiles of bf16
	direct    bool    // block takes results to the output itself where a part says so
	panelRows int     // rows that a kernel holds in registers
	blockRows int     // rows of a block at most: blockRows × outer stays in L2
	leastRows int     // rows to which blocks may shrink, so that each thread has its own
	outer     int     // steps
	inner     int     // steps of a block of weights
	reload    float64 // time to bring a block of rows into L2, in times of its product with a pair of panels

	pack      func(steps int, src, offsets, dst unsafe.Pointer) // how rows are packed before they are multiplied; nil: not at all
	block     func(pt *part)
	store     func(rows int, sums, bias, dst unsafe.Pointer, stride int)
	add       func(rows int, sums, bias, dst unsafe.Pointer, stride int)
	gated     func(rows int, gate, up, bias, dst unsafe.Pointer, stride int)
	gatedBF16 func(rows int, gate, up, bias, dst unsafe.Pointer, stride int)
}

// Best returns the highest level that this machine can run.
func Best() feature.Level { return feature.Best() }

// kernelsFor returns the kernels of the highest level up to level that this build has.
func kernelsFor(level feature.Level, dt compute.DType) *kernels {
	if level > feature.Best() {
		level = feature.Best()
	}
	if k := assembly(level, dt); k != nil {
		return k
	}
	if dt == compute.F32 {
		return &plainF32
	}
	return &plainBF16
}
