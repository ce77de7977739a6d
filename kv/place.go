package kv

import (
	"fmt"
	"slices"

	"grebe/compute"
	"grebe/plan"
	"grebe/pool"
	"grebe/residency"
)

// level is a pool of memory. The store has one where the device computes. Below it there may be one of host
// memory: entries that the top level evicts move down to it, and move up again when they are used.
type level struct {
	index int // index on the books
	place plan.Tier
	pool  *pool.Pool
	slots int   // most entries
	room  int64 // size in bytes, as last told to the books
}

// maxEntries is the most entries of a level. It bounds the memory of the policy.
const maxEntries = 1 << 19

func newLevel(p *pool.Pool, shape *compute.Shape) *level {
	books := p.Stats()
	l := &level{pool: p, place: plan.Host, room: books.Total}
	if p.Memory().Host() != p.Memory() {
		l.place = plan.Device
	}
	page := int64(books.Page)
	least := (int64(shape.ChunkBytes(1, false)) + page - 1) / page * page // bytes of an entry of one token
	l.slots = int(min(max(books.Arena/least, 1), maxEntries))
	return l
}

// resize tells the books the size of a level when the boundary of its pool has moved. The policy compares itself with
// an LRU cache of that size. The caller holds Store.mu.
func (s *Store) resize(l *level) {
	if room := max(l.pool.Stats().Total, 1); room != l.room {
		l.room = room
		if s.rec.On() {
			s.rec.In("resize", l.place, room)
		}
		s.books.Resize(l.index, room)
	}
}

// evictable reports whether an entry has no reader and, if it is a run, is a leaf.
func evictable(p *published) bool {
	return p.Value.entry.refs.Load() == 1 && (p.Value.node == nil || removable(p))
}

// usable reports whether a device that computes in the level's memory can use a block in place.
func (l *level) usable(b *compute.Block) bool { return b.Addr != 0 || l.place == plan.Host }

// newChunk allocates a chunk on a level. It evicts entries until the chunk fits.
func (s *Store) newChunk(l *level, tokens int) (*chunk, error) {
	for {
		run, err := s.allocRun(l, tokens)
		if err == nil {
			c := &chunk{run: run, tokens: tokens, level: l}
			c.refs.Store(1)
			return c, nil
		}
		if !s.evictOne(l) {
			return nil, fmt.Errorf("%w (%d tokens wanted)", ErrFull, tokens)
		}
	}
}

// evictOne evicts one entry from a level, which the policy chooses among those without readers. It returns
// false when there is none.
func (s *Store) evictOne(l *level) bool {
	s.mu.Lock()
	s.resize(l)
	p, exit := s.victim(l)
	switch {
	case p == nil:
		s.mu.Unlock()
		return false
	case exit == residency.Forget:
		s.forget(p)
	case exit == residency.Lower:
		s.move(p, s.host)
	default:
		s.drop(p)
	}
	return true
}

// drop releases an entry that is off the books. It is called with mu held, and unlocks it.
func (s *Store) drop(p *published) {
	lost := !p.Clean()
	s.watchEvicted(p)
	s.unlock()
	if s.below != nil && lost {
		s.below.lost.Add(1)
	}
	s.dropped(p.Key, p.Kind)
	p.Value.entry.Release()
}

// move copies an entry that is on no level's books to a level. If there is no room, the entry stays in host
// memory if it was there, and is dropped otherwise. During the copy it can be found where it was. move is
// called with mu held, and unlocks it.
func (s *Store) move(p *published, to *level) {
	from := p.Value.entry
	from.Retain()
	defer from.Release()
	s.mu.Unlock()
	copied, err := s.copyTo(to, from)
	s.mu.Lock()
	if s.rec.On() {
		s.rec.In("moved", [32]byte(p.Key), to.place, err == nil)
	}
	s.moved.Broadcast()
	landed := s.books.Moved(p, to.index, err == nil)
	if copied != nil && landed != residency.There {
		defer copied.Release()
	}
	switch landed {
	case residency.There:
		p.Value.entry = copied
		s.unlock()
		from.Release() // the store has a reference to the copy instead
		if to == s.host {
			s.kick()
		}
	case residency.Out:
		s.drop(p)
	default:
		s.unlock()
	}
}

// copyTo returns a copy of an entry on a level.
func (s *Store) copyTo(to *level, from *Entry) (*Entry, error) {
	e := s.newEntry(from.len)
	var moves []compute.Move
	for _, c := range from.chunks {
		n, err := s.newChunk(to, c.tokens)
		if err != nil {
			e.Release()
			return nil, err
		}
		e.add(n)
		size := s.shape.ChunkBytes(c.tokens, false)
		moves = append(moves, compute.MoveAll(n.run.Slice(0, size), c.run.Slice(0, size)))
	}
	if err := s.top.pool.Memory().Copy(moves...); err != nil {
		e.Release()
		return nil, fmt.Errorf("kv: move %d tokens: %w", from.len, err)
	}
	return e, nil
}

// find returns the entry under key in memory that the device can use, and the tier where it was; nil when
// there is none. It is called with mu held, which it may release for a while.
func (s *Store) find(key plan.Key) (*published, plan.Tier) {
	for {
		if s.rec.On() {
			s.recordFind(key)
		}
		p, where := s.books.Use(key, s.inPlace)
		s.watchHit(p, where)
		s.learn()
		switch where {
		case residency.Nowhere:
			return nil, plan.Missing
		case residency.Here:
			return p, p.Value.entry.Tier()
		case residency.Coming:
			s.moved.Wait()
			continue
		}
		s.move(p, s.top)
		s.mu.Lock()
		if s.books.Get(key) != p {
			return nil, plan.Missing
		}
		if p.Level() < 0 {
			continue // another goroutine moved it
		}
		if !s.inPlace(p) { // no room
			return nil, plan.Missing
		}
		return p, plan.Host
	}
}

// usableInPlace reports whether the device can use an entry where it is.
func (s *Store) usableInPlace(p *published) bool { return p.Value.entry.usable(s.top) }

// Stats count the entries of one kind on a level, and those that left it to make room.
type Stats = residency.Counts

// Stats returns the counts of a kind, summed over the given tiers or over all of memory.
func (s *Store) Stats(kind plan.Kind, at ...plan.Tier) Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sum Stats
	for _, l := range s.levels {
		if len(at) > 0 && !slices.Contains(at, l.place) {
			continue
		}
		t := s.books.Counts(l.index, kind)
		sum.Entries += t.Entries
		sum.Bytes += t.Bytes
		sum.Evicted += t.Evicted
		sum.Lowered += t.Lowered
	}
	return sum
}
