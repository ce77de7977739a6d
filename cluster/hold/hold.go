// Package hold answers other nodes' requests for KV from this node's stores.
//
// A store is registered with the space of its KV: the model, the numerics class and the format. A request is answered only from the store
// of its own space, so that KV of different bits never mixes. Keys are digests of everything else that KV depends on.
package hold

import (
	"context"
	"errors"
	"sync"

	"grebe/cluster/peer"
	"grebe/kv"
)

// Holder is a peer.Holder over stores. The zero value has none.
type Holder struct {
	mu     sync.RWMutex
	spaces map[peer.Space]*lender
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

// Set answers requests of a space from a store, in place of the one before. Remove MUST be called before the store is stopped.
func (h *Holder) Set(s peer.Space, store *kv.Store) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.spaces == nil {
		h.spaces = map[peer.Space]*lender{}
	}
	h.spaces[s] = &lender{store: store}
}

// Remove ends the answers of a space. When it returns, no entry of its store is being sent. That takes as long as the budgets of the
// requests under way.
func (h *Holder) Remove(s peer.Space) {
	h.mu.Lock()
	l := h.spaces[s]
	delete(h.spaces, s)
	h.mu.Unlock()
	if l != nil {
		l.loans.Wait()
	}
}

// lender returns the store of a space, or nil. The caller MUST call Done of its loans.
func (h *Holder) lender(s *peer.Space) *lender {
	h.mu.RLock()
	defer h.mu.RUnlock()
	l := h.spaces[*s]
	if l != nil {
		l.loans.Add(1)
	}
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
