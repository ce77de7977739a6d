package disk

import (
	"hash/maphash"

	"grebe/plan"
)

// record has the place of a record. It has no pointers, so that the garbage collector does not scan the index.
type record struct {
	key          plan.Key
	payload      int64
	seg          uint32 // 0: the id is free
	block        uint32 // offset in the segment, in blocks
	meta         uint32
	newer, older uint32 // neighbours by time of use
	chain        uint32 // next in the bucket, or next free id
}

func (r *record) offset() int64 { return int64(r.block) * block }
func (r *record) size() int64   { return recordSize(int(r.meta), r.payload) }

// same reports whether two copies have the same place. A place is never used twice.
func (r *record) same(o *record) bool { return r.seg == o.seg && r.block == o.block }

const slabLen = 256

// index finds records by key and orders them by time of use. Records have ids from 1; id 0 is the
// head of the ring of uses. About 70 bytes per record.
type index struct {
	seed  maphash.Seed
	heads []uint32 // buckets, a power of two of them
	slabs []*[slabLen]record
	ids   uint32 // number of ids so far, 0 included
	free  uint32
	len   int
}

func newIndex() *index {
	return &index{seed: maphash.MakeSeed(), heads: make([]uint32, 16), slabs: []*[slabLen]record{{}}, ids: 1}
}

func (x *index) at(id uint32) *record { return &x.slabs[id/slabLen][id%slabLen] }

func (x *index) bucket(key *plan.Key) *uint32 {
	return &x.heads[maphash.Bytes(x.seed, key[:])&uint64(len(x.heads)-1)]
}

// find returns the id of a key, or 0.
func (x *index) find(key *plan.Key) uint32 {
	for id := *x.bucket(key); id != 0; id = x.at(id).chain {
		if x.at(id).key == *key {
			return id
		}
	}
	return 0
}

// add adds a new key as the most recently used one and returns its id. The caller sets its place.
func (x *index) add(key *plan.Key) uint32 {
	if x.len == len(x.heads) {
		x.grow()
	}
	id := x.free
	if id != 0 {
		x.free = x.at(id).chain
	} else {
		id = x.ids
		x.ids++
		if int(id/slabLen) == len(x.slabs) {
			x.slabs = append(x.slabs, new([slabLen]record))
		}
	}
	head := x.bucket(key)
	*x.at(id) = record{key: *key, chain: *head}
	*head = id
	x.len++
	x.link(id)
	return id
}

func (x *index) remove(id uint32) {
	r := x.at(id)
	at := x.bucket(&r.key)
	for *at != id {
		at = &x.at(*at).chain
	}
	*at = r.chain
	x.unlink(id)
	*r = record{chain: x.free}
	x.free = id
	x.len--
}

func (x *index) touch(id uint32) {
	x.unlink(id)
	x.link(id)
}

// oldest returns the least recently used id, or 0.
func (x *index) oldest() uint32 { return x.at(0).newer }

// link makes id the newest: the ring runs 0 → oldest → … → newest → 0 along newer.
func (x *index) link(id uint32) {
	ring, r := x.at(0), x.at(id)
	r.older, r.newer = ring.older, 0
	x.at(ring.older).newer = id
	ring.older = id
}

func (x *index) unlink(id uint32) {
	r := x.at(id)
	x.at(r.older).newer = r.newer
	x.at(r.newer).older = r.older
}

func (x *index) grow() {
	x.heads = make([]uint32, 2*len(x.heads))
	for id := x.oldest(); id != 0; id = x.at(id).newer {
		head := x.bucket(&x.at(id).key)
		x.at(id).chain = *head
		*head = id
	}
}
