package kv

import (
	"fmt"
	"slices"

	"grebe/compute"
	"grebe/plan"
	"grebe/pool"
	"grebe/residency"
)

// level is a pool of memory. The store has one where the device
// computes, and may have one of the host's below it, to which entries are lowered that have to make
// room, and from which they are raised when they are used.
type level struct {
	index int // on the books
	place plan.Tier
	pool  *pool.Pool
	slots int   // entries that it holds at most
	room  int64 // bytes, as the books know
}

// maxEntries is how many entries a level holds at most, for the sake of the policy's memory.
const maxEntries = 1 << 19

func newLevel(p *pool.Pool, shape *compute.Shape) *level {
	books := p.Stats()
	l := &level{pool: p, place: plan.Host, room: books.Total}
	if p.Memory().Host() != p.Memory() {
		l.place = plan.Device
	}
	page := int64(books.Page)
	least := (int64(shape.ChunkBytes(1, false)) + page - 1) / page * page // bytes of an entry of one token
	l.slots = int(min(max(books.Total/least, 1), maxEntries))
	return l
}

// resize tells the books when the pool's boundary was moved: what the policy compares itself with has as much room.
// The caller holds Store.mu.
func (s *Store) resize(l *level) {
	if room := max(l.pool.Stats().Total, 1); room != l.room {
		l.room = room
		if s.rec.On() {
			s.rec.In("resize", l.place, room)
		}
		s.books.Resize(l.index, room)
	}
}

// evictable reports whether nobody reads an entry, and nothing known follows it.
func evictable(p *published) bool {
	return p.Value.entry.refs.Load() == 1 && (p.Value.node == nil || removable(p))
}

// usable reports whether a device that computes in the level's memory can use a block in place.
func (l *level) usable(b *compute.Block) bool { return b.Addr != 0 || l.place == plan.Host }

// newChunk allocates a chunk of a level, evicting entries until it fits.
func (s *Store) newChunk(l *level, tokens int) (*chunk, error) {
	for {
		run, err := l.pool.Alloc(s.shape.ChunkBytes(tokens, false))
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

// evictOne has the entry that the policy chooses among those that nobody reads leave a level; false
// when there is none.
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

// drop ends an entry that is off the books. It is called with mu held, and unlocks it.
func (s *Store) drop(p *published) {
	lost := !p.Clean()
	s.unlock()
	if s.below != nil && lost {
		s.below.lost.Add(1)
	}
	s.dropped(p.Key, p.Kind)
	p.Value.entry.Release()
}

// move copies an entry that is on no level's books to a level, where it then is; where there is no
// room for it, it stays where it was if that is the host's, and is dropped otherwise. It is called
// with mu held, and unlocks it. Meanwhile the entry can be found where it was.
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
		from.Release() // the store's reference, in place of which it has the copy's
		if to == s.host {
			s.kick()
		}
	case residency.Out:
		s.drop(p)
	default:
		s.unlock()
	}
}

// copyTo returns a copy of an entry in a level.
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

// find returns the entry under key where the device can use it, and where it was; nil when there is
// none. It is called with mu held, which it may give up for a while.
func (s *Store) find(key plan.Key) (*published, plan.Tier) {
	for {
		if s.rec.On() {
			s.recordFind(key)
		}
		p, where := s.books.Use(key, s.inPlace)
		s.learn()
		switch where {
		case residency.Nowhere:
			return nil, plan.Missing
		case residency.Here:
			return p, p.Value.entry.place()
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
			continue // another one moves it
		}
		if !s.inPlace(p) { // no room
			return nil, plan.Missing
		}
		return p, plan.Host
	}
}

// usableInPlace reports whether the device can use an entry where it is.
func (s *Store) usableInPlace(p *published) bool { return p.Value.entry.usable(s.top) }

// Stats count what a level holds, and what left it to make room, of one kind.
type Stats = residency.Counts

// Stats returns the counts of a kind, in all of memory or at some places.
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
