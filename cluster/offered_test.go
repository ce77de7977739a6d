package cluster

import (
	"context"
	"net"
	"testing"

	"grebe/cluster/coord/coordtest"
	"grebe/cluster/peer"
	"grebe/compute"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
	"grebe/reuse"
	"grebe/serve"
)

// Before a process is ready, others neither know its KV nor can fetch it: it may be of users who were deleted.
func TestNothingIsOfferedBeforeReady(t *testing.T) {
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(Config{Name: "test", Node: "n1", Listener: l, Peer: l.Addr().String(), Coordinator: s.Open(),
		Models: []Model{{Name: "m", Group: "m", Numerics: "test"}}, Users: 64, Items: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var answers Local = &offering{cache: &reuse.Cache{}}
	c.local.Store(&answers)
	space := peer.Space{Model: "m", Numerics: "test", Format: "f"}
	c.blocks.holder.Add(space, storeOf(t, plan.Key{1}))

	read := func() peer.Status {
		var b peer.Block
		status := c.blocks.Read(context.Background(), &space, &peer.Want{Key: plan.Key{1}}, &b)
		if status == peer.Hit {
			c.blocks.Release(&b)
		}
		return status
	}
	if got := read(); c.groups[0].offered() != nil || got != peer.Miss {
		t.Errorf("before Ready a cache is offered, or a block is lent: %v", got)
	}
	c.ready.Store(true)
	if got := read(); c.groups[0].offered() == nil || got != peer.Hit {
		t.Errorf("after Ready no cache is offered, or no block is lent: %v", got)
	}
}

// offering has a cache.
type offering struct {
	local
	cache *reuse.Cache
}

func (o *offering) Offer(string) (serve.Offer, bool) { return serve.Offer{Cache: o.cache}, true }

// storeOf returns a store with KV of an item.
func storeOf(t *testing.T, key plan.Key) *kv.Store {
	t.Helper()
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
	entry, err := store.Reserve(kv.LayoutOf(plan.Item), 9, nil)
	if err != nil {
		t.Fatal(err)
	}
	store.Publish(plan.Item, key, nil, entry)
	entry.Release()
	return store
}
