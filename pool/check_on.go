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
	used := b.used[KV] + b.used[Embeddings]
	if free+used != b.total || listed != extents || b.used[KV] < 0 || b.used[Embeddings] < 0 {
		panic(fmt.Sprintf("pool: %d free and %d + %d used of %d pages, %d extents of which %d listed",
			free, b.used[KV], b.used[Embeddings], b.total, extents, listed))
	}
	if b.boundary < 0 || b.boundary > b.total {
		panic(fmt.Sprintf("pool: boundary at %d of %d pages", b.boundary, b.total))
	}
}
