package catalog

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"iter"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"

	"grebe/internal/offheap"
	"grebe/prompt"
)

// items keeps the records of items by id. Records lie one after the other in blocks, each behind its version and its
// length, and never change. A hash table has 8 bytes for each slot. Neither has pointers, and those of a large catalog
// are outside the Go heap: they cost the garbage collector nothing, and it leaves no room for as much again.
//
// One writer adds and removes with Catalog.mu held. Readers hold it to find an item, and decode it without.
type items struct {
	seed   maphash.Seed
	shards *[shards]shard
	n      int
	blocks []*block // by number; 0 is none, nil is free
	free   []uint64 // numbers of free blocks
	tail   uint64   // the block that the next record goes to; 0: none yet
	sparse []uint64 // blocks of which more than half is garbage
	bytes  int      // of records and what is before them, without garbage
}

// shard is an open hash table, which grows by itself. A slot is 0 if it is free, else gone or a slot of an item:
//
//	24 bits of the id's hash, 18 bits block, 22 bits place in the block
type shard struct {
	slots  []uint64
	n      int            // slots that are not free
	live   int            // of them, slots of items
	memory *offheap.Block // of slots; nil: the Go heap has them
}

const (
	shards    = 256
	placeBits = 22
	blockBits = 18
	refBits   = blockBits + placeBits
	gone      = 1 // a slot whose item was removed

	smallestBlock = 16 << 10
	blockSize     = 4 << 20 // of most blocks of a large catalog; a larger record has a block of its own
	offHeapFrom   = 1 << 20 // bytes of a block that is not on the Go heap
	tableOffHeap  = 1 << 10 // slots of a table that is not
)

// block has records. It is unmapped when nothing reaches it any more.
type block struct {
	bytes []byte
	used  int
	dead  int  // bytes of records that were replaced or removed
	full  bool // of garbage: it is listed in sparse

	memory *offheap.Block // of bytes; nil: the Go heap has them
}

// itemEntry is an item as a record. It never changes.
type itemEntry struct {
	record  record
	version uint64
	block   *block // has the record's memory; nil: the Go heap has it
}

func newItems() *items {
	s := &items{seed: maphash.MakeSeed(), shards: new([shards]shard), blocks: make([]*block, 1)}
	runtime.AddCleanup(s, func(all *[shards]shard) {
		for i := range all {
			all[i].free()
		}
	}, s.shards)
	return s
}

// release gives memory outside the heap back now. Nobody may use the items afterwards.
func (s *items) release() {
	for _, b := range s.blocks {
		if b != nil && b.memory != nil {
			b.memory.Free()
		}
	}
	for i := range s.shards {
		s.shards[i].free()
	}
	s.shards, s.blocks, s.n = nil, nil, 0
}

// size returns the bytes of memory that an item takes.
func (e *itemEntry) size() int64 { return itemSize(e.record) }

func itemSize(r record) int64 { return int64(len(r)) + itemRoom }

func (e *itemEntry) digest() digest {
	defer runtime.KeepAlive(e.block)
	return e.record.digest()
}

// same reports whether an entry, which may be nil, has a content.
func (e *itemEntry) same(r record) bool {
	if e == nil {
		return false
	}
	defer runtime.KeepAlive(e.block)
	return string(e.record) == string(r)
}

func (e *itemEntry) id() string {
	defer runtime.KeepAlive(e.block)
	return string(e.record.id())
}

// item decodes the item of an entry.
func (e *itemEntry) item() *prompt.Item {
	defer runtime.KeepAlive(e.block)
	it, err := newItem(e.record)
	if err != nil { // it was made or checked when it came
		panic(fmt.Sprintf("catalog: item %q: %v", e.record.id(), err))
	}
	return it
}

// find returns the entry of an id; nil: there is none.
func (s *items) find(id string) *itemEntry {
	if e, ok := s.look(id); ok {
		return &e
	}
	return nil
}

// look is find, and allocates nothing.
func (s *items) look(id string) (itemEntry, bool) {
	defer runtime.KeepAlive(s)
	h := maphash.String(s.seed, id)
	sh := s.shardOf(h)
	for at := range sh.probe(h) {
		if e, ok := s.entry(sh.slots[at]); ok && string(e.record.id()) == id {
			return e, true
		}
	}
	return itemEntry{}, false
}

func (s *items) shardOf(h uint64) *shard { return &s.shards[h%shards] }

// tag is the part of a hash that a slot has, which also says where in the table its search begins.
func tag(h uint64) uint64 { return h >> refBits }

// probe visits the slots that may have an item with a hash. Searching ends at a free slot.
func (sh *shard) probe(h uint64) iter.Seq[int] {
	return func(yield func(int) bool) {
		mask := uint64(len(sh.slots) - 1)
		for i := tag(h) & mask; len(sh.slots) > 0 && sh.slots[i] != 0; i = (i + 1) & mask {
			if tag(sh.slots[i]) == tag(h) && !yield(int(i)) {
				return
			}
		}
	}
}

