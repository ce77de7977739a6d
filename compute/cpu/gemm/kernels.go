package gemm

import (
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
)

// kernels is what one level does for one format of weights, and the cut that suits it.
type kernels struct {
	form      form    // of rows
	unsigned  bool    // int8 weights are stored 128 higher
	pairs     bool    // int8 weights are stored by pairs of k, not by fours
	direct    bool    // block takes results to the output itself where a part says so
	panelRows int     // rows that a kernel holds in registers
	blockRows int     // rows of a block at most: blockRows × outer stays in L2
	leastRows int     // rows to which blocks may shrink, so that each thread has its own
	outer     int     // steps
	inner     int     // steps of a block of weights
	reload    float64 // time to bring a block of rows into L2, in times of its product with a pair of panels

	// how rows are packed before they are multiplied; nil: not at all
	pack      func(steps int, src, offsets, dst unsafe.Pointer)
	block     func(pt *part)
	store     func(rows int, sums, bias, dst unsafe.Pointer, stride int)
	add       func(rows int, sums, bias, dst unsafe.Pointer, stride int)
	gated     func(rows int, gate, up, bias, dst unsafe.Pointer, stride int)
	gatedBF16 func(rows int, gate, up, bias, dst unsafe.Pointer, stride int)

	// For int8 only. dequantise makes a panel's integer sums floats, in place; scales has those of its columns, rows
	// those of its rows. largest sets most to the bits of the largest magnitude of 16·blocks values; narrow
	// sets 64·steps values to src·inverse, rounded, and sum to their sum.
	dequantise func(rows int, sums, scales, of unsafe.Pointer)
	largest    func(blocks int, src, most unsafe.Pointer)
	narrow     func(steps int, src, inverse, dst unsafe.Pointer, stride int, sum unsafe.Pointer)
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
	switch dt {
	case compute.F32:
		return &plainF32
	case compute.INT8:
		return &plainInt8
	}
	return &plainBF16
}
