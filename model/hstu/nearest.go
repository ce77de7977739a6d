package hstu

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"grebe/compute"
	"grebe/internal/contain"
)

// retrieval finds the best items for a user on a device that retrieves, page by page: the device knows nothing of
// eligible, so a page may have items that are left out, and the next page continues behind the last one.
type retrieval struct {
	x        *index
	user     []float32
	n        int
	without  []int32
	eligible func(item int32) bool // nil: all are

	found  []Found
	broken int

	allowed []uint32 // of eligible; nil until it is worth asking for all items
	asked   int      // items that eligible was asked for
}

func (r *retrieval) run(ctx context.Context) error {
	q := compute.Query{Vector: r.user, Without: r.within(), K: min(compute.MaxHits, r.n)}
	if r.eligible != nil { // nearly all are, most of the time
		q.K = min(compute.MaxHits, r.n+r.n/8+16)
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		got, err := r.x.asked.ask(ctx, q)
		if err != nil {
			return fmt.Errorf("hstu: %w", err)
		}
		if r.eligible != nil && r.allowed == nil && got.Broken > 0 { // which of these are eligible?
			if err := r.allow(ctx); err != nil {
				return err
			}
			q.Allowed, q.After, r.found = r.allowed, nil, nil
			continue
		}
		r.broken = got.Broken
		r.take(got.Hits)
		if len(r.found) == r.n || len(got.Hits) < q.K {
			return nil
		}
		q.After, q.K = &got.Hits[len(got.Hits)-1], compute.MaxHits
		if r.allowed == nil && r.rare() {
			if err := r.allow(ctx); err != nil {
				return err
			}
			q.Allowed = r.allowed
		}
	}
}

// within returns the items to leave out that there are.
func (r *retrieval) within() []int32 {
	end, _ := slices.BinarySearch(r.without, int32(r.x.items))
	return r.without[:end]
}

// take takes the hits that are eligible, as many as are wanted.
func (r *retrieval) take(hits []compute.Hit) {
	for _, h := range hits {
		if len(r.found) == r.n {
			return
		}
		if r.eligible != nil && r.allowed == nil {
			if r.asked++; !r.eligible(h.Item) {
				continue
			}
		}
		r.found = append(r.found, Found{h.Item, h.Score})
	}
}

// rare reports whether so few items are eligible that pages would ask for more than an eighth of all of them, which
// takes longer than to ask for all at once on all cores.
func (r *retrieval) rare() bool {
	if r.eligible == nil {
		return false
	}
	more := float64(r.n-len(r.found)) * float64(r.asked) / max(0.5, float64(len(r.found)))
	return more > float64(r.x.items)/8
}

// allow asks eligible for all items.
func (r *retrieval) allow(ctx context.Context) error {
	r.allowed = make([]uint32, (r.x.items+31)/32)
	parts := runtime.GOMAXPROCS(0)
	var wg contain.Group
	for p := range parts {
		wg.Go(func() {
			for w := len(r.allowed) * p / parts; w < len(r.allowed)*(p+1)/parts && ctx.Err() == nil; w++ {
				for i := 32 * w; i < min(32*w+32, r.x.items); i++ {
					if r.eligible(int32(i)) {
						r.allowed[w] |= 1 << (i % 32)
					}
				}
			}
		})
	}
	wg.Wait()
	return ctx.Err()
}

// company has queries of requests at the same time share a search of the device: the vectors are read once for all
// that waited while the search before was running.
type company struct {
	vectors compute.Vectors
	turn    chan struct{} // held by who searches
	mu      sync.Mutex
	waiting []*asking
}

// asking is a query that waits. Who searches owns it until done is closed.
type asking struct {
	query compute.Query
	err   error
	done  chan struct{}
}

func newCompany(v compute.Vectors) *company {
	return &company{vectors: v, turn: make(chan struct{}, 1)}
}

// ask returns q with its results. It ends with ctx; then the device may still read the query's slices.
func (c *company) ask(ctx context.Context, q compute.Query) (compute.Query, error) {
	a := &asking{query: q, done: make(chan struct{})}
	c.mu.Lock()
	c.waiting = append(c.waiting, a)
	c.mu.Unlock()
	for {
		select {
		case <-a.done:
			return a.query, a.err
		case <-ctx.Done():
			c.leave(a)
			return q, ctx.Err()
		case c.turn <- struct{}{}:
			c.search()
		}
	}
}

// leave takes back a query that nobody searches for yet.
func (c *company) leave(a *asking) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.waiting, a); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
}

// search answers the queries that have waited longest, and gives the turn back.
func (c *company) search() {
	defer func() { <-c.turn }()
	c.mu.Lock()
	some := slices.Clone(c.waiting[:min(len(c.waiting), compute.MaxQueries)])
	c.waiting = slices.Delete(c.waiting, 0, len(some))
	c.mu.Unlock()
	if len(some) == 0 {
		return
	}
	queries := make([]compute.Query, len(some))
	for i, a := range some {
		queries[i] = a.query
	}
	err := c.vectors.Best(queries)
	for i, a := range some {
		a.query, a.err = queries[i], err
		close(a.done)
	}
}
