package residency

import "grebe/plan"

// Event says that an entry changed its tier. Tier is the nearest tier that has it after the change, or Missing.
type Event struct {
	Seq uint64 // from 1, without gaps
	Key plan.Key
	Entry
}

// Feed is an append-only log of events since the server's start, of which it keeps the last ones. A follower asks for
// the events after the last one that it knows. If these are no longer kept, or the server was restarted, the follower
// starts over with a snapshot.
type Feed struct {
	boot uint64
	seq  uint64  // of the last event
	ring []Event // event s is at s % len
}

// NewFeed returns an empty feed that keeps the last size events. Boot identifies the start of the server.
func NewFeed(boot uint64, size int) *Feed { return &Feed{boot: boot, ring: make([]Event, size)} }

// Boot returns the value that identifies the start of the server.
func (f *Feed) Boot() uint64 { return f.boot }

// Seq returns the number of the last event; 0 before the first.
func (f *Feed) Seq() uint64 { return f.seq }

func (f *Feed) add(key plan.Key, e Entry) {
	f.seq++
	f.ring[f.seq%uint64(len(f.ring))] = Event{f.seq, key, e}
}

// Since appends to dst the events after number seq, at most most of them. It returns false when boot is not this
// feed's, when some of the events are no longer kept, or when seq is in the future.
func (f *Feed) Since(dst []Event, boot, seq uint64, most int) ([]Event, bool) {
	if boot != f.boot || seq > f.seq || f.seq-seq > uint64(len(f.ring)) {
		return dst, false
	}
	for s := seq + 1; s <= f.seq && s <= seq+uint64(most); s++ {
		dst = append(dst, f.ring[s%uint64(len(f.ring))])
	}
	return dst, true
}

// SetFeed adds an event to f whenever an entry changes its tier. It may be called at any time, because a follower takes
// a Snapshot first.
func (c *Core[V]) SetFeed(f *Feed) { c.feed = f }

// piece is the number of entries that Snapshot visits between two pauses.
const piece = 256

// Snapshot calls f with each entry in memory or on disk, in no order. It calls pause after every piece entries. During
// a pause the owner may let others change the books.
//
// An entry that changes during the snapshot may be left out, or be passed to f twice, the newer state last. So a
// follower reads the feed's number before the snapshot, keeps the last state that f got for each key, and then applies
// the events after that number. These include every change since the snapshot began.
func (c *Core[V]) Snapshot(f func(key plan.Key, e Entry), pause func()) {
	c.Scan(f, func() bool { pause(); return true })
}

// Scan is a Snapshot that ends early when pause returns false.
func (c *Core[V]) Scan(f func(key plan.Key, e Entry), pause func() bool) {
	looked := 0
	rest := func() bool {
		looked++
		return looked%piece != 0 || pause()
	}
	for h := range c.held.all() {
		key := h.Key
		e, _ := c.Lookup(key)
		f(key, e)
		if !rest() {
			return
		}
	}
	for key, e := range c.below {
		if c.held.get(&key) == nil {
			f(key, e)
		}
		if !rest() {
			return
		}
	}
}

// changed adds an event with the current tier of an entry.
func (c *Core[V]) changed(key plan.Key) {
	if c.feed == nil {
		return
	}
	e, _ := c.Lookup(key) // zero: Missing
	c.feed.add(key, e)
}
