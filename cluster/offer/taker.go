package offer

import (
	"context"
	"sync"
	"time"

	"grebe/cluster/peer"
	"grebe/kv"
	"grebe/plan"
)

// Taker fetches offered blocks into a cache.
type Taker struct {
	cache  Cache
	space  peer.Space
	fetch  Fetch
	erased func() uint64

	wake chan struct{} // holds a value if blocks wait

	mu    sync.Mutex
	queue []plan.Key
	wait  map[plan.Key]waiting

	publish sync.Mutex // held while what was fetched is checked and published
}

// Cache is a *reuse.Cache.
type Cache interface {
	Store() *kv.Store
	ExpectOffered(kind plan.Kind, key plan.Key, length int, digest uint64) (a *kv.Arrival, first bool)
}

// Fetch is the method of peer.Client.
type Fetch func(ctx context.Context, node string, g *peer.Get, place peer.Place) error

// waiting is a block that waits to be fetched.
type waiting struct {
	Block
	node  string
	shown uint64
}

const (
	mostWaiting = 4096
	atOnce      = 64 // blocks of one GET
	fetchTime   = 5 * time.Second
)

// NewTaker returns a Taker for a cache, whose KV belongs to a space. erased returns the last record of the catalog that
// deleted someone. Run runs it.
func NewTaker(cache Cache, s peer.Space, fetch Fetch, erased func() uint64) *Taker {
	return &Taker{cache: cache, space: s, fetch: fetch, erased: erased, wake: make(chan struct{}, 1),
		wait: map[plan.Key]waiting{}}
}

// Space returns what the cache's KV belongs to.
func (t *Taker) Space() peer.Space { return t.space }

// Offer notes blocks to fetch, if there is room for all of them. A later offer of a block replaces an earlier one.
func (t *Taker) Offer(o *Offer) (busy bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue)+len(o.Blocks) > mostWaiting {
		return true
	}
	for _, b := range o.Blocks {
		if b.Tokens < 1 || b.Tokens > kv.MostBelow && b.Digest != 0 { // the others have more than metadata can say
			continue
		}
		if _, ok := t.wait[b.Key]; !ok {
			t.queue = append(t.queue, b.Key)
		}
		t.wait[b.Key] = waiting{b, o.Node, o.Shown}
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
	return false
}

// next returns the first blocks that wait, all of one node.
func (t *Taker) next() (out []waiting) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, key := range t.queue {
		w := t.wait[key]
		if len(out) == atOnce || len(out) > 0 && w.node != out[0].node {
			break
		}
		out = append(out, w)
		delete(t.wait, key)
		n++
	}
	if t.queue = t.queue[n:]; len(t.queue) == 0 {
		t.queue = nil
	}
	return out
}

// Run fetches until ctx ends. It rests after each GET for as long as that took.
func (t *Taker) Run(ctx context.Context) {
	for ctx.Err() == nil {
		list := t.next()
		if len(list) == 0 {
			select {
			case <-t.wake:
			case <-ctx.Done():
			}
			continue
		}
		began := time.Now()
		t.take(ctx, list)
		pause(ctx, time.Since(began))
	}
}

// Barrier returns when no user is being published who was checked before the call. Deletions that do not know keys call
// it first.
func (t *Taker) Barrier() {
	t.publish.Lock()
	defer t.publish.Unlock()
}

// take fetches blocks of one node.
func (t *Taker) take(ctx context.Context, list []waiting) {
	g := &peer.Get{Space: t.space}
	var arrivals []*kv.Arrival
	var from []*waiting
	for i := range list {
		w := &list[i]
		if t.held(w) {
			continue
		}
		a, first := t.cache.ExpectOffered(w.kind(), w.Key, w.Tokens, w.Digest)
		if !first {
			continue
		}
		if !t.may(w) { // after Expect: a later deletion marks the arrival
			a.End(false)
			continue
		}
		arrivals, from = append(arrivals, a), append(from, w)
		g.Wants = append(g.Wants, peer.Want{Key: w.Key, Tokens: w.tokens(), Digest: w.Digest})
	}
	if len(arrivals) == 0 {
		return
	}
	within, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	// The statuses say what an error means.
	_ = t.fetch(within, list[0].node, g, func(i int, meta []byte, n int64) ([][]byte, error) {
		return arrivals[i].Place(meta, n)
	})
	t.publish.Lock()
	defer t.publish.Unlock()
	for i, a := range arrivals {
		a.End(g.Wants[i].Status == peer.Hit && t.may(from[i]))
	}
}

// tokens is what a GET asks for. The key of an item says how many.
func (w *waiting) tokens() uint32 {
	if w.Digest == 0 {
		return 0
	}
	return uint32(w.Tokens)
}

// may reports whether a block is of nobody who was deleted.
func (t *Taker) may(w *waiting) bool { return w.Digest == 0 || w.shown >= t.erased() }

// held reports whether the cache has a block.
func (t *Taker) held(w *waiting) bool {
	e, ok := t.cache.Store().Lookup(w.Key)
	return ok && e.Tier != plan.Missing && (w.Digest == 0 || int(e.Tokens) == w.Tokens && e.Digest == w.Digest)
}
