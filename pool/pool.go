// Package pool owns the memory that KV and embeddings live in: an arena of a device's memory, or of the
// host's outside the Go heap, cut into pages.
//
// Two sides share it, KV and Embeddings, divided by a boundary that is a number: SetBoundary says how many pages
// embeddings may own. Both take their pages from one free list and return them to it. So moving the boundary moves no
// data and never touches a page in use (HLM-2 in docs/explain/papers.md). A pool that nobody divides is all KV's. The
// KV of several models can share a pool in the same way: Join adds a side, and SetLimit says how much it may own.
//
// Accounting is exact: free pages and those of all sides are all pages, always. A Run is owned by whoever
// allocated it until Free, on the side that allocated it. The pool is safe for concurrent use; its lock is a leaf.
package pool

import (
	"errors"
	"fmt"
	"math"
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
	side  Side
}

// Pages returns the first page of the run in its pool, and how many there are.
func (r Run) Pages() (first, pages int) { return r.first, r.pages }

// Pool hands out runs of pages to one side. New and Over return the pool as KV sees it; For has the other.
type Pool struct {
	*books
	side Side
}

// books are what all sides share.
type books struct {
	memory compute.Memory
	arena  compute.Block
	page   int
	total  int

	mu    sync.Mutex
	free  freeList
	sides []account // by Side
	begin []uint64  // a bit per page: a run in use begins there
}

// account counts the pages of one side.
type account struct {
	used  int
	limit int  // most pages that it may own
	left  bool // nobody has it: see Join
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
	if total < 1 || total > math.MaxInt32 {
		return nil, fmt.Errorf("pool: %d bytes in pages of %d: want between one and 2³¹ pages", size, page)
	}
	b, err := m.Alloc(total * page)
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	p := &books{memory: m, arena: b, page: page, total: total, free: newFreeList(total),
		begin: make([]uint64, (total+63)/64)}
	p.sides = []account{KV: {limit: total}, Embeddings: {}}
	p.free.put(0, total)
	return &Pool{books: p, side: KV}, nil
}

// Memory returns what the runs are blocks of.
func (p *Pool) Memory() compute.Memory { return p.memory }

// pages returns how many hold n bytes.
func (p *Pool) pages(n int) int { return max(1, (n+p.page-1)/p.page) }

// Alloc returns a run for n bytes; ErrFull when none is free or the side has all that it may. The caller owns it and
// MUST Free it.
func (p *Pool) Alloc(n int) (Run, error) {
	need := p.pages(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	own := &p.sides[p.side]
	if own.used+need > own.limit {
		return Run{}, ErrFull
	}
	first, ok := p.free.take(need)
	if !ok {
		return Run{}, ErrFull
	}
	own.used += need
	r := p.run(first, need)
	p.check()
	return r, nil
}

// run gives pages that are not in the free list to the side.
func (p *Pool) run(first, pages int) Run {
	p.begin[first/64] |= 1 << (first % 64)
	return Run{Block: p.arena.Slice(first*p.page, pages*p.page), first: first, pages: pages, side: p.side}
}

// Free takes a run of the side's back. Nothing may use it afterwards.
func (p *Pool) Free(r Run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release(r)
	p.free.put(r.first, r.pages)
	p.sides[p.side].used -= r.pages
	p.check()
}

// Stats are a side's books, in bytes.
type Stats struct {
	Page  int
	Total int64 // that the side may own
	Used  int64
	Arena int64 // of the whole pool
}

// Stats returns the books.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	own, page := p.sides[p.side], int64(p.page)
	return Stats{Page: p.page, Total: int64(own.limit) * page, Used: int64(own.used) * page, Arena: int64(p.total) * page}
}

// Close frees the arena. All runs MUST have been freed.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if used := p.inUse(); used != 0 {
		return fmt.Errorf("pool: closed with %d pages in use", used)
	}
	if p.total > 0 {
		p.memory.Free(p.arena)
	}
	p.total, p.free = 0, newFreeList(0)
	for i := range p.sides {
		p.sides[i].limit = 0
	}
	return nil
}

// inUse returns the pages of all sides.
func (b *books) inUse() int {
	used := 0
	for i := range b.sides {
		used += b.sides[i].used
	}
	return used
}
