package ingest

import (
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"

	"grebe/internal/offheap"
)

// seen knows which ids of items and users came in an import, and where: 12 bytes for each slot of a table that is at
// most three quarters full. Ids are known by their hashes. Two of ten million ids share one with a probability of
// 3 in a million, and the hashes differ in every run. The table is outside the Go heap, so that the collector leaves no
// room for as much again.
type seen struct {
	seed   maphash.Seed
	memory *offheap.Block // of hashes and places
	hashes []uint64       // 0: free
	places []uint32       // records before it in the import, at most math.MaxUint32
	n      int
	files  []seenFile
}

// seenFile is a file and the number of records of the files before it.
type seenFile struct {
	src  *source
	base int64
}

// newSeen returns an empty table. The caller MUST close it.
func newSeen() *seen {
	s := &seen{seed: maphash.MakeSeed()}
	s.alloc(1 << 10)
	return s
}

// alloc makes a table of n free slots.
func (s *seen) alloc(n int) {
	m, err := offheap.Alloc(12 * n)
	if err != nil { // out of address space
		s.memory, s.hashes, s.places = nil, make([]uint64, n), make([]uint32, n)
		return
	}
	s.memory, s.hashes = m, offheap.Slice[uint64](m.Bytes, n)
	s.places = offheap.Slice[uint32](m.Bytes[8*n:], n)
}

// close frees the table, which may be nil.
func (s *seen) close() {
	if s != nil && s.memory != nil {
		s.memory.Free()
	}
}

// next begins a file. lines are those of all files before it.
func (s *seen) next(src *source, base int64) { s.files = append(s.files, seenFile{src, base}) }

// hash returns the hash of an id of a kind, never 0. It is safe for concurrent use.
func (s *seen) hash(kind, id string) uint64 {
	h := maphash.String(s.seed, id)
	switch kind {
	case kindUsers:
		h = bits.RotateLeft64(h, 32) + 1
	case kindEvents:
		h = bits.RotateLeft64(h, 16) + 2
	}
	return max(h, 1)
}

// add adds an id at a place and returns the place where it came first, or −1.
func (s *seen) add(hash uint64, place int64) int64 {
	if 4*(s.n+1) > 3*len(s.hashes) {
		s.grow()
	}
	i := s.slot(hash)
	if s.hashes[i] == hash {
		return int64(s.places[i])
	}
	s.hashes[i], s.places[i] = hash, uint32(min(place, math.MaxUint32))
	s.n++
	return -1
}

// swap sets the value of an id, which is not a place then, and returns the one before.
func (s *seen) swap(hash uint64, value uint32) (before uint32, ok bool) {
	if s.add(hash, int64(value)) < 0 {
		return 0, false
	}
	i := s.slot(hash)
	before, s.places[i] = s.places[i], value
	return before, true
}

// find returns the value of an id.
func (s *seen) find(hash uint64) (value uint32, ok bool) {
	i := s.slot(hash)
	return s.places[i], s.hashes[i] == hash
}

// slot returns where a hash is, or would be.
func (s *seen) slot(hash uint64) int {
	mask := len(s.hashes) - 1
	i := int(hash) & mask
	for s.hashes[i] != 0 && s.hashes[i] != hash {
		i = (i + 1) & mask
	}
	return i
}

func (s *seen) grow() {
	memory, hashes, places := s.memory, s.hashes, s.places
	s.alloc(2 * len(hashes))
	for i, h := range hashes {
		if h != 0 {
			at := s.slot(h)
			s.hashes[at], s.places[at] = h, places[i]
		}
	}
	if memory != nil {
		memory.Free()
	}
}

// check reports whether a record repeats an id.
func (s *seen) check(l *line) error {
	kind, id := kindItems, ""
	switch {
	case l.op.PutItem != nil:
		id = l.op.PutItem.Id
	case l.op.PutUser != nil:
		kind, id = kindUsers, l.op.PutUser.Id
	default:
		return nil
	}
	last := s.files[len(s.files)-1]
	first := s.add(s.hash(kind, id), last.base+l.number)
	if first < 0 {
		return nil
	}
	for i := len(s.files) - 1; i >= 0; i-- {
		if f := s.files[i]; first > f.base {
			return fmt.Errorf("id %.64q is in %s %d of %s too: remove one, or let the last one win with --duplicates last",
				id, f.src.unit, first-f.base, f.src.path)
		}
	}
	return fmt.Errorf("id %.64q comes twice", id)
}
