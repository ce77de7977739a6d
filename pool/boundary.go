package pool

import "fmt"

// Side is an owner of pages. Sides that Join adds have no name.
type Side uint16

const (
	KV         Side = iota
	Embeddings      // what lies on this side of the boundary
)

// For returns the pool as one side sees it: its runs are that side's, its books are that side's. The memory is the
// same. Close any one of them, once.
func (p *Pool) For(s Side) *Pool { return &Pool{books: p.books, side: s} }

// SetBoundary lets embeddings own up to share of the pages and KV the others, and returns the pages of the
// embeddings' part. It moves no data and takes nothing from anybody: a side that owns more than its part gets
// ErrFull until it has freed enough, and Over says how much that is. Until the first call KV may own all.
func (p *Pool) SetBoundary(share float64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	boundary := int(min(max(share, 0), 1) * float64(p.total))
	p.sides[KV].limit, p.sides[Embeddings].limit = p.total-boundary, boundary
	p.check()
	return boundary
}

// Boundary returns the share of the pages that embeddings may own.
func (p *Pool) Boundary() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return float64(p.sides[Embeddings].limit) / float64(max(p.total, 1))
}

// Over returns the bytes that the side owns beyond its part. It owes them to the other sides.
func (p *Pool) Over() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.sides[p.side]
	return int64(max(own.used-own.limit, 0)) * int64(p.page)
}

// AllocRuns appends up to count runs of n bytes each: as many as the side may have and as there are, from as few
// extents as can be. It takes the lock once. The caller owns the runs and MUST free them.
func (p *Pool) AllocRuns(dst []Run, n, count int) []Run {
	need := p.pages(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	own := &p.sides[p.side]
	count = min(count, (own.limit-own.used)/need)
	for count > 0 {
		first, ok := p.free.find(need)
		if !ok {
			break
		}
		here := min(count, int(p.free.length[first])/need)
		p.free.cut(first, here*need)
		for range here {
			dst = append(dst, p.run(first, need))
			first += need
		}
		own.used += here * need
		count -= here
	}
	p.check()
	return dst
}

// FreeRuns is Free of many runs. It takes the lock once, and joins runs that follow each other first.
func (p *Pool) FreeRuns(runs []Run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := 0; i < len(runs); {
		first, pages := runs[i].first, 0
		for i < len(runs) && runs[i].first == first+pages {
			p.release(runs[i])
			pages += runs[i].pages
			i++
		}
		p.free.put(first, pages)
		p.sides[p.side].used -= pages
	}
	p.check()
}

// release marks a run of the side as free. The caller puts its pages into the list.
func (p *Pool) release(r Run) {
	if r.pages <= 0 || p.begin[r.first/64]>>(r.first%64)&1 == 0 {
		panic(fmt.Sprintf("pool: pages %d to %d freed twice", r.first, r.first+r.pages))
	}
	if r.side != p.side {
		panic(fmt.Sprintf("pool: pages %d to %d freed by a side that does not own them", r.first, r.first+r.pages))
	}
	p.begin[r.first/64] &^= 1 << (r.first % 64)
}
