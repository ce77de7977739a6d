package hold

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"grebe/cluster/peer"
	"grebe/compute"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
	"grebe/residency"
)

var shape = compute.Shape{Layers: 2, KVHeads: 2, HeadDim: 4, KV: compute.BF16}

// open returns a store with an item under key 1 and a user under key 2.
func open(t *testing.T) (*kv.Store, []int32) {
	t.Helper()
	p, err := pool.Over(compute.NewHostMemory(), int64(shape.ChunkBytes(1024, false)), 256)
	if err != nil {
		t.Fatal(err)
	}
	s := kv.New(shape, p)
	t.Cleanup(func() {
		s.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	user := make([]int32, 100)
	for i := range user {
		user[i] = int32(i)
	}
	for _, e := range []struct {
		kind   plan.Kind
		key    plan.Key
		tokens []int32
		n      int
	}{{plan.Item, plan.Key{1}, nil, 9}, {plan.User, plan.Key{2}, user, 100}} {
		entry, err := s.Reserve(kv.LayoutOf(e.kind), e.n, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.Publish(e.kind, e.key, e.tokens, entry)
		entry.Release()
	}
	return s, user
}

// Only requests of a store's own space are answered, and only with what they ask for.
func TestSpaces(t *testing.T) {
	s, user := open(t)
	var h Holder
	own := peer.Space{Model: "m", Numerics: "avx2", Format: "bf16/3"}
	read := func(space peer.Space, w peer.Want) peer.Status {
		var b peer.Block
		status := h.Read(t.Context(), &space, &w, &b)
		if status == peer.Hit {
			h.Release(&b)
		}
		return status
	}
	item := peer.Want{Key: plan.Key{1}}
	if got := read(own, item); got != peer.Miss {
		t.Errorf("without stores: %v", got)
	}
	remove := h.Add(own, s)
	for name, q := range map[string]struct {
		space peer.Space
		want  peer.Want
		hit   bool
	}{
		"an item":           {own, item, true},
		"nothing":           {own, peer.Want{Key: plan.Key{3}}, false},
		"a user":            {own, peer.Want{Key: plan.Key{2}, Tokens: 100, Digest: residency.Digest(user)}, true},
		"part of a user":    {own, peer.Want{Key: plan.Key{2}, Tokens: 70, Digest: residency.Digest(user[:70])}, true},
		"a longer user":     {own, peer.Want{Key: plan.Key{2}, Tokens: 101, Digest: 5}, true},
		"other tokens":      {own, peer.Want{Key: plan.Key{2}, Tokens: 100, Digest: 5}, false},
		"a user as an item": {own, peer.Want{Key: plan.Key{2}}, false},
		"another model":     {peer.Space{Model: "x", Numerics: "avx2", Format: "bf16/3"}, item, false},
		"another class":     {peer.Space{Model: "m", Numerics: "amx", Format: "bf16/3"}, item, false},
		"another format":    {peer.Space{Model: "m", Numerics: "avx2", Format: "f32/3"}, item, false},
	} {
		if got := read(q.space, q.want); (got == peer.Hit) != q.hit {
			t.Errorf("%s: %v", name, got)
		}
	}
	other, _ := open(t)
	if err := other.Delete(plan.Key{1}); err != nil {
		t.Fatal(err)
	}
	again := h.Add(own, other)
	if got := read(own, item); got != peer.Miss {
		t.Errorf("from the store that was added last: %v", got)
	}
	again()
	if got := read(own, item); got != peer.Hit {
		t.Errorf("from the store before: %v", got)
	}
	remove()
	if got := read(own, item); got != peer.Miss {
		t.Errorf("after all are removed: %v", got)
	}
}

// A checksum that a server computed is known the next time.
func TestChecksumsAreKept(t *testing.T) {
	s, _ := open(t)
	var h Holder
	defer h.Add(peer.Space{}, s)()
	for i := range 2 {
		var b peer.Block
		if got := h.Read(t.Context(), &peer.Space{}, &peer.Want{Key: plan.Key{1}}, &b); got != peer.Hit {
			t.Fatal(got)
		}
		if b.Summed != (i == 1) || i == 1 && b.Sum != 42 || len(slices.Concat(b.Pieces...)) != shape.ChunkBytes(9, false) {
			t.Errorf("read %d: %v %d", i, b.Summed, b.Sum)
		}
		b.Sum, b.Summed = 42, true
		h.Release(&b)
	}
}

// A store is removed when none of its entries is being sent.
func TestRemoveWaitsForLoans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := open(t)
		var h Holder
		remove := h.Add(peer.Space{}, s)
		var b peer.Block
		if got := h.Read(t.Context(), &peer.Space{}, &peer.Want{Key: plan.Key{1}}, &b); got != peer.Hit {
			t.Fatal(got)
		}
		began := time.Now()
		time.AfterFunc(time.Second, func() { h.Release(&b) })
		remove()
		if time.Since(began) != time.Second {
			t.Errorf("remove returned after %v", time.Since(began))
		}
	})
}
