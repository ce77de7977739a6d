package pool

// Pages places runs of pages as a pool does, without memory behind them. A simulation of a server uses it, so that it
// runs out of room when the server does.
type Pages struct{ free freeList }

// NewPages returns a list of free pages.
func NewPages(pages int) *Pages {
	p := &Pages{free: newFreeList(pages)}
	p.free.put(0, pages)
	return p
}

// Take returns the first of consecutive free pages, which are in use until Put. It returns false if there is no such
// run.
func (p *Pages) Take(pages int) (first int, ok bool) { return p.free.take(pages) }

// Put gives a run back.
func (p *Pages) Put(first, pages int) { p.free.put(first, pages) }
