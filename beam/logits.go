package beam

import "math"

// Logits are read in blocks of 64. The first pass over a row finds the largest logit of each block; the
// second adds up the exponentials. Selection then looks only into blocks whose largest logit may win.
const blockLen = 64

var negInf = math.Inf(-1)

// blockMaxes sets out to the largest logit of each block of x, whose length is a multiple of blockLen.
// It reports false if x holds a NaN.
func blockMaxes(x, out []float32) bool {
	if len(x) == 0 {
		return true
	}
	return kernel.maxes(&x[0], &out[:len(x)/blockLen][0], len(x)/blockLen)
}

// sumExp returns the sum of exp(x - top) over x, whose length is a multiple of blockLen and whose
// largest logit is top, finite. Its relative error stays below 1e-6; -Inf counts as nothing.
func sumExp(x []float32, top float32) float64 {
	if len(x) == 0 {
		return 0
	}
	return kernel.sumExp(&x[0], len(x)/blockLen, top)
}

// kernels are the two passes for one kind of CPU.
type kernels struct {
	maxes  func(x, out *float32, blocks int) bool
	sumExp func(x *float32, blocks int, top float32) float64
}

var kernel = pick()
