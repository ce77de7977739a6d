package embed

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

const setSlots = 64

// set is 64 slots. Its arrays are atomic words: readers look at them while a writer, who holds mu, changes
// them, and what they saw counts only if version was even and is the same afterwards. Keys are stored mixed:
// mixing is one to one.
type set struct {
	mu      sync.Mutex
	version atomic.Uint32 // odd while a writer changes tags, keys or rows
	updates atomic.Uint32 // times that rows were changed or removed from outside
	_       [48]byte      // the tags fill a cache line

	tags [setSlots / 8]atomic.Uint64 // a byte per slot, 0: empty
	keys [setSlots]atomic.Uint64
	meta [setSlots]atomic.Uint64 // stamps
}

const setHead = int(unsafe.Offsetof(set{}.keys))

const setBytes = int(unsafe.Sizeof(set{})) + int(unsafe.Sizeof([]byte{}))

const (
	ones = 0x0101010101010101
	tops = 0x8080808080808080
)

// tagOf is never 0.
func tagOf(h uint64) uint64 { return max(h&0xFF, 1) }

// find returns the slot of a key, or −1. A word of eight tags is compared at once: a byte of x is 0 where the
// tag is equal. Bytes above such a one may be taken for equal too; the key decides.
func (s *set) find(h uint64) int {
	want := tagOf(h) * ones
	for w := range s.tags {
		x := s.tags[w].Load() ^ want
		for m := (x - ones) &^ x & tops; m != 0; m &= m - 1 {
			slot := w*8 + bits.TrailingZeros64(m)/8
			if s.keys[slot].Load() == h && x>>(uint(slot%8)*8)&0xFF == 0 {
				return slot
			}
		}
	}
	return -1
}

// candidate returns the first slot with the key's tag, or −1.
func (s *set) candidate(h uint64) int {
	want := tagOf(h) * ones
	for w := range s.tags {
		x := s.tags[w].Load() ^ want
		if m := (x - ones) &^ x & tops; m != 0 {
			return w*8 + bits.TrailingZeros64(m)/8
		}
	}
	return -1
}

// empty returns a free slot, or −1.
func (s *set) empty() int {
	for w := range s.tags {
		x := s.tags[w].Load()
		if m := (x - ones) &^ x & tops; m != 0 {
			return w*8 + bits.TrailingZeros64(m)/8
		}
	}
	return -1
}

func (s *set) tag(slot int) uint64 { return s.tags[slot/8].Load() >> (slot % 8 * 8) & 0xFF }

func (s *set) begin() { s.version.Add(1) }
func (s *set) end()   { s.version.Add(1) }

func (s *set) set(slot int, h uint64) {
	s.retag(slot, tagOf(h))
	s.keys[slot].Store(h)
}

func (s *set) clear(slot int) {
	s.retag(slot, 0)
	s.keys[slot].Store(0)
}

func (s *set) retag(slot int, tag uint64) {
	at := slot % 8 * 8
	w := &s.tags[slot/8]
	w.Store(w.Load()&^(0xFF<<at) | tag<<at)
}

// pause lets a writer go on. It holds the version odd for the time of one row's copy, unless its thread lost
// the processor.
func pause() { runtime.Gosched() }
