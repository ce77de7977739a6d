package cluster

import (
	"net"
	"testing"

	"grebe/cluster/coord/coordtest"
	"grebe/compute"
	"grebe/kv"
	"grebe/pool"
	"grebe/reuse"
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
