package feed

import (
	"iter"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/residency"
)

// Audit adds up what a node's books hold, by bucket, and collects the entries of wanted buckets. The books change
// meanwhile. A bucket with a change between begin and end is not valid. Of the others, the audit has the state after
// the event at which it ended.
//
// An audit does not change after its end, and may be used by several sessions.
type Audit struct {
	books     Books
	secret    *Secret
	next      func() ([]residency.Event, bool)
	stop      func()
	boot, seq uint64
	sums      sums
	valid     bitset
	repairs   map[uint32]*clusterv1.Entries // nil: the bucket has too many entries
}

// Audit begins an audit. The caller calls Step until it returns true, or Stop. Buckets that are wanted twice count
// once.
func (p *Publisher) Audit(want []uint32) *Audit {
	a := &Audit{
		books: p.books, secret: &p.secret, sums: sums{make([]uint64, buckets), make([]uint64, buckets)},
		repairs: map[uint32]*clusterv1.Entries{},
	}
	a.boot, a.seq = p.books.Position()
	a.valid.fill()
	for _, b := range want {
		a.repairs[b] = &clusterv1.Entries{}
	}
	a.next, a.stop = iter.Pull(p.books.Scan)
	return a
}

// Step takes a piece of the books. It returns true when the audit is complete.
func (a *Audit) Step() bool {
	piece, ok := a.next()
	if !ok {
		a.end()
		return true
	}
	for i := range piece {
		e := &piece[i]
		digest := a.secret.Digest(&e.Key)
		at := residency.Mix(digest)
		a.sums.add(at, &e.Entry)
		b := uint32(bucketOf(at))
		if into := a.repairs[b]; into != nil {
			if appendEntry(into, digest, &e.Entry); len(into.Keys) > mostEntries {
				a.repairs[b] = nil
			}
		}
	}
	return false
}

// Stop ends an audit that is not complete. It has no effect on one that is.
func (a *Audit) Stop() { a.stop() }

// end invalidates the buckets that changed.
func (a *Audit) end() {
	a.stop()
	boot, seq := a.books.Position()
	var buf []residency.Event
	if boot != a.boot || !mark(a.books, a.secret, &buf, a.boot, a.seq, seq, &a.valid) {
		a.valid = bitset{}
	}
	a.seq = seq
}

// mark invalidates the buckets of the events after number from, up to number to. It returns false if they are not kept.
func mark(books Books, secret *Secret, buf *[]residency.Event, boot, from, to uint64, valid *bitset) bool {
	for from < to {
		events, ok := books.Since((*buf)[:0], boot, from, int(min(maxPiece, to-from)))
		if *buf = events; !ok {
			return false
		}
		for i := range events {
			valid.clear(bucketOf(residency.Mix(secret.Digest(&events[i].Key))))
		}
		from += uint64(len(events))
	}
	return true
}
