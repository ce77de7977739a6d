package cluster

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/cluster/coord/coordtest"
	"grebe/cluster/peer"
	"grebe/compute"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
)

// Before a process is ready, others neither know its KV nor can fetch it: it may be of users who were deleted.
func TestNothingIsOfferedBeforeReady(t *testing.T) {
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	other := join(t, s, "n1", nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(Config{Name: "test", Node: "n2", Listener: l, Peer: l.Addr().String(), Coordinator: s.Open(),
		Models: []Model{{Name: "m", Group: "m", Numerics: "test"}}, Users: 64, Items: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	space := peer.Space{Model: "m", Numerics: "test", Format: "f"}
	defer c.blocks.holder.Add(space, storeOf(t, plan.Key{1}))()
	if err := c.Start(&local{name: "n2"}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return len(other.Status().Nodes) == 2 })

	read := func() peer.Status {
		var b peer.Block
		got := c.blocks.Read(t.Context(), &space, &peer.Want{Key: plan.Key{1}}, &b)
		if got == peer.Hit {
			c.blocks.Release(&b)
		}
		return got
	}
	client, err := c.wire.dial("n2", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	early, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), modelHeader, "m"),
		200*time.Millisecond)
	defer cancel()
	stream, err := clusterv1.NewFeedClient(client).Subscribe(early)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("before Ready the feed answers: %v", err)
	}
	if got := read(); got != peer.Miss {
		t.Errorf("before Ready a block is lent: %v", got)
	}
	c.Ready()
	other.waitKnown(t, 2)
	if got := read(); got != peer.Hit {
		t.Errorf("after Ready no block is lent: %v", got)
	}
}

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
