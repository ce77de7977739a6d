package kv

import (
	"errors"
	"fmt"

	"grebe/compute"
	"grebe/plan"
	"grebe/residency"
)

// Arrival is an entry that may come from another node. Its methods belong to one goroutine, except Done.
type Arrival struct {
	store  *Store
	owner  uint32
	kind   plan.Kind
	key    plan.Key
	wanted []int32 // tokens of a user; nil: of other entries, and of a user that was offered
	digest uint64  // of the tokens of a user that was offered; 0: it was not
	length int     // tokens

	entry  *Entry  // nil: no memory is reserved
	tokens []int32 // of a user's entry, at most those that are wanted
	staged [][]byte
	size   int64

	deleted bool // the key was deleted meanwhile; guarded by Store.mu
	done    chan struct{}
}

// stagedMost is the most bytes of arrivals at a time for memory that the host cannot see.
const stagedMost = 256 << 20

// Expect announces that an entry may come from another node, for one of several caches that share the store: see Owner.
// Tokens are a user's that are wanted; for other entries they are nil and length is their number. If the entry is
// deleted before End, it is not published. If first is true, the caller MUST call End. Otherwise the entry is expected
// already, and the caller may wait for Done.
func (s *Store) Expect(owner uint32, kind plan.Kind, key plan.Key, tokens []int32,
	length int) (a *Arrival, first bool) {
	return s.expect(&Arrival{owner: owner, kind: kind, key: key, wanted: tokens, length: length})
}

// ExpectOffered is Expect for an entry that another node offers. The digest is that of a user's tokens, which are not
// known here, or 0 for an entry whose key is a digest of its tokens.
func (s *Store) ExpectOffered(owner uint32, kind plan.Kind, key plan.Key, length int,
	digest uint64) (a *Arrival, first bool) {
	return s.expect(&Arrival{owner: owner, kind: kind, key: key, length: length, digest: digest})
}

func (s *Store) expect(a *Arrival) (*Arrival, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.arrivals[a.key]; other != nil {
		return other, false
	}
	if s.arrivals == nil {
		s.arrivals = map[plan.Key]*Arrival{}
	}
	a.store, a.done = s, make(chan struct{})
	s.arrivals[a.key] = a
	return a, true
}

// Done is closed when the arrival has ended.
func (a *Arrival) Done() <-chan struct{} { return a.done }

// Place reserves memory for the entry that meta describes and returns it: pieces of n bytes in total. It may be called
// again, for another copy of the entry: then the pieces that it returned before MUST NOT be in use any more. It returns
// an error if the entry is not the wanted one, or if there is no room.
func (a *Arrival) Place(meta []byte, n int64) ([][]byte, error) {
	a.release()
	kind, length, tokens, ok := decodeMeta(meta)
	switch {
	case !ok || kind != a.kind || (tokens == nil) != (a.wanted == nil && a.digest == 0):
		return nil, fmt.Errorf("kv: meta of %d bytes is not that of the wanted %v", len(meta), a.kind)
	case tokens == nil && length != a.length:
		return nil, fmt.Errorf("kv: an entry of %d tokens arrives, want %d", length, a.length)
	case a.digest != 0 && (length != a.length || residency.Digest(tokens) != a.digest),
		a.wanted != nil && common(tokens, a.wanted) != len(tokens):
		return nil, errors.New("kv: a user's entry of other tokens arrives")
	}
	s := a.store
	to := s.levels[len(s.levels)-1]
	e, err := s.reserve(to, LayoutOf(kind), length, nil)
	if err != nil {
		return nil, err
	}
	blocks, size := e.pieces()
	if int64(size) != n {
		e.Release()
		return nil, fmt.Errorf("kv: %d bytes of %d tokens arrive, want %d", n, length, size)
	}
	pieces, seen := visible(blocks)
	if !seen {
		if s.staged.Add(n) > stagedMost {
			s.staged.Add(-n)
			e.Release()
			return nil, ErrFull
		}
		pieces = cut(compute.Block{Bytes: make([]byte, n)}, blocks)
		a.staged, a.size = pieces, n
	}
	a.entry, a.tokens = e, tokens
	return pieces, nil
}

// release frees what Place reserved.
func (a *Arrival) release() {
	if a.staged != nil {
		for _, p := range a.staged {
			clear(p)
		}
		a.store.staged.Add(-a.size)
		a.staged = nil
	}
	if a.entry != nil {
		a.entry.Release()
		a.entry, a.tokens = nil, nil
	}
}

// End ends an arrival. If filled is true, the pieces that Place returned last have the entry's content, and the entry
// is published as if it had been computed here. It reports whether that was done, or a local entry has all of its
// tokens.
func (a *Arrival) End(filled bool) (published bool) {
	defer a.leave()
	defer a.release()
	if !filled || a.entry == nil {
		return false
	}
	s := a.store
	if a.staged != nil {
		blocks, _ := a.entry.pieces()
		for i := range blocks {
			if s.top.pool.Memory().Write(blocks[i], a.staged[i]) != nil {
				return false
			}
		}
	}
	p := newPublished(a.key, a.kind, a.tokens, a.entry)
	p.Owner = a.owner
	return s.publish(p, s.levels[len(s.levels)-1], a)
}

// leave removes the arrival from those that are expected.
func (a *Arrival) leave() {
	s := a.store
	s.mu.Lock()
	delete(s.arrivals, a.key)
	s.mu.Unlock()
	close(a.done)
}

// covered reports whether an entry has all tokens that arrive, as one that was computed meanwhile.
func (a *Arrival) covered(by *published) bool {
	return by != nil && a.tokens != nil && common(by.Value.tokens, a.tokens) == len(a.tokens)
}
