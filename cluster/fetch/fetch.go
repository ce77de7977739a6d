// Package fetch brings KV from other nodes. A Fetcher is the reuse.Peers of one model. It knows from a Directory which
// nodes hold an entry, and asks them through a peer.Client: one GET per node and request, with a second node for
// entries that are late.
//
// Entries arrive straight in the memory of this node's store. The bytes that are asked for at a time are bounded:
// entries beyond the bound are not asked for, and are computed.
package fetch

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grebe/cluster/peer"
	"grebe/plan"
	"grebe/residency"
	"grebe/reuse"
)

// Holders are other nodes that hold an entry. First is empty if there is none. Second is empty if there is no second
// one.
type Holders struct{ First, Second string }

// Directory knows which other nodes of the same space hold which entries. It never names this node, nor one that is
// gone. Its methods may be called concurrently, for each request.
type Directory interface {
	// Items sets at[i] to the holders of keys[i].
	Items(keys []plan.Key, at []Holders)
	// User returns the nodes that hold the most leading tokens of a user, and their number.
	User(key plan.Key, tokens []int32) (at Holders, n int)
	// Epoch returns the epoch of the placement map.
	Epoch() uint64
}

// Config configures a Fetcher.
type Config struct {
	Client    *peer.Client
	Space     peer.Space // of the model's KV
	Directory Directory
	Metrics   *Metrics // nil: nothing is reported
	MaxBytes  int64    // of entries that are asked for at a time; default 256 MiB
}

// Fetcher is a reuse.Peers.
type Fetcher struct {
	Config
	asked   atomic.Int64 // bytes of entries that are being fetched
	damaged atomic.Int64
	scratch sync.Pool // of *request
	price   price
}

// New returns a Fetcher.
func New(c Config) *Fetcher {
	if c.MaxBytes == 0 {
		c.MaxBytes = 256 << 20
	}
	f := &Fetcher{Config: c}
	f.scratch.New = func() any { return &request{} }
	return f
}

// request is a call of Items or Fetch.
type request struct {
	keys  []plan.Key
	index []int // of the keys or wants
	at    []Holders
	gets  []get
	slow  []stalled
}

// stalled says whether a node has stalled.
type stalled struct {
	node string
	slow bool
}

// get is what one node is asked for.
type get struct {
	peer.Get
	node  string
	index []int // of the request's wants
	votes int   // for Second
	bytes int64
}

// Items implements reuse.Peers.
func (f *Fetcher) Items(keys []plan.Key, tiers []plan.Tier) (n int) {
	r := f.scratch.Get().(*request)
	defer f.scratch.Put(r)
	r.keys, r.index = r.keys[:0], r.index[:0]
	for i, t := range tiers {
		if t == plan.Missing {
			r.keys, r.index = append(r.keys, keys[i]), append(r.index, i)
		}
	}
	r.look(f)
	for k, i := range r.index {
		if r.at[k].First != "" {
			tiers[i] = plan.Peer
			n++
		}
	}
	return n
}

// look asks the directory for the holders of r.keys.
func (r *request) look(f *Fetcher) {
	if len(r.keys) == 0 {
		return
	}
	r.at = slices.Grow(r.at[:0], len(r.keys))[:len(r.keys)]
	clear(r.at)
	f.Directory.Items(r.keys, r.at)
	r.slow = r.slow[:0]
	for k := range r.at {
		r.avoid(f, &r.at[k])
	}
}

// avoid leaves out a holder that has stalled. Without it, each request would wait for that node until its budget is
// over. The client asks the node again after a second.
func (r *request) avoid(f *Fetcher, at *Holders) {
	if at.First == "" || !r.stalls(f, at.First) {
		return
	}
	at.First, at.Second = at.Second, ""
	if at.First != "" && r.stalls(f, at.First) {
		at.First = ""
	}
}

// stalls reports whether a node has stalled. A request asks the client once per node.
func (r *request) stalls(f *Fetcher, node string) bool {
	for i := range r.slow {
		if r.slow[i].node == node {
			return r.slow[i].slow
		}
	}
	slow := f.Client.Slow(node)
	r.slow = append(r.slow, stalled{node, slow})
	return slow
}

// User implements reuse.Peers.
func (f *Fetcher) User(key plan.Key, tokens []int32) int {
	r := f.scratch.Get().(*request)
	defer f.scratch.Put(r)
	r.slow = r.slow[:0]
	at, n := r.user(f, key, tokens)
	if at.First == "" {
		return 0
	}
	return n
}

