package cluster

import (
	"context"
	"crypto/tls"
	"sync"

	"grebe/cluster/fetch"
	"grebe/cluster/hold"
	"grebe/cluster/mtls"
	"grebe/cluster/peer"
	"grebe/cluster/status"
	"grebe/kv"
	"grebe/plan"
	"grebe/residency"
	"grebe/reuse"
)

// blocks moves KV between this process and others.
type blocks struct {
	c       *Cluster
	holder  hold.Holder
	server  *peer.Server
	client  *peer.Client
	metrics *fetch.Metrics

	mu   sync.Mutex
	jobs map[*kv.Store]*job
}

func newBlocks(c *Cluster) (*blocks, error) {
	b := &blocks{c: c, jobs: map[*kv.Store]*job{}}
	server := peer.ServerOptions{
		Node: c.cfg.Node, Holder: b, Log: c.cfg.Log,
		Epoch: func(uint64) bool { return true }, // no map says who holds what: entries are found by feeds
	}
	client := peer.Options{Node: c.cfg.Node}
	if id := c.cfg.Identity; id != nil {
		server.NodeOf = mtls.NodeOf
		client.TLS = func(node string) *tls.Config { return id.Client(node) }
	}
	var err error
	if b.server, err = peer.NewServer(server); err != nil {
		return nil, err
	}
	if b.client, err = peer.NewClient(client); err != nil {
		return nil, err
	}
	b.metrics, err = fetch.NewMetrics(c.cfg.Registry, func() int64 { return b.server.Stats().Bytes })
	return b, err
}

// Read implements peer.Holder. Before Ready nothing is lent: its disk may have KV of users who were deleted.
func (b *blocks) Read(ctx context.Context, s *peer.Space, w *peer.Want, out *peer.Block) peer.Status {
	if !b.c.ready.Load() {
		return peer.Miss
	}
	return b.holder.Read(ctx, s, w, out)
}

// Release implements peer.Holder.
func (b *blocks) Release(out *peer.Block) { b.holder.Release(out) }

// serve answers connections that in accepts.
func (b *blocks) serve(ctx context.Context, in *inbox) {
	if err := b.server.Serve(ctx, in); err != nil && ctx.Err() == nil {
		b.c.cfg.Log.Error("cannot serve blocks of KV", "error", err)
	}
}

// Hold lets a model's cache exchange KV with other nodes until release is called, which MUST happen before the store is
// stopped.
func (c *Cluster) Hold(model string, cache *reuse.Cache) (release func()) {
	f := c.fleets[model]
	if f == nil {
		return func() {}
	}
	s := f.space(cache)
	b := c.blocks
	remove := b.holder.Add(s, cache.Store())
	if !c.cfg.NoFetch {
		cache.SetPeers(fetch.New(fetch.Config{
			Client: b.client, Space: s, Metrics: b.metrics,
			Directory: &directory{f: f, class: class{s.Model, s.Format, s.Numerics}},
		}))
	}
	end := b.begin(f, s, cache)
	return func() {
		end()
		cache.SetPeers(nil)
		remove()
	}
}

// space returns what the KV of a cache belongs to.
func (f *fleet) space(c *reuse.Cache) peer.Space {
	model, format := c.Space()
	return peer.Space{Model: model, Numerics: f.model.Numerics, Format: format}
}

// directory knows which other nodes hold KV of a class, from the router's index.
type directory struct {
	f     *fleet
	class class
}

// Epoch implements fetch.Directory.
func (d *directory) Epoch() uint64 { return 0 }

// others returns the set of other nodes whose KV has the directory's class, and who they are. The caller holds the
// lock.
func (d *directory) others(names *[maxNodes]string) (set uint64) {
	for id, s := range d.f.slots {
		if id != d.f.c.cfg.Node && s.costs.Class < uint8(len(d.f.classes)) && d.f.classes[s.costs.Class] == d.class {
			set |= 1 << s.number
			names[s.number] = id
		}
	}
	return set
}

// Items implements fetch.Directory.
func (d *directory) Items(keys []plan.Key, at []fetch.Holders) {
	secret := d.f.c.sharedSecretNow()
	if secret == nil {
		return
	}
	var room [256]uint64
	digests := room[:0]
	for i := range keys {
		digests = append(digests, secret.Digest(&keys[i]))
	}
	sets := make([]uint64, 2*len(keys))
	var names [maxNodes]string
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	set := d.others(&names)
	if set == 0 {
		return
	}
	d.f.router.Index().Others(digests, sets)
	for i := range keys {
		if holders := (sets[i] | sets[len(keys)+i]) & set; holders != 0 {
			at[i] = two(holders, &names, digests[i])
		}
	}
}

// two picks two of the nodes of a set. Which ones depends on the entry, so that all nodes are asked.
func two(set uint64, names *[maxNodes]string, digest uint64) (h fetch.Holders) {
	turn := int(digest % maxNodes)
	for k := range maxNodes {
		n := (turn + k) % maxNodes
		if set>>n&1 == 0 {
			continue
		}
		if h.First != "" {
			h.Second = names[n]
			return h
		}
		h.First = names[n]
	}
	return h
}

// User implements fetch.Directory.
func (d *directory) User(key plan.Key, tokens []int32) (at fetch.Holders, n int) {
	secret := d.f.c.sharedSecretNow()
	if secret == nil {
		return at, 0
	}
	var names [maxNodes]string
	var room [8]residency.Copy
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	set := d.others(&names)
	if set == 0 {
		return at, 0
	}
	for _, c := range d.f.router.Index().Users(room[:0], secret.Digest(&key), tokens, int32(len(tokens))) {
		switch {
		case set>>c.Node&1 == 0:
		case int(c.Tokens) > n:
			at, n = fetch.Holders{First: names[c.Node]}, int(c.Tokens)
		case int(c.Tokens) == n && at.Second == "":
			at.Second = names[c.Node]
		}
	}
	return at, n
}

// transfers returns what this process fetched from other nodes and sent to them.
func (b *blocks) transfers(nodes []status.Node) (out []status.Transfer) {
	self := b.c.cfg.Node
	for i := range nodes {
		id := nodes[i].ID
		if id == self {
			continue
		}
		if s, ok := b.client.Stats(id); ok && s.Answers[peer.Hit]+s.Answers[peer.Late] > 0 {
			out = append(out, status.Transfer{
				From: id, To: self, Blocks: s.Answers[peer.Hit], Bytes: s.Bytes, Late: s.Answers[peer.Late],
				RateMB: s.Bandwidth / 1e6, TripMs: ms(s.RoundTrip),
			})
		}
		if blocks, bytes := b.server.Sent(id); blocks > 0 {
			out = append(out, status.Transfer{From: self, To: id, Blocks: blocks, Bytes: bytes})
		}
	}
	return out
}
