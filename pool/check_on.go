//go:build invariants

package pool

import (
	"fmt"
	"maps"
	"slices"
)

// check goes over the books after every operation. Called with the lock held.
func (p *Pool) check() {
	free, end, listed := 0, -1, 0
	for _, first := range slices.Sorted(maps.Keys(p.free.byFirst)) {
		e := p.free.byFirst[first]
		if e.first != first || e.pages <= 0 || first <= end || first+e.pages > p.total ||
			p.free.byEnd[first+e.pages] != e || p.free.classes[class(e.pages)][e.at] != e {
			panic(fmt.Sprintf("pool: free extent of %d pages at %d is not where it should be", e.pages, first))
		}
		free += e.pages
		end = first + e.pages // the next extent must not even touch this one
	}
	for _, c := range p.free.classes {
		listed += len(c)
	}
	if free+p.used != p.total || listed != len(p.free.byFirst) || listed != len(p.free.byEnd) {
		panic(fmt.Sprintf("pool: %d free and %d used of %d pages, %d extents listed", free, p.used, p.total, listed))
	}
}
