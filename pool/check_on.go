//go:build invariants

package pool

import "fmt"

// check goes over the books after every operation. Called with the lock held.
func (b *books) check() {
	free, extents, joined := 0, 0, false
	for page := 0; page < b.total; {
		if !b.free.isEnd(page) {
			page, joined = page+1, false
			continue
		}
		n := int(b.free.length[page])
		c := class(n)
		if joined || n <= 0 || page+n > b.total || int(b.free.length[page+n-1]) != n || !b.free.isEnd(page+n-1) ||
			int(b.free.at[page]) >= len(b.free.classes[c]) || int(b.free.classes[c][b.free.at[page]]) != page {
			panic(fmt.Sprintf("pool: free extent of %d pages at %d is not where it should be", n, page))
		}
		free, extents, joined = free+n, extents+1, true // the next extent must not even touch this one
		page += n
	}
	listed := 0
	for _, c := range b.free.classes {
		listed += len(c)
	}
	for i, a := range b.sides {
		if a.used < 0 || a.limit < 0 || a.limit > b.total || a.left && (a.used > 0 || a.limit > 0) {
			panic(fmt.Sprintf("pool: side %d has %d pages and may own %d of %d", i, a.used, a.limit, b.total))
		}
	}
	if used := b.inUse(); free+used != b.total || listed != extents {
		panic(fmt.Sprintf("pool: %d free and %d used of %d pages, %d extents of which %d listed", free, used, b.total,
			extents, listed))
	}
}
