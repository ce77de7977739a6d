package fetch

import (
	"context"
	"net"
	"testing"

	"grebe/cluster/hold"
	"grebe/cluster/peer"
	"grebe/compute"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
	"grebe/reuse"
)

// everywhere says that one node has everything.
type everywhere string

func (e everywhere) Epoch() uint64 { return 0 }
func (e everywhere) Items(_ []plan.Key, at []Holders) {
	for i := range at {
		at[i].First = string(e)
	}
}
func (e everywhere) User(plan.Key, []int32) (Holders, int) { return Holders{}, 0 }

// BenchmarkFetch fetches 50 items of 20 tokens of Qwen2-1.5B, 29 MB, from one store into another over loopback without
// TLS.
func BenchmarkFetch(b *testing.B) {
	shape := compute.Shape{Layers: 28, KVHeads: 2, HeadDim: 128, KV: compute.BF16}
	const items, length = 50, 20
	stores := make([]*kv.Store, 2)
	for i := range stores {
		p, err := pool.Over(compute.NewHostMemory(), int64(shape.ChunkBytes(2*items*length, false)), 64<<10)
		if err != nil {
			b.Fatal(err)
		}
		stores[i] = kv.New(shape, p)
		b.Cleanup(func() {
			stores[i].Close()
			_ = p.Close()
		})
	}
	keys := make([]plan.Key, items)
	for i := range keys {
		keys[i] = plan.Key{1, byte(i)}
		e, err := stores[0].Reserve(kv.Exact, length, nil)
		if err != nil {
			b.Fatal(err)
		}
		stores[0].Publish(plan.Item, keys[i], nil, e)
		e.Release()
	}
	var h hold.Holder
	defer h.Add(peer.Space{}, stores[0])()
	s, err := peer.NewServer(peer.ServerOptions{Node: "a", Holder: &h, Epoch: func(uint64) bool { return true }})
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	defer func() { cancel(); <-done }()
	c, err := peer.NewClient(peer.Options{Node: "b"})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	c.SetPeers(map[string]string{"a": l.Addr().String()})
	f := New(Config{Client: c, Directory: everywhere("a")})
	size := int64(shape.ChunkBytes(length, false))
	wants := make([]reuse.Want, items)
	b.SetBytes(items * size)
	b.ReportAllocs()
	for b.Loop() {
		for i, key := range keys {
			a, _ := stores[1].Expect(0, plan.Item, key, nil, length)
			wants[i] = reuse.Want{Key: key, Bytes: size, Arrival: a}
		}
		f.Fetch(ctx, wants)
		for i := range wants {
			if !wants[i].Arrival.End(wants[i].Came) {
				b.Fatal("an item did not come")
			}
		}
		b.StopTimer()
		if err := stores[1].Delete(keys...); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
