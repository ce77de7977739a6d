package embed

import (
	"sync"
	"sync/atomic"

	"grebe/pool"
)

// gate knows when nobody reads a slab any more that left the cache. Readers count themselves in and out under the
// present epoch; a slab is free when all who came in before it left have gone out. Nobody waits.
type gate struct {
	epoch  atomic.Uint32
	inside [2][stripes]counter // by parity of the epoch
	limbo  atomic.Bool         // some slab waits

	mu      sync.Mutex
	waiting []pool.Run // for readers of the epoch before
	next    []pool.Run // for those of the present one
}

// stripes keep readers from sharing cache lines.
const stripes = 8

func (g *gate) enter(stripe int) uint32 {
	for {
		e := g.epoch.Load()
		g.inside[e&1][stripe&(stripes-1)].Add(1)
		if g.epoch.Load() == e {
			return e
		}
		g.inside[e&1][stripe&(stripes-1)].Add(-1)
	}
}

func (g *gate) leave(e uint32, stripe int, p *pool.Pool) {
	g.inside[e&1][stripe&(stripes-1)].Add(-1)
	if g.limbo.Load() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.advance(p)
	}
}

// retire frees runs as soon as nobody who is inside can see them.
func (g *gate) retire(runs []pool.Run, p *pool.Pool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next = append(g.next, runs...)
	g.limbo.Store(true)
	g.advance(p)
}

// advance frees what it can. The caller holds mu.
func (g *gate) advance(p *pool.Pool) {
	for g.empty(g.epoch.Load() - 1) { // nobody may be left there when it becomes the next epoch
		for _, r := range g.waiting {
			p.Free(r)
		}
		g.waiting, g.next = g.next, g.waiting[:0]
		if len(g.waiting) == 0 {
			g.limbo.Store(false)
			return
		}
		g.epoch.Add(1)
	}
}

func (g *gate) empty(epoch uint32) bool {
	var n int64
	for i := range g.inside[epoch&1] {
		n += g.inside[epoch&1][i].Load()
	}
	return n == 0
}

// close frees what waits; nobody is inside.
func (g *gate) close(p *pool.Pool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range append(g.waiting, g.next...) {
		p.Free(r)
	}
	g.waiting, g.next = nil, nil
}
