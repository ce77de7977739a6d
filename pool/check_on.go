//go:build invariants

package pool

import "fmt"

// check goes over the books after every operation. Called with the lock held.
func (p *Pool) check() {
	free, end := 0, -1
	for _, e := range p.free {
		if e.pages <= 0 || e.first <= end || e.first+e.pages > p.total {
			panic(fmt.Sprintf("pool: free list out of order: %v", p.free))
		}
		free += e.pages
		end = e.first + e.pages // the next extent must not even touch this one
	}
	if free+p.used != p.total {
		panic(fmt.Sprintf("pool: %d free and %d used of %d pages", free, p.used, p.total))
	}
}
