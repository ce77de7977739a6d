// Package pool owns the memory that KV lives in: an arena outside the Go heap, cut into pages.
//
// Accounting is exact: free plus used pages are all pages, always. A Run is owned by whoever
// allocated it until Free. The pool is safe for concurrent use; its lock is a leaf.
package pool

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"grebe/internal/offheap"
)

// ErrFull says that no run of the wanted length is free: evict something and try again.
var ErrFull = errors.New("pool: no free run of that size")

// Run is a number of consecutive pages.
type Run struct {
	Bytes []byte // whole pages
	first int
	pages int
}

// Pool hands out runs of pages.
type Pool struct {
	block *offheap.Block
	page  int
	total int

	mu   sync.Mutex
	free []extent // ascending, never touching
	used int
}

type extent struct{ first, pages int }

// New maps an arena of size bytes, rounded down to whole pages of page bytes (a power of two, at
// least 256). Memory that was never used costs address space only.
func New(size int64, page int) (*Pool, error) {
	if page < 256 || page&(page-1) != 0 {
		return nil, fmt.Errorf("pool: page of %d bytes: want a power of two, at least 256", page)
	}
	total := int(size / int64(page))
	if total < 1 {
		return nil, fmt.Errorf("pool: %d bytes hold no page of %d", size, page)
	}
	b, err := offheap.Alloc(total * page)
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	return &Pool{block: b, page: page, total: total, free: []extent{{0, total}}}, nil
}

// Alloc returns a run for n bytes. The caller owns it and MUST Free it.
func (p *Pool) Alloc(n int) (Run, error) {
	need := max(1, (n+p.page-1)/p.page)
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.free {
		f := &p.free[i]
		if f.pages < need {
			continue
		}
		r := Run{first: f.first, pages: need}
		r.Bytes = p.block.Bytes[r.first*p.page : (r.first+need)*p.page : (r.first+need)*p.page]
		f.first += need
		f.pages -= need
		if f.pages == 0 {
			p.free = slices.Delete(p.free, i, i+1)
		}
		p.used += need
		p.check()
		return r, nil
	}
	return Run{}, ErrFull
}

// Free takes a run back. Nothing may use its bytes afterwards.
func (p *Pool) Free(r Run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, found := slices.BinarySearchFunc(p.free, r.first, func(e extent, first int) int { return e.first - first })
	overlaps := found || i > 0 && p.free[i-1].first+p.free[i-1].pages > r.first ||
		i < len(p.free) && r.first+r.pages > p.free[i].first
	if r.pages <= 0 || overlaps {
		panic(fmt.Sprintf("pool: pages %d to %d freed twice", r.first, r.first+r.pages))
	}
	p.free = slices.Insert(p.free, i, extent{r.first, r.pages})
	if i+1 < len(p.free) && p.free[i].first+p.free[i].pages == p.free[i+1].first {
		p.free[i].pages += p.free[i+1].pages
		p.free = slices.Delete(p.free, i+1, i+2)
	}
	if i > 0 && p.free[i-1].first+p.free[i-1].pages == p.free[i].first {
		p.free[i-1].pages += p.free[i].pages
		p.free = slices.Delete(p.free, i, i+1)
	}
	p.used -= r.pages
	p.check()
}

// Stats are the pool's books, in bytes.
type Stats struct {
	Page  int
	Total int64
	Used  int64
}

// Stats returns the books.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Page: p.page, Total: int64(p.total) * int64(p.page), Used: int64(p.used) * int64(p.page)}
}

// Close unmaps the arena. All runs MUST have been freed.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used != 0 {
		return fmt.Errorf("pool: closed with %d pages in use", p.used)
	}
	p.block.Free()
	p.total, p.free = 0, nil
	return nil
}
