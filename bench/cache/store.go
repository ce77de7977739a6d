package cache

import (
	"encoding/binary"
	"errors"

	"grebe/plan"
	"grebe/residency"
)

// store is a cache in virtual time: the books of package residency, and an owner who does what they say without memory.
// Entries have one size.
type store struct {
	t     *trace
	books *residency.Core[uint64]
	src   source
	spare []*entry // that left, to be used again
}

// entry has its key in the trace as its value.
type entry = residency.Held[uint64]

func newStore(t *trace, policy string, k int, src source) (*store, error) {
	c := residency.Config{Levels: []residency.LevelConfig{{Tier: plan.Device, Slots: k, Bytes: int64(k)}}, Policy: policy}
	if src != nil {
		c.Oracle = src
	}
	books, err := residency.New[uint64](c)
	if err != nil {
		return nil, err
	}
	s := &store{t: t, books: books, src: src}
	if src != nil {
		src.begin(t, func(key uint64) bool { return books.Get(keyOf(key)) != nil })
	}
	return s, nil
}

// keyOf names a key of a trace. Policies see the key itself: residency.Hash returns it.
func keyOf(key uint64) (k plan.Key) {
	binary.LittleEndian.PutUint64(k[:], key)
	return k
}

// serve serves request i and reports whether it hits. It MUST be called for one request after the other.
func (s *store) serve(i int) (hit bool, err error) {
	if s.src != nil {
		s.src.at(i)
	}
	key := s.t.keys[i]
	if h, _ := s.books.Use(keyOf(key), anyone); h != nil {
		return true, nil
	}
	h := &entry{}
	if n := len(s.spare); n > 0 {
		h, s.spare = s.spare[n-1], s.spare[:n-1]
	}
	*h = entry{Key: keyOf(key), Kind: plan.Item, Tokens: 1, Bytes: 1, Value: key}
	s.books.Expect(h, 0)
	for s.books.Full(0) {
		left, _ := s.books.Need(0, anyone)
		if left == nil {
			return false, errors.New("no victim in a full cache")
		}
		s.spare = append(s.spare, left)
	}
	s.books.Publish(h, 0, false)
	return false, nil
}

func anyone(*entry) bool { return true }
