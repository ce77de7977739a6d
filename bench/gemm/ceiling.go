package gemm

import (
	"sync"
	"time"

	"grebe/compute"
)

// ceiling measures what cores can do at best: multiply-adds of float32 that touch no memory.
type ceiling struct{ threads int }

const ceilingTurns = 100_000 // of the loop: about 2 ms

// newCeiling returns nil where there is no such loop: for other formats and CPUs.
func newCeiling(dt compute.DType, threads int) *ceiling {
	if dt != compute.F32 || !hasAVX512() {
		return nil
	}
	return &ceiling{threads}
}

func hasAVX512() bool { return levelName() == "avx512" || levelName() == "amx" }

// rate returns FLOP/s of all threads together, each over its own time.
func (c *ceiling) rate() float64 {
	rates := make([]float64, c.threads)
	var wg sync.WaitGroup
	for i := range rates {
		wg.Go(func() {
			start := time.Now()
			multiplyAdd(ceilingTurns)
			rates[i] = ceilingTurns * turnFLOPs / time.Since(start).Seconds()
		})
	}
	wg.Wait()
	sum := 0.0
	for _, r := range rates {
		sum += r
	}
	return sum
}
