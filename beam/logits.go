package beam

import (
	"math"
	"slices"
)

// Logits are read once, in blocks of 64, each for its largest logit and the sum of its exponentials
// relative to that. The normaliser follows from these, and selection looks only into blocks whose largest
// logit may win.
const (
	blockLen = 64
	chunkLen = 16 // blocks whose logits are summed while they are still close
	groupLen = 8  // blocks that are weighed together
)

var negInf = math.Inf(-1)

// scan sets maxes and sums to the largest logit of each block of x and the sum of exp(logit - largest);
// the length of x is a multiple of blockLen. It reports false if x holds a NaN. A block of -Inf has
// some sum, and no weight.
func scan(x, maxes, sums []float32) bool {
	for len(x) > 0 {
		n := min(chunkLen, len(x)/blockLen)
		if !kernel.maxes(&x[0], &maxes[:n][0], n) {
			return false
		}
		kernel.sums(&x[0], &maxes[0], &sums[:n][0], n)
		x, maxes, sums = x[n*blockLen:], maxes[n:], sums[n:]
	}
	return true
}

// logSum returns the log of the sum of the exponentials of all logits of the blocks, of which top is the
// largest, finite. Its error stays below 1e-6. It uses up to groupLen-1 places behind the blocks.
func logSum(maxes, sums []float32, top float32) float64 {
	n := len(maxes)
	if n == 1 {
		return float64(top) + math.Log(float64(sums[0]))
	}
	groups := (n + groupLen - 1) / groupLen
	maxes, sums = maxes[:groups*groupLen], sums[:groups*groupLen]
	for i := n; i < len(maxes); i++ {
		maxes[i], sums[i] = float32(negInf), 0
	}
	return float64(top) + math.Log(kernel.weigh(&maxes[0], &sums[0], groups, top))
}

// kernels do the work for one kind of CPU.
type kernels struct {
	maxes func(x, maxes *float32, blocks int) bool // false: a NaN
	sums  func(x, maxes, sums *float32, blocks int)
	weigh func(maxes, sums *float32, groups int, top float32) float64 // the sum of sums·exp(maxes - top)
}

var kernel = pick()

// padded copies logits to dst, up to a whole number of blocks.
func padded(dst, x []float32) []float32 {
	n := (len(x) + blockLen - 1) / blockLen * blockLen
	dst = slices.Grow(dst[:0], n)[:n]
	for i := copy(dst, x); i < n; i++ {
		dst[i] = float32(negInf)
	}
	return dst
}