// entry returns the entry that a slot is of; false: it is of none.
func (s *items) entry(slot uint64) (itemEntry, bool) {
	number, place := slot>>placeBits&(1<<blockBits-1), slot&(1<<placeBits-1)
	if number == 0 {
		return itemEntry{}, false
	}
	e, _ := s.blocks[number].entry(int(place))
	return e, true
}

// entry returns the entry at a place in a block, and the place behind it.
func (b *block) entry(place int) (e itemEntry, end int) {
	version, k := binary.Uvarint(b.bytes[place:])
	place += k
	n, k := binary.Uvarint(b.bytes[place:])
	place += k
	end = place + int(n)
	return itemEntry{b.bytes[place:end:end], version, b}, end
}

// put adds an item, or replaces the one of its id.
func (s *items) put(r record, version uint64) {
	h := maphash.Bytes(s.seed, r.id())
	slot := tag(h)<<refBits | s.add(r, version)
	sh := s.shardOf(h)
	for at := range sh.probe(h) {
		if e, ok := s.entry(sh.slots[at]); ok && string(e.record.id()) == string(r.id()) {
			s.lose(sh.slots[at], &e)
			sh.slots[at] = slot
			return
		}
	}
	sh.insert(slot)
	s.n++
}

// remove removes an item, if it is there.
func (s *items) remove(id string) {
	h := maphash.String(s.seed, id)
	sh := s.shardOf(h)
	for at := range sh.probe(h) {
		if e, ok := s.entry(sh.slots[at]); ok && string(e.record.id()) == id {
			s.lose(sh.slots[at], &e)
			sh.slots[at] = gone
			sh.live--
			s.n--
			return
		}
	}
}

// insert adds a slot of an id that has none.
func (sh *shard) insert(slot uint64) {
	if 4*(sh.n+1) > 3*len(sh.slots) {
		old := *sh
		*sh = newShard(max(4, 1<<bits.Len(uint(3*old.live/2))))
		for _, o := range old.slots {
			if o > gone {
				sh.insert(o)
			}
		}
		old.free() // readers have no slots without the lock
	}
	mask := uint64(len(sh.slots) - 1)
	i := tag(slot) & mask
	for sh.slots[i] > gone {
		i = (i + 1) & mask
	}
	if sh.slots[i] == 0 {
		sh.n++
	}
	sh.slots[i] = slot
	sh.live++
}

func newShard(size int) shard {
	if size >= tableOffHeap {
		if m, err := offheap.Alloc(8 * size); err == nil { // else out of address space: the heap says so
			return shard{slots: offheap.Slice[uint64](m.Bytes, size), memory: m}
		}
	}
	return shard{slots: make([]uint64, size)}
}

func (sh *shard) free() {
	if sh.memory != nil {
		sh.memory.Free()
	}
}

// add appends a record to the last block and returns where it is.
func (s *items) add(r record, version uint64) (ref uint64) {
	var head [2 * binary.MaxVarintLen64]byte
	k := binary.PutUvarint(head[:], version)
	k += binary.PutUvarint(head[k:], uint64(len(r)))
	size := k + len(r)
	number := s.tail
	if number == 0 || s.blocks[number].used+size > len(s.blocks[number].bytes) {
		number = s.grow(size)
	}
	b := s.blocks[number]
	place := b.used
	b.used += copy(b.bytes[place:], head[:k])
	b.used += copy(b.bytes[b.used:], r)
	s.bytes += size
	return number<<placeBits | uint64(place)
}

// grow adds a block that has room for some bytes. Blocks are as large as a catalog's size calls for.
func (s *items) grow(size int) (number uint64) {
	want := smallestBlock
	for want < blockSize && want < max(s.bytes/4, 4*size) {
		want *= 2
	}
	b := newBlock(max(want, size))
	if n := len(s.free); n > 0 {
		number, s.free = s.free[n-1], s.free[:n-1]
		s.blocks[number] = b
	} else {
		number, s.blocks = uint64(len(s.blocks)), append(s.blocks, b)
	}
	if number >= 1<<blockBits { // MaxMemory is near a terabyte
		panic(fmt.Sprintf("catalog: more than %d blocks of items", 1<<blockBits-1))
	}
	if size <= want {
		last := s.tail
		s.tail = number
		if last != 0 {
			s.check(last)
		}
	}
	return number
}

func newBlock(size int) *block {
	if size < offHeapFrom {
		return &block{bytes: make([]byte, size)}
	}
	m, err := offheap.Alloc(size)
	if err != nil { // out of address space: the heap says so
		return &block{bytes: make([]byte, size)}
	}
	b := &block{bytes: m.Bytes, memory: m}
	runtime.AddCleanup(b, (*offheap.Block).Free, m)
	return b
}

