package pool

import "fmt"

// Join returns the pool as a further side sees it, which may own nothing until SetLimit. The caller MUST Leave.
func (p *Pool) Join() *Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.sides {
		if p.sides[i].left {
			p.sides[i].left = false
			return &Pool{books: p.books, side: Side(i)}
		}
	}
	p.sides = append(p.sides, account{})
	return &Pool{books: p.books, side: Side(len(p.sides) - 1)}
}

// Leave gives up a side that Join returned. All its runs MUST have been freed. The memory stays, for the other sides.
func (p *Pool) Leave() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := &p.sides[p.side]
	if own.used != 0 {
		return fmt.Errorf("pool: left with %d pages in use", own.used)
	}
	*own = account{left: true}
	p.check()
	return nil
}

// SetLimit lets the side own up to bytes of the pool, rounded down to whole pages. It takes nothing from anybody: a
// side that owns more gets ErrFull until it has freed enough, and Over says how much that is. The limits of all sides
// may be more than the pool has: an Alloc within a limit then fails when no page is free.
func (p *Pool) SetLimit(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sides[p.side].limit = int(min(max(bytes, 0)/int64(p.page), int64(p.total)))
	p.check()
}
