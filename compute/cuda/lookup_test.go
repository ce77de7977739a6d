package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"grebe/compute/cuda/rows"
	"grebe/evict"
)

// BenchmarkLookup times what the host does for a batch of 15,000 events whose rows are all cached: 500,000 of a table.
func BenchmarkLookup(b *testing.B) {
	const cached = 500_000
	for _, all := range []int{5_000_000, 50_000_000} {
		b.Run(fmt.Sprintf("rows=%d", all), func(b *testing.B) {
			c := &rowCache{table: all, width: 128, stage: rowStage, flights: map[*lookup]bool{}}
			c.dir = evict.NewDirectory(all, 2*cached/1024, 1024, rowMode)
			for {
				if _, ok := c.dir.Open(); !ok {
					break
				}
			}
			r := rand.New(rand.NewPCG(1, 2))
			hot := make([]int32, cached)
			for i := range hot {
				hot[i] = int32(r.IntN(all))
				if !c.dir.Use(uint32(hot[i])) {
					c.dir.Place(uint32(hot[i]))
				}
			}
			l := &lookup{of: c, plan: rows.NewPlan(nil)}
			lists := make([][]int32, 64)
			for i := range lists {
				for len(lists[i]) < 15_000 {
					row := hot[r.IntN(cached)]
					if _, ok := c.dir.Slot(uint32(row)); ok {
						lists[i] = append(lists[i], row)
					}
				}
			}
			b.ResetTimer()
			for i := range b.N {
				l.distinct(lists[i%len(lists)])
				if l.lacks() {
					b.Fatal("not all rows are cached")
				}
				l.decide()
			}
		})
	}
}
