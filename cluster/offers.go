package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/cluster/member"
	"grebe/cluster/offer"
	"grebe/cluster/peer"
	"grebe/kv"
	"grebe/placement"
	"grebe/plan"
	"grebe/residency"
	"grebe/reuse"
)

// job offers the KV of a store to members with the role kv, or takes what nodes offer.
type job struct {
	caches int          // that share the store
	taker  *offer.Taker // nil: this process offers
	cancel context.CancelFunc
	done   chan struct{}
}

// begin starts the job of a cache's store, unless another cache of the store has. end MUST be called before the store
// is stopped.
func (b *blocks) begin(f *fleet, s peer.Space, cache *reuse.Cache) (end func()) {
	store := cache.Store()
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.jobs[store]
	if j == nil {
		j = &job{done: make(chan struct{})}
		var ctx context.Context
		ctx, j.cancel = context.WithCancel(b.c.ctx)
		run := func(ctx context.Context) { <-ctx.Done() } // a router has nothing to offer
		switch {
		case b.c.computes():
			o := &offer.Offerer{Node: b.c.cfg.Node, Books: store, Members: &holders{f: f, space: s}, Log: b.c.cfg.Log}
			run = o.Run
		case b.c.has(member.KV):
			j.taker = offer.NewTaker(cache, s, b.client.Fetch, b.c.erased)
			run = j.taker.Run
		}
		b.jobs[store] = j
		b.c.run.Go(func() {
			defer close(j.done)
			run(ctx)
		})
	}
	j.caches++
	return func() { b.end(store, j) }
}

// end ends a job when the last cache of its store is gone.
func (b *blocks) end(store *kv.Store, j *job) {
	b.mu.Lock()
	j.caches--
	last := j.caches == 0
	if last {
		delete(b.jobs, store)
	}
	b.mu.Unlock()
	if last {
		j.cancel()
		<-j.done
	}
}

// takers returns the takers of this process.
func (b *blocks) takers() (out []*offer.Taker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, j := range b.jobs {
		if j.taker != nil {
			out = append(out, j.taker)
		}
	}
	return out
}

// barrier waits until no user is being published who was checked before the call.
func (b *blocks) barrier() {
	for _, t := range b.takers() {
		t.Barrier()
	}
}

func (c *Cluster) has(role string) bool { return member.Record{Roles: c.cfg.Roles}.Has(role) }

// erased returns the last record of the catalog that deleted someone.
func (c *Cluster) erased() uint64 {
	if c.catalog == nil {
		return 0
	}
	s, _ := c.catalog.LogState()
	return s.Erased
}

// holders are the members with the role kv that hold KV of a space.
type holders struct {
	f     *fleet
	space peer.Space
}

// Holders implements offer.Members.
func (h *holders) Holders() (members []placement.Member, generation string) {
	f, all := h.f, class{h.space.Model, h.space.Format, h.space.Numerics}
	if !f.c.ready.Load() { // they could fetch nothing
		return nil, ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var boots []string
	for id, s := range f.slots {
		if s.kv && s.costs.Class < uint8(len(f.classes)) && f.classes[s.costs.Class] == all {
			members = append(members, placement.Member{Name: id, Weight: 1})
			boots = append(boots, id+"/"+s.boot)
		}
	}
	slices.SortFunc(members, func(a, b placement.Member) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(boots)
	return members, strings.Join(boots, " ")
}

// Has implements offer.Members.
func (h *holders) Has(member string, blocks []offer.Block, has []bool) {
	f, secret := h.f, h.f.c.sharedSecretNow()
	if secret == nil {
		return
	}
	digests, sets := make([]uint64, len(blocks)), make([]uint64, 2*len(blocks))
	for i := range blocks {
		digests[i] = secret.Digest(&blocks[i].Key)
	}
	var room [8]residency.Copy
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.slots[member]
	if s == nil {
		return
	}
	index := f.router.Index()
	index.Others(digests, sets)
	for i := range blocks {
		if blocks[i].Digest == 0 {
			has[i] = (sets[i]|sets[len(blocks)+i])>>s.number&1 == 1
			continue
		}
		for _, c := range index.Users(room[:0], digests[i], nil, int32(blocks[i].Tokens)) {
			has[i] = has[i] || c.Node == s.number && int(c.Tokens) == blocks[i].Tokens
		}
	}
}

// Shown implements offer.Members.
func (h *holders) Shown() (uint64, bool) {
	items := h.f.c.catalog
	if items == nil {
		return 0, false
	}
	s, _ := items.LogState() // before the look at deletions: those up to here are done, or pending
	return s.Shown, len(items.PendingDeletions()) == 0
}

// Send implements offer.Members.
func (h *holders) Send(ctx context.Context, member string, o *offer.Offer) (busy bool, err error) {
	c := h.f.c
	c.mu.Lock()
	n := c.known[member]
	c.mu.Unlock()
	if n == nil {
		return false, errGone
	}
	req := &clusterv1.OfferRequest{
		Node: o.Node, Model: h.f.model.Name, Digest: h.space.Model, Numerics: h.space.Numerics, Format: h.space.Format,
		Shown: o.Shown,
	}
	for i := range o.Blocks {
		b := &o.Blocks[i]
		req.Keys, req.Tokens, req.Digests = append(req.Keys, b.Key[:]...), append(req.Tokens, uint32(b.Tokens)),
			append(req.Digests, b.Digest)
	}
	resp, err := clusterv1.NewPeerClient(n.conn).Offer(ctx, req)
	result := "sent"
	switch {
	case err != nil:
		result = "failed"
	case resp.Busy:
		result = "busy"
	}
	c.metrics.offers.WithLabelValues(result).Add(float64(len(o.Blocks)))
	return resp.GetBusy(), err
}

// Offer takes a node's offer.
func (p probes) Offer(_ context.Context, r *clusterv1.OfferRequest) (*clusterv1.OfferResponse, error) {
	o, err := offered(r)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	for _, t := range p.c.blocks.takers() {
		if t.Space() == (peer.Space{Model: r.Digest, Numerics: r.Numerics, Format: r.Format}) {
			return &clusterv1.OfferResponse{Busy: t.Offer(o)}, nil
		}
	}
	return nil, status.Error(codes.NotFound, "cluster: this process holds no KV of that model and kind")
}

// offered reads an offer.
func offered(r *clusterv1.OfferRequest) (*offer.Offer, error) {
	n := len(r.Tokens)
	if n > offer.Most || len(r.Keys) != n*len(plan.Key{}) || len(r.Digests) != n || r.Node == "" {
		return nil, fmt.Errorf("cluster: an offer of %d blocks with %d bytes of keys and %d digests", n, len(r.Keys),
			len(r.Digests))
	}
	o := &offer.Offer{Node: r.Node, Shown: r.Shown, Blocks: make([]offer.Block, n)}
	for i := range o.Blocks {
		b := &o.Blocks[i]
		copy(b.Key[:], r.Keys[i*len(b.Key):])
		b.Tokens, b.Digest = int(r.Tokens[i]), r.Digests[i]
		if b.Tokens < 1 || b.Tokens > 1<<30 {
			return nil, errors.New("cluster: an offer of a block without tokens, or with too many")
		}
	}
	return o, nil
}
