package residency

import "grebe/plan"

// Event is a change of where an entry is. Tier is the best tier that has it then, Missing when none has it.
type Event struct {
	Seq uint64 // from 1, without gaps
	Key plan.Key
	Entry
}

// Feed is the sequence of these changes since a server was started: append-only, of which the last ones are kept. Who
// follows it asks for what came after the last event that it knows. Where that is gone, or the feed is that of another
// boot, it begins again with a snapshot.
type Feed struct {
	boot uint64
	seq  uint64  // of the last event
	ring []Event // event s is at s % len
}

// NewFeed returns an empty feed that keeps the last size events. Boot tells the feeds of a server's starts apart.
func NewFeed(boot uint64, size int) *Feed { return &Feed{boot: boot, ring: make([]Event, size)} }

// Boot returns what tells this feed from those of other starts.
func (f *Feed) Boot() uint64 { return f.boot }

// Seq returns the number of the last event; 0 before the first.
func (f *Feed) Seq() uint64 { return f.seq }

func (f *Feed) add(key plan.Key, e Entry) {
	f.seq++
	f.ring[f.seq%uint64(len(f.ring))] = Event{f.seq, key, e}
}

// Since appends to dst the events after the one of number seq in the feed of a boot, at most so many. It returns false
// when the boot is another one, the events are not kept any more, or there never was such a number.
func (f *Feed) Since(dst []Event, boot, seq uint64, most int) ([]Event, bool) {
	if boot != f.boot || seq > f.seq || f.seq-seq > uint64(len(f.ring)) {
		return dst, false
	}
	for s := seq + 1; s <= f.seq && s <= seq+uint64(most); s++ {
		dst = append(dst, f.ring[s%uint64(len(f.ring))])
	}
	return dst, true
}

// SetFeed has each change of where an entry is added to a feed. It may be called at any time: who begins to follow takes
// a Snapshot first.
func (c *Core[V]) SetFeed(f *Feed) { c.feed = f }

// piece is how many entries a Snapshot looks at between two pauses.
const piece = 256

// Snapshot calls f with each entry that memory or the disk has, in no order. It calls pause after every few entries; the
// owner may let others change the books there.
//
// An entry that changes meanwhile may be left out, or be told twice, of which the last is newer. So who follows reads the feed's
// number before the snapshot, replaces what it knows of a key by what f was told last, and goes on with the events behind that
// number: each change of a key since then is among them.
func (c *Core[V]) Snapshot(f func(key plan.Key, e Entry), pause func()) {
	looked := 0
	rest := func() {
		if looked++; looked%piece == 0 {
			pause()
		}
	}
	// A loop over a map visits each key exactly once that is there from its begin to its end.
	for key := range c.held {
		e, _ := c.Lookup(key)
		f(key, e)
		rest()
	}
	for key, e := range c.below {
		if c.held[key] == nil {
			f(key, e)
		}
		rest()
	}
}

// changed adds where an entry is now to the feed.
func (c *Core[V]) changed(key plan.Key) {
	if c.feed == nil {
		return
	}
	e, _ := c.Lookup(key) // zero: Missing
	c.feed.add(key, e)
}