// lose counts a record as garbage.
func (s *items) lose(slot uint64, e *itemEntry) {
	var head [2 * binary.MaxVarintLen64]byte
	k := binary.PutUvarint(head[:], e.version)
	size := k + binary.PutUvarint(head[k:], uint64(len(e.record))) + len(e.record)
	b := e.block
	b.dead += size
	s.bytes -= size
	s.check(slot >> placeBits & (1<<blockBits - 1))
}

// check lists a block that is mostly garbage, unless records still go to it and it has room.
func (s *items) check(number uint64) {
	b := s.blocks[number]
	if !b.full && 2*b.dead > b.used && (number != s.tail || 2*b.used > len(b.bytes)) {
		b.full = true
		s.sparse = append(s.sparse, number)
	}
}

// tidy moves what is left in blocks that are mostly garbage. Readers wait for part of the work, which with calls with
// the lock held.
func (s *items) tidy(with func(func())) {
	for len(s.sparse) > 0 {
		number := s.sparse[len(s.sparse)-1]
		s.sparse = s.sparse[:len(s.sparse)-1]
		b := s.blocks[number]
		if number == s.tail {
			s.tail = 0 // the next record begins another
		}
		for place := 0; place < b.used; {
			with(func() {
				for n := 0; n < publishAtOnce && place < b.used; n++ {
					e, end := b.entry(place)
					s.move(&e, number<<placeBits|uint64(place))
					place = end
				}
			})
		}
		with(func() {
			s.blocks[number] = nil
			s.free = append(s.free, number)
		})
	}
}

// move gives an entry a new place, unless another one has replaced it.
func (s *items) move(e *itemEntry, ref uint64) {
	h := maphash.Bytes(s.seed, e.record.id())
	sh := s.shardOf(h)
	for at := range sh.probe(h) {
		if sh.slots[at]&(1<<refBits-1) == ref {
			s.lose(ref, e)
			sh.slots[at] = tag(h)<<refBits | s.add(e.record, e.version)
			return
		}
	}
}

// listing is the items at one moment. Its owner MUST free it.
type listing struct {
	slots  []uint64
	blocks []*block
	memory shard // of slots
}

// list returns up to most items, in any order.
func (s *items) list(most int) *listing {
	n := min(s.n, most)
	l := &listing{blocks: slices.Clone(s.blocks), memory: newShard(n)}
	l.slots = l.memory.slots[:0]
	for slot := range s.all() {
		if len(l.slots) == n {
			break
		}
		l.slots = append(l.slots, slot)
	}
	return l
}

func (l *listing) free() { l.memory.free() }

// all visits the slots of all items, beginning anywhere.
func (s *items) all() iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for i, first := 0, rand.IntN(shards); i < shards; i++ {
			for _, slot := range s.shards[(first+i)%shards].slots {
				if slot > gone && !yield(slot) {
					return
				}
			}
		}
	}
}

// ids visits the ids of all items, beginning anywhere.
func (s *items) ids() iter.Seq[string] {
	return func(yield func(string) bool) {
		for slot := range s.all() {
			if e, _ := s.entry(slot); !yield(string(e.record.id())) {
				return
			}
		}
	}
}

func (l *listing) entry(i int) itemEntry {
	e, _ := l.blocks[l.slots[i]>>placeBits&(1<<blockBits-1)].entry(int(l.slots[i] & (1<<placeBits - 1)))
	return e
}

// entries visits the entries.
func (l *listing) entries() iter.Seq[itemEntry] {
	return func(yield func(itemEntry) bool) {
		for i := range l.slots {
			if !yield(l.entry(i)) {
				return
			}
		}
	}
}

// byVersion visits the entries in the order of their versions.
func (l *listing) byVersion() iter.Seq[itemEntry] {
	type place struct {
		version uint64
		at      uint32
	}
	return func(yield func(itemEntry) bool) {
		// Blocks are in that order too, unless the catalog was read from its files or tidied.
		for i := range l.slots {
			l.slots[i] &= 1<<refBits - 1
		}
		slices.Sort(l.slots)
		if l.ascends() {
			l.entries()(yield)
			return
		}
		order := make([]place, len(l.slots))
		for i := range order {
			order[i] = place{l.entry(i).version, uint32(i)}
		}
		slices.SortFunc(order, func(a, b place) int { return cmp.Compare(a.version, b.version) })
		for _, p := range order {
			if !yield(l.entry(int(p.at))) {
				return
			}
		}
	}
}

func (l *listing) ascends() bool {
	last := uint64(0)
	for e := range l.entries() {
		if e.version < last {
			return false
		}
		last = e.version
	}
	return true
}
