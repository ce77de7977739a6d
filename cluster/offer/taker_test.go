package offer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"grebe/cluster/peer"
	"grebe/compute"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
	"grebe/residency"
)

var shape = compute.Shape{Layers: 2, KVHeads: 2, HeadDim: 4, KV: compute.BF16}

// keeper is a store as a Cache.
type keeper struct {
	store *kv.Store
	pages *pool.Pool
}

func (k *keeper) Store() *kv.Store { return k.store }

func (k *keeper) ExpectOffered(kind plan.Kind, key plan.Key, length int, digest uint64) (*kv.Arrival, bool) {
	return k.store.ExpectOffered(0, kind, key, length, digest)
}

func newKeeper(t *testing.T) *keeper {
	t.Helper()
	p, err := pool.Over(compute.NewHostMemory(), int64(shape.ChunkBytes(1<<14, false)), 256)
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{kv.New(shape, p), p}
	t.Cleanup(func() {
		k.store.Close()
		if used := p.Stats().Used; used != 0 {
			t.Errorf("%d bytes are still in use after Close", used)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

// tokensOf returns n tokens of a user.
func tokensOf(user, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(user*1000 + i)
	}
	return out
}

func userKey(user int) plan.Key { return plan.Key{1, byte(user)} }
func itemKey(item int) plan.Key { return plan.Key{2, byte(item)} }

// publish keeps an entry and returns it as a block.
func (k *keeper) publish(t *testing.T, kind plan.Kind, key plan.Key, tokens []int32, n int) Block {
	t.Helper()
	e, err := k.store.Reserve(kv.LayoutOf(kind), n, nil)
	if err != nil {
		t.Fatal(err)
	}
	k.store.Publish(kind, key, tokens, e)
	e.Release()
	b := Block{Key: key, Tokens: n}
	if tokens != nil {
		b.Digest = residency.Digest(tokens)
	}
	return b
}

func (k *keeper) user(t *testing.T, user, n int) Block {
	return k.publish(t, plan.User, userKey(user), tokensOf(user, n), n)
}

func (k *keeper) item(t *testing.T, item int) Block {
	return k.publish(t, plan.Item, itemKey(item), nil, 5+item)
}

func (k *keeper) has(key plan.Key) bool {
	e, ok := k.store.Lookup(key)
	return ok && e.Tier != plan.Missing
}

// world is a node and a member that takes what the node offers, without a network between them.
type world struct {
	node, to *keeper
	taker    *Taker
	erased   uint64
	during   func() // called in the middle of each GET
	spoil    func(w *peer.Want)
	gets     int
}

func newWorld(t *testing.T) *world {
	w := &world{node: newKeeper(t), to: newKeeper(t)}
	w.taker = NewTaker(w.to, peer.Space{}, w.fetch, func() uint64 { return w.erased })
	return w
}

func (w *world) fetch(ctx context.Context, node string, g *peer.Get, place peer.Place) error {
	w.gets++
	for i := range g.Wants {
		want := &g.Wants[i]
		var l kv.Loan
		if w.node.store.Lend(ctx, want.Key, int(want.Tokens), want.Digest, &l) != nil {
			want.Status = peer.Miss
			continue
		}
		n := 0
		for _, p := range l.Pieces {
			n += len(p)
		}
		if _, err := place(i, l.Meta, int64(n)); err != nil {
			want.Status = peer.Declined
		} else if want.Status = peer.Hit; w.spoil != nil {
			w.spoil(want)
		}
		w.node.store.Return(&l)
	}
	if w.during != nil {
		w.during()
	}
	return errors.New("errors say nothing: statuses do")
}

// takeAll fetches all that waits.
func (w *world) takeAll(t *testing.T) {
	for list := w.taker.next(); len(list) > 0; list = w.taker.next() {
		w.taker.take(t.Context(), list)
	}
}

func TestTake(t *testing.T) {
	w := newWorld(t)
	u, i := w.node.user(t, 1, 100), w.node.item(t, 1)
	gone := Block{Key: itemKey(9), Tokens: 3}
	if w.taker.Offer(&Offer{Node: "n1", Blocks: []Block{u, i, gone}}) {
		t.Fatal("busy")
	}
	w.takeAll(t)
	if !w.to.has(u.Key) || !w.to.has(i.Key) || w.to.has(gone.Key) {
		t.Errorf("user %v, item %v, one that the node does not hold %v", w.to.has(u.Key), w.to.has(i.Key), w.to.has(gone.Key))
	}
	gets := w.gets
	w.taker.Offer(&Offer{Node: "n1", Blocks: []Block{u, i}})
	if w.takeAll(t); w.gets != gets {
		t.Error("what is held was fetched again")
	}
	longer := w.node.user(t, 1, 130)
	w.taker.Offer(&Offer{Node: "n1", Blocks: []Block{longer}})
	w.takeAll(t)
	if e, _ := w.to.store.Lookup(u.Key); e.Tokens != 130 {
		t.Errorf("a user of 130 tokens has %d", e.Tokens)
	}
}

// A block that is not the offered one, or that is damaged on the way, leaves nothing behind and may be offered again.
func TestTakeRefuses(t *testing.T) {
	for name, spoil := range map[string]func(w *world, b *Block){
		"other tokens":  func(w *world, b *Block) { b.Digest++ },
		"other length":  func(w *world, b *Block) { b.Tokens-- },
		"a wrong sum":   func(w *world, b *Block) { w.spoil = func(w *peer.Want) { w.Status = peer.Damaged } },
		"late":          func(w *world, b *Block) { w.spoil = func(w *peer.Want) { w.Status = peer.Late } },
		"no tokens":     func(w *world, b *Block) { b.Tokens = 0 },
		"a huge user":   func(w *world, b *Block) { b.Tokens = kv.MostBelow + 1 },
		"an item's key": func(w *world, b *Block) { b.Digest = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			right := w.node.user(t, 1, 100)
			b := right
			spoil(w, &b)
			w.taker.Offer(&Offer{Node: "n1", Blocks: []Block{b}})
			w.takeAll(t)
			if w.to.has(b.Key) || w.to.pages.Stats().Used != 0 {
				t.Errorf("held %v, %d bytes in use", w.to.has(b.Key), w.to.pages.Stats().Used)
			}
			w.spoil = nil
			w.taker.Offer(&Offer{Node: "n1", Blocks: []Block{right}})
			if w.takeAll(t); !w.to.has(right.Key) {
				t.Error("the right one was not taken afterwards")
			}
		})
	}
}

func TestOffersAreBounded(t *testing.T) {
	w := newWorld(t)
	o := &Offer{Node: "n1", Blocks: make([]Block, Most)}
	for n := 0; ; n++ {
		for i := range o.Blocks {
			o.Blocks[i] = Block{Key: plan.Key{byte(n), byte(i), byte(i >> 8)}, Tokens: 1}
		}
		if w.taker.Offer(o) {
			if n != mostWaiting/Most {
				t.Errorf("busy after %d offers", n)
			}
			break
		}
	}
	for range 3 { // what waits is replaced, not added
		w.taker.next()
	}
	if w.taker.Offer(&Offer{Node: "n2", Blocks: o.Blocks[:1]}) {
		t.Error("busy although blocks were taken")
	}
	if len(w.taker.queue) != len(w.taker.wait) || len(w.taker.queue) > mostWaiting {
		t.Errorf("%d keys for %d blocks", len(w.taker.queue), len(w.taker.wait))
	}
}

// Deletions are records of a log that both sides apply in order, each at its own time, also in the middle of a fetch.
// Once both have applied all of them, the member holds nobody who was deleted. Who was not deleted is never refused for
// ever.
func TestDeletedUsersDoNotStay(t *testing.T) {
	const users = 12
	kept := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		w := newWorld(t)
		var log []int // deleted users
		node, to := 0, 0
		deleted := func(u, applied int) bool {
			for _, d := range log[:applied] {
				if d == u {
					return true
				}
			}
			return false
		}
		var history []string
		step := func() {
			switch u := r.IntN(users); r.IntN(5) {
			case 0:
				if len(log) < users/2 && !deleted(u, len(log)) {
					log = append(log, u)
					history = append(history, fmt.Sprintf("record %d deletes %d", len(log), u))
				}
			case 1:
				if node < len(log) {
					if err := w.node.store.Delete(userKey(log[node])); err != nil {
						t.Fatal(err)
					}
					node++
				}
			case 2:
				if to < len(log) { // the catalog shows the record first, then the KV is removed
					w.erased = uint64(to + 1)
					if err := w.to.store.Delete(userKey(log[to])); err != nil {
						t.Fatal(err)
					}
					to++
				}
			case 3:
				if !deleted(u, node) {
					b := w.node.user(t, u, 64+r.IntN(100))
					w.taker.Offer(&Offer{Node: "n1", Shown: uint64(node), Blocks: []Block{b}})
					history = append(history, fmt.Sprintf("node at %d offers %d", node, u))
				}
			}
		}
		w.during = func() {
			for range r.IntN(4) {
				step()
			}
		}
		for range 60 {
			if step(); r.IntN(3) == 0 {
				if list := w.taker.next(); len(list) > 0 {
					w.taker.take(t.Context(), list)
				}
			}
		}
		for ; to < len(log); to++ {
			w.erased = uint64(to + 1)
			if err := w.to.store.Delete(userKey(log[to])); err != nil {
				t.Fatal(err)
			}
		}
		w.during = nil
		w.takeAll(t)
		for u := range users {
			if has := w.to.has(userKey(u)); has && deleted(u, len(log)) {
				t.Fatalf("seed %d: user %d was deleted and is held:\n%v", seed, u, history)
			} else if has {
				kept++
			}
		}
	}
	if kept < 300 {
		t.Errorf("%d users were kept in all: too few to show anything", kept)
	}
}

// A copy of the whole catalog during a fetch drops all users of the store, but knows no keys that are on their way.
// What is fetched then is refused.
func TestACatalogIsReplacedDuringAFetch(t *testing.T) {
	w := newWorld(t)
	u, i := w.node.user(t, 1, 100), w.node.item(t, 1)
	w.during = func() { w.erased = 8 }
	w.taker.Offer(&Offer{Node: "n1", Shown: 7, Blocks: []Block{u, i}})
	w.takeAll(t)
	if w.to.has(u.Key) || !w.to.has(i.Key) {
		t.Errorf("user %v, item %v: want the item alone", w.to.has(u.Key), w.to.has(i.Key))
	}
}

// Run takes what is offered until it is stopped.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.taker.Run(ctx)
		}()
		for n := range 3 {
			b := w.node.item(t, n)
			w.taker.Offer(&Offer{Node: "n1", Blocks: []Block{b}})
			synctest.Wait()
			if !w.to.has(b.Key) {
				t.Errorf("block %d was not taken", n)
			}
		}
		w.taker.Barrier()
		cancel()
		<-done
	})
}