// user asks the directory for the holders of a user.
func (r *request) user(f *Fetcher, key plan.Key, tokens []int32) (Holders, int) {
	at, n := f.Directory.User(key, tokens)
	r.avoid(f, &at)
	return at, n
}

// Damaged implements reuse.Peers.
func (f *Fetcher) Damaged() int64 { return f.damaged.Load() }

// Fetch implements reuse.Peers.
func (f *Fetcher) Fetch(ctx context.Context, wants []reuse.Want) {
	r := f.scratch.Get().(*request)
	defer f.scratch.Put(r)
	r.plan(f, wants)
	var wg sync.WaitGroup
	for i := range r.gets {
		if g := &r.gets[i]; i < len(r.gets)-1 {
			wg.Go(func() { f.get(ctx, g, wants) })
		} else {
			f.get(ctx, g, wants)
		}
	}
	wg.Wait()
	for i := range r.gets {
		f.asked.Add(-r.gets[i].bytes)
	}
}

// plan divides wants between the nodes that hold them.
func (r *request) plan(f *Fetcher, wants []reuse.Want) {
	for i := range r.gets {
		clear(r.gets[i].Wants)
	}
	r.gets, r.keys, r.index, r.slow = r.gets[:0], r.keys[:0], r.index[:0], r.slow[:0]
	for i := range wants {
		w := &wants[i]
		if w.Tokens == nil {
			r.keys, r.index = append(r.keys, w.Key), append(r.index, i)
			continue
		}
		at, _ := r.user(f, w.Key, w.Tokens)
		r.add(f, at, i, w)
	}
	r.look(f)
	for k, i := range r.index {
		r.add(f, r.at[k], i, &wants[i])
	}
}

// add adds a want to the GET of the node that holds it.
func (r *request) add(f *Fetcher, at Holders, i int, w *reuse.Want) {
	if at.First == "" {
		return
	}
	if f.asked.Add(w.Bytes) > f.MaxBytes {
		f.asked.Add(-w.Bytes)
		return
	}
	g := r.get(f, at.First)
	p := peer.Want{Key: w.Key}
	if w.Tokens != nil {
		p.Tokens, p.Digest = uint32(len(w.Tokens)), residency.Digest(w.Tokens)
	}
	g.Wants, g.index, g.bytes = append(g.Wants, p), append(g.index, i), g.bytes+w.Bytes
	switch { // a GET has one second node: that of most of its entries
	case at.Second == g.Second:
		g.votes++
	case g.votes == 0:
		g.Second, g.votes = at.Second, 1
	default:
		g.votes--
	}
}

// get returns the GET of a node that has room for another want.
func (r *request) get(f *Fetcher, node string) *get {
	for i := range r.gets {
		if g := &r.gets[i]; g.node == node && len(g.Wants) < peer.MaxWants {
			return g
		}
	}
	r.gets = slices.Grow(r.gets, 1)[:len(r.gets)+1]
	g := &r.gets[len(r.gets)-1]
	*g = get{Get: peer.Get{Epoch: f.Directory.Epoch(), Space: f.Space, Wants: g.Wants[:0]}, node: node, index: g.index[:0]}
	return g
}

// get asks one node.
func (f *Fetcher) get(ctx context.Context, g *get, wants []reuse.Want) {
	began := time.Now()
	f.price.use(g.node)
	// An error says why a node could not be asked. The statuses say what that means for the request, and the client counts
	// it.
	_ = f.Client.Fetch(ctx, g.node, &g.Get, func(i int, meta []byte, n int64) ([][]byte, error) {
		w := &wants[g.index[i]]
		w.Bytes = n
		return w.Arrival.Place(meta, n)
	})
	worst, bytes := peer.Hit, int64(0)
	for i := range g.Wants {
		w, s := &wants[g.index[i]], g.Wants[i].Status
		switch s {
		case peer.Hit:
			w.Came = true
			bytes += w.Bytes
		case peer.Damaged:
			f.damaged.Add(1)
		}
		if severity(s) > severity(worst) {
			worst = s
		}
	}
	if worst == peer.Hit || worst == peer.Late {
		f.price.ended(worst == peer.Late)
	}
	f.Metrics.fetched(g.node, worst, time.Since(began), bytes)
}

// severity orders the statuses of a GET: its outcome is the worst one.
func severity(s peer.Status) int {
	return slices.Index([]peer.Status{peer.Hit, peer.Miss, peer.Declined, peer.Busy, peer.WrongEpoch, peer.Late,
		peer.Damaged}, s)
}
