// Package pool owns the memory that KV lives in: an arena of a device's memory, or of the host's
// outside the Go heap, cut into pages.
//
// Accounting is exact: free plus used pages are all pages, always. A Run is owned by whoever
// allocated it until Free. The pool is safe for concurrent use; its lock is a leaf.
package pool

import (
	"errors"
	"fmt"
	"sync"

	"grebe/compute"
)

// ErrFull says that no run of the wanted length is free: evict something and try again.
var ErrFull = errors.New("pool: no free run of that size")

// Run is a number of consecutive pages, whole: a block of the pool's memory.
type Run struct {
	compute.Block
	first int
	pages int
}

// Pool hands out runs of pages.
type Pool struct {
	memory compute.Memory
	arena  compute.Block
	page   int
	total  int

	mu    sync.Mutex
	free  freeList
	used  int
	begin []uint64 // a bit per page: a run in use begins there
}

// New is Over memory of the host's. Memory that was never used costs address space only.
func New(size int64, page int) (*Pool, error) { return Over(compute.NewHostMemory(), size, page) }

// Over takes an arena of size bytes of m, rounded down to whole pages of page bytes (a power of two,
// at least 256).
func Over(m compute.Memory, size int64, page int) (*Pool, error) {
	if page < 256 || page&(page-1) != 0 {
		return nil, fmt.Errorf("pool: page of %d bytes: want a power of two, at least 256", page)
	}
	total := int(size / int64(page))
	if total < 1 {
		return nil, fmt.Errorf("pool: %d bytes hold no page of %d", size, page)
	}
	b, err := m.Alloc(total * page)
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	p := &Pool{memory: m, arena: b, page: page, total: total, free: newFreeList(), begin: make([]uint64, (total+63)/64)}
	p.free.put(0, total)
	return p, nil
}

// Memory returns what the runs are blocks of.
func (p *Pool) Memory() compute.Memory { return p.memory }

// Alloc returns a run for n bytes. The caller owns it and MUST Free it.
func (p *Pool) Alloc(n int) (Run, error) {
	need := max(1, (n+p.page-1)/p.page)
	p.mu.Lock()
	defer p.mu.Unlock()
	first, ok := p.free.take(need)
	if !ok {
		return Run{}, ErrFull
	}
	p.used += need
	p.begin[first/64] |= 1 << (first % 64)
	p.check()
	return Run{Block: p.arena.Slice(first*p.page, need*p.page), first: first, pages: need}, nil
}

// Free takes a run back. Nothing may use it afterwards.
func (p *Pool) Free(r Run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.pages <= 0 || p.begin[r.first/64]>>(r.first%64)&1 == 0 {
		panic(fmt.Sprintf("pool: pages %d to %d freed twice", r.first, r.first+r.pages))
	}
	p.begin[r.first/64] &^= 1 << (r.first % 64)
	p.free.put(r.first, r.pages)
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

// Close frees the arena. All runs MUST have been freed.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used != 0 {
		return fmt.Errorf("pool: closed with %d pages in use", p.used)
	}
	if p.total > 0 {
		p.memory.Free(p.arena)
	}
	p.total, p.free = 0, newFreeList()
	return nil
}
