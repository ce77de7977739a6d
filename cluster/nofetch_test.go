package cluster

import (
	"net"
	"testing"

	"grebe/cluster/coord/coordtest"
	"grebe/compute"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
	"grebe/residency"
	"grebe/reuse"
	"grebe/route"
	"grebe/schedule"
	"grebe/serve/servetest"
)

// Requests of a member with NoFetch ask no other members for KV. Others may still read the member's.
func TestNoFetch(t *testing.T) {
	for _, never := range []bool{false, true} {
		s := coordtest.NewServer()
		t.Cleanup(s.Close)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c, err := Open(Config{Name: "test", Node: "n1", Listener: l, Peer: l.Addr().String(), Coordinator: s.Open(),
			NoFetch: never, Models: []Model{{Name: "m", Group: "m", Numerics: "test"}}, Users: 64, Items: 64})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		shape := compute.Shape{Layers: 1, KVHeads: 1, HeadDim: 4, KV: compute.BF16}
		p, err := pool.Over(compute.NewHostMemory(), int64(shape.ChunkBytes(1024, false)), 256)
		if err != nil {
			t.Fatal(err)
		}
		store := kv.New(shape, p)
		t.Cleanup(func() {
			store.Close()
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		cache := reuse.New(servetest.NewBuilder(t, servetest.Tokenizer{}), reuse.Options{Store: store, Pool: p, Shape: shape})
		release := c.Hold("m", cache)
		if _, asks := cache.PeerDamaged(); asks == never {
			t.Errorf("NoFetch %v: other members are asked: %v", never, asks)
		}
		release()
		if _, asks := cache.PeerDamaged(); asks {
			t.Errorf("NoFetch %v: other members are asked after the release", never)
		}
	}
}

// A router counts on KV of other nodes unless they do not fetch it.
func TestRouterOfNoFetch(t *testing.T) {
	for _, never := range []bool{false, true} {
		f, err := newFleet(&Cluster{cfg: Config{NoFetch: never, Users: 64, Items: 64}}, &Model{Name: "m"})
		if err != nil {
			t.Fatal(err)
		}
		costs := schedule.DefaultCosts(schedule.PrefillModel{Fixed: 1, Row: 1})
		costs.Transfer[plan.Peer] = schedule.Transfer{Token: .01}
		user := residency.Event{Key: plan.Key{1}, Entry: residency.Entry{Kind: plan.User, Tier: plan.Host, Tokens: 900}}
		for n, held := range [][]residency.Event{{user}, nil} {
			if err := f.router.SetNode(n, route.Node{Costs: costs}); err != nil {
				t.Fatal(err)
			}
			f.router.Heard(n, &route.Heartbeat{}, 0)
			f.router.Snapshot(n, 1, 0, held, true)
		}
		f.router.Rest(0, true) // it has the user's KV and gets no requests
		q := route.Request{User: residency.Hash(user.Key), Prompt: schedule.Request{User: 900, Items: []int32{50}}}
		want := 900
		if never {
			want = 0
		}
		if got := f.router.Pick(&q, 0); got.Node != 1 || got.Reuse != want {
			t.Errorf("NoFetch %v: node %d is picked and reuses %d tokens, want %d", never, got.Node, got.Reuse, want)
		}
	}
}
