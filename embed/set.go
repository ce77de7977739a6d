package embed

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"grebe/evict"
)

const setSlots = 64

// set is 64 slots. Its words are atomic: readers look at them while a writer, who holds mu, changes them, and
// what they saw counts only if version was even and is the same afterwards. Keys are stored mixed: mixing is
// one to one. Tags fill the first cache line, the head the second; a slot's key and stamp share a line.
type set struct {
	tags    [setSlots / 8]atomic.Uint64 // a byte per slot, 0: empty
	version atomic.Uint32               // odd while a writer changes tags, keys or rows
	updates atomic.Uint32               // times that rows were changed or removed from outside
	rows    atomic.Int64                // where its rows begin, from the cache's origin
	mu      sync.Mutex
	_       [40]byte
	slots   [setSlots]slot
}

// slot is a row's key and the stamp of its use.
type slot struct {
	key  atomic.Uint64
	meta atomic.Uint64
}

const setHead = int(unsafe.Offsetof(set{}.slots))

const setBytes = int(unsafe.Sizeof(set{}))

const (
	ones = 0x0101010101010101
	tops = 0x8080808080808080
)

// tagOf is never 0.
func tagOf(h uint64) uint64 { return max(h&0xFF, 1) }

// find returns the slot of a key, or −1.
func (s *set) find(h uint64) int {
	for m := s.match(tagOf(h)); m != 0; m &= m - 1 {
		if i := bits.TrailingZeros64(m); s.slots[i].key.Load() == h {
			return i
		}
	}
	return -1
}

// matchWords compares eight tags at once: a byte of x is 0 where the tag is equal, and the sum below has its top bit
// set where it is not.
func (s *set) matchWords(tag uint64) (m uint64) {
	for w := range s.tags {
		x := s.tags[w].Load() ^ tag*ones
		y := ^((x &^ tops) + (ones * 0x7F) | x) & tops // a top bit per equal byte
		m |= y >> 7 * 0x0102040810204080 >> 56 << (w * 8)
	}
	return m
}

// empty returns a free slot, or −1.
func (s *set) empty() int {
	if m := s.match(0); m != 0 {
		return bits.TrailingZeros64(m)
	}
	return -1
}

func (s *set) tag(slot int) uint64 { return s.tags[slot/8].Load() >> (slot % 8 * 8) & 0xFF }

// begin and end enclose changes. The caller holds mu.
func (s *set) begin() { bump(&s.version) }
func (s *set) end()   { bump(&s.version) }

func (s *set) set(slot int, h uint64) {
	s.retag(slot, tagOf(h))
	s.slots[slot].key.Store(h)
}

func (s *set) clear(slot int) {
	s.retag(slot, 0)
	s.slots[slot].key.Store(0)
}

// clearAll empties the set. The caller holds mu.
func (s *set) clearAll() {
	s.begin()
	for w := range s.tags {
		s.tags[w].Store(0)
	}
	s.end()
}

func (s *set) retag(slot int, tag uint64) {
	at := slot % 8 * 8
	w := &s.tags[slot/8]
	w.Store(w.Load()&^(0xFF<<at) | tag<<at)
}

// Empty, Key, Stamp and Stamps are for package evict's SlabSet.
func (s *set) Empty() int { return s.empty() }

func (s *set) Key(slot int) uint64 { return s.slots[slot].key.Load() }

func (s *set) Stamp(slot int) evict.Stamp { return evict.Stamp(s.slots[slot].meta.Load()) }

func (s *set) Stamps() (all [setSlots]evict.Stamp) {
	for i := range all {
		all[i] = s.Stamp(i)
	}
	return all
}

func (s *set) stamp(slot int) stamp { return stamp(s.slots[slot].meta.Load()) }

// pause lets a writer go on. It holds the version odd for the time of one row's copy, unless its thread lost
// the processor.
func pause() { runtime.Gosched() }
