// Package hold answers other nodes' requests for KV from this node's stores.
//
// A store is registered with the space of its KV: the model, the numerics class and the format. A request is answered
// only from the store of its own space, so that KV of different bits never mixes. Keys are digests of everything else
// that KV depends on.
package hold

import (
	"context"
	"errors"
	"slices"
	"sync"

	"grebe/cluster/peer"
	"grebe/kv"
)

// Holder is a peer.Holder over stores. The zero value has none.
type Holder struct {
	mu     sync.RWMutex
	spaces map[peer.Space][]*lender
	loans  sync.Pool // of *loan
}

// lender is a store and the loans of it.
type lender struct {
	store *kv.Store
	loans sync.WaitGroup
}

// loan is an entry that is being sent.
type loan struct {
	kv.Loan
	from *lender
}

// Add answers requests of a space from a store, until remove is called. If several stores have KV of a space, as while
// a model is loaded again, the one that was added last answers. remove MUST be called once, and before the store is
// stopped. When it returns, no entry is being sent because of this Add. That takes as long as the budgets of the
// requests under way.
func (h *Holder) Add(s peer.Space, store *kv.Store) (remove func()) {
	l := &lender{store: store}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.spaces == nil {
		h.spaces = map[peer.Space][]*lender{}
	}
	h.spaces[s] = append(h.spaces[s], l)
	return func() {
		h.remove(s, l)
		l.loans.Wait()
	}
}

func (h *Holder) remove(s peer.Space, l *lender) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.DeleteFunc(h.spaces[s], func(o *lender) bool { return o == l })
	if h.spaces[s] = all; len(all) == 0 {
		delete(h.spaces, s)
	}
}

// lender returns a store of a space, or nil. The caller MUST call Done of its loans.
func (h *Holder) lender(s *peer.Space) *lender {
	h.mu.RLock()
	defer h.mu.RUnlock()
	all := h.spaces[*s]
	if len(all) == 0 {
		return nil
	}
	l := all[len(all)-1]
	l.loans.Add(1)
	return l
}

// Read implements peer.Holder.
func (h *Holder) Read(ctx context.Context, s *peer.Space, w *peer.Want, b *peer.Block) peer.Status {
	l := h.lender(s)
	if l == nil {
		return peer.Miss
	}
	o, _ := h.loans.Get().(*loan)
	if o == nil {
		o = &loan{}
	}
	o.from, o.Meta, o.Pieces = l, b.Meta, b.Pieces
	if err := l.store.Lend(ctx, w.Key, int(w.Tokens), w.Digest, &o.Loan); err != nil {
		h.end(o)
		if errors.Is(err, kv.ErrMissing) {
			return peer.Miss
		}
		return peer.Busy
	}
	b.Meta, b.Pieces, b.Sum, b.Summed, b.Ref = o.Meta, o.Pieces, o.Sum, o.Summed, o
	return peer.Hit
}

// Release implements peer.Holder.
func (h *Holder) Release(b *peer.Block) {
	o := b.Ref.(*loan)
	o.Sum, o.Summed = b.Sum, b.Summed
	o.from.store.Return(&o.Loan)
	h.end(o)
}

func (h *Holder) end(o *loan) {
	l := o.from
	*o = loan{}
	h.loans.Put(o)
	l.loans.Done()
}
