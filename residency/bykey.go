package residency

import (
	"iter"

	"grebe/plan"
)

// byKey finds entries by their keys. It is a hash table with open addressing and linear probing, at most half full.
// Where a search begins grows with the hash. So the table can grow, and a loop can go on after changes, without hashing
// all keys again.
type byKey[V any] struct {
	slots []keySlot[V] // a power of two of them
	shift int          // from a hash to the slot where its search begins
	count int
	read  uint64 // see warm
}

type keySlot[V any] struct {
	hash uint64
	h    *Held[V] // nil: the slot is empty
}

func newByKey[V any]() byKey[V] { return byKey[V]{slots: make([]keySlot[V], 64), shift: 58} }

func keyHash(key *plan.Key) uint64 { return mix(Hash(*key)) }

func (b *byKey[V]) home(hash uint64) int { return int(hash >> b.shift) }

func (b *byKey[V]) after(i int) int { return (i + 1) & (len(b.slots) - 1) }

// find returns the slot of a key, or the empty slot where it belongs.
func (b *byKey[V]) find(key *plan.Key) int {
	hash := keyHash(key)
	i := b.home(hash)
	for s := &b.slots[i]; s.h != nil && (s.hash != hash || s.h.Key != *key); s = &b.slots[i] {
		i = b.after(i)
	}
	return i
}

// get returns the entry under a key, or nil.
func (b *byKey[V]) get(key *plan.Key) *Held[V] { return b.slots[b.find(key)].h }

// warm reads what get of these keys will read. The reads do not depend on each other, so they wait for memory together.
func (b *byKey[V]) warm(keys []plan.Key) {
	read := uint64(0)
	for i := range keys {
		read ^= b.slots[b.home(keyHash(&keys[i]))].hash
	}
	for i := range keys {
		if h := b.slots[b.home(keyHash(&keys[i]))].h; h != nil {
			read ^= uint64(h.tier)
		}
	}
	b.read = read // so that the reads are not left out
}

// put adds an entry. There MUST be none under its key.
func (b *byKey[V]) put(h *Held[V]) {
	if 2*b.count >= len(b.slots) {
		b.grow()
	}
	b.slots[b.find(&h.Key)] = keySlot[V]{keyHash(&h.Key), h}
	b.count++
}

func (b *byKey[V]) grow() {
	old := b.slots
	b.slots, b.shift = make([]keySlot[V], 2*len(old)), b.shift-1
	for _, s := range old {
		if s.h != nil {
			b.slots[b.find(&s.h.Key)] = s
		}
	}
}

// remove removes the entry under a key, if there is one. It closes the gap, so that no search ends too early.
func (b *byKey[V]) remove(key *plan.Key) {
	gap := b.find(key)
	if b.slots[gap].h == nil {
		return
	}
	b.count--
	mask := len(b.slots) - 1
	for i := b.after(gap); b.slots[i].h != nil; i = b.after(i) {
		if (i-b.home(b.slots[i].hash))&mask >= (i-gap)&mask {
			b.slots[gap] = b.slots[i]
			gap = i
		}
	}
	b.slots[gap] = keySlot[V]{}
}

// all visits each entry, in no order. Entries may come and go meanwhile. One that stays is visited exactly once.
func (b *byKey[V]) all() iter.Seq[*Held[V]] {
	return func(yield func(*Held[V]) bool) {
		var alike []*Held[V] // whose searches begin at the same slot
		for from, more := uint64(0), true; more; {
			alike = alike[:0]
			home := b.home(from)
			for i := home; b.slots[i].h != nil; i = b.after(i) {
				if b.home(b.slots[i].hash) == home {
					alike = append(alike, b.slots[i].h)
				}
			}
			from = uint64(home+1) << b.shift // where the next slot's hashes begin, also after the table grew
			more = from != 0
			for _, h := range alike {
				if !yield(h) {
					return
				}
			}
		}
	}
}
