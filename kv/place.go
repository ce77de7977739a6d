package kv

import (
	"errors"
	"fmt"
	"slices"

	"grebe/compute"
	"grebe/evict"
	"grebe/internal/record"
	"grebe/plan"
	"grebe/pool"
)

// Place is where an entry's memory is.
type Place uint8

const (
	Nowhere Place = iota
	Device        // memory that the host cannot see
	Host
)

// level is a pool of memory and the published entries in it. The store has one where the device
// computes, and may have one of the host's below it, to which entries are lowered that have to make
// room, and from which they are raised when they are used.
type level struct {
	place   Place
	pool    *pool.Pool
	policy  evict.Policy
	room    int64 // bytes, as the policy knows
	bySlot  []*published
	free    []evict.Slot
	recency recency
	dirty   recency // of the entries that are not below yet; nil: there is no tier
	unclean int     // how many these are
	now     int64   // uses so far: the policy's clock

	forecast *forecast // nil: nothing is predicted
	teach    func(*level)

	stats [kinds]Stats
	rec   *record.Room
}

// maxEntries is how many entries a level holds at most, for the sake of the policy's memory.
const maxEntries = 1 << 19

func newLevel(p *pool.Pool, shape *compute.Shape) *level {
	books := p.Stats()
	l := &level{pool: p, place: Host}
	if p.Memory().Host() != p.Memory() {
		l.place = Device
	}
	page := int64(books.Page)
	least := (int64(shape.ChunkBytes(1, false)) + page - 1) / page * page // bytes of an entry of one token
	slots := int(min(max(books.Total/least, 1), maxEntries))
	l.bySlot, l.recency = make([]*published, slots), newRecency(slots)
	l.free = make([]evict.Slot, slots)
	for i := range l.free {
		l.free[i] = evict.Slot(slots - 1 - i)
	}
	return l
}

// setPolicy chooses who leaves the level, which is empty.
func (l *level) setPolicy(name string) (err error) {
	l.room = l.pool.Stats().Total
	c := evict.Config{Slots: len(l.bySlot), Bytes: l.room}
	if l.forecast != nil {
		c.Refresh = l.refresh
	}
	l.policy, err = evict.New(name, c)
	if err != nil {
		return fmt.Errorf("kv: %w", err)
	}
	return nil
}

// resize tells the policy when the pool's boundary was moved: what it compares itself with has as much room.
func (l *level) resize() {
	if room := max(l.pool.Stats().Total, 1); room != l.room {
		if l.rec.On() {
			l.rec.In("resize", l.place, room)
		}
		l.room = room
		l.policy.Resize(room)
	}
}

// evictable reports whether nobody reads the entry in a slot, and nothing known follows it.
func (l *level) evictable(s evict.Slot) bool {
	p := l.bySlot[s]
	return p.entry.refs.Load() == 1 && (p.node == nil || p.removable())
}

// put takes an entry onto the books, in a free slot. The caller holds Store.mu.
func (l *level) put(p *published) {
	p.level, p.slot, p.used = l, l.free[len(l.free)-1], false
	l.free = l.free[:len(l.free)-1]
	l.bySlot[p.slot] = p
	if l.rec.On() {
		l.rec.Did("put", p.name(), l.place, p.kindName(), p.entry.len, p.entry.bytes)
	}
	l.recency.add(p.slot)
	l.soil(p)
	l.count(p, 1)
	if l.forecast != nil {
		l.forecast.Hold(len(l.bySlot) - len(l.free))
	}
	a := l.access(p)
	l.policy.Miss(a)
	l.policy.Insert(p.slot, a)
}

// take takes an entry off the books. The policy has let it go already if it chose it.
func (l *level) take(p *published, chosen bool) {
	if l.rec.On() {
		l.rec.Did("take", p.name(), l.place, chosen)
	}
	if !chosen {
		l.policy.Remove(p.slot)
	}
	l.cleaned(p)
	l.bySlot[p.slot] = nil
	l.free = append(l.free, p.slot)
	l.recency.remove(p.slot)
	l.count(p, -1)
	p.level = nil
}

// hit notes a use.
func (l *level) hit(p *published) {
	if l.rec.On() {
		l.rec.Did("hit", p.name(), l.place)
	}
	l.recency.use(p.slot)
	if p.dirty {
		l.dirty.use(p.slot)
	}
	l.policy.Hit(p.slot, l.access(p))
}

// track has the level list its dirty entries. It MUST be called while the level is empty.
func (l *level) track() { l.dirty = newRecency(len(l.bySlot)) }

// maxTries is how many writes of an entry may fail before it is not written any more.
const maxTries = 3

// soil lists an entry of the level as dirty, unless it is below already, on its way there, or not worth trying again.
func (l *level) soil(p *published) {
	if l.dirty == nil || p.clean || p.writing || p.dirty || p.tries >= maxTries {
		return
	}
	p.dirty = true
	l.unclean++
	l.dirty.add(p.slot)
}

// cleaned takes an entry of the level off the list of dirty ones.
func (l *level) cleaned(p *published) {
	if p.dirty {
		p.dirty = false
		l.unclean--
		l.dirty.remove(p.slot)
	}
}

// access describes a use of an entry to the policy.
func (l *level) access(p *published) evict.Access {
	l.now++
	return evict.Access{Key: p.key.hash(), Bytes: max(p.entry.bytes, 1), Now: l.now, Return: l.predict(p), Cost: float64(p.entry.len)}
}

func (l *level) count(p *published, n int) {
	s := &l.stats[p.kind]
	s.Entries += n
	s.Bytes += int64(n) * p.entry.bytes
}

// usable reports whether a device that computes in the level's memory can use a block in place.
func (l *level) usable(b *compute.Block) bool { return b.Addr != 0 || l.place == Host }

// newChunk allocates a chunk of a level, evicting entries until it fits.
func (s *Store) newChunk(l *level, tokens int) (*chunk, error) {
	for {
		run, err := l.pool.Alloc(s.shape.ChunkBytes(tokens, false))
		if err == nil {
			c := &chunk{run: run, tokens: tokens, level: l}
			c.refs.Store(1)
			return c, nil
		}
		if !errors.Is(err, pool.ErrFull) {
			return nil, err
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
	l.resize()
	slot, ok := s.victim(l)
	if !ok {
		s.mu.Unlock()
		return false
	}
	p := l.bySlot[slot]
	l.take(p, true)
	if p.node != nil {
		l.stats[p.kind].Evicted++
		s.forget(p)
		return true
	}
	if l == s.top && s.host != nil {
		l.stats[p.kind].Lowered++
		s.move(p, s.host)
		return true
	}
	l.stats[p.kind].Evicted++
	s.drop(p)
	return true
}

// drop forgets an entry that is on no level's books. It is called with mu held, and unlocks it.
func (s *Store) drop(p *published) {
	if s.rec.On() {
		s.rec.Did("drop", p.name(), p.clean)
	}
	lost := !p.clean
	delete(s.index, p.key)
	s.check()
	s.mu.Unlock()
	if s.below != nil && lost {
		s.below.lost.Add(1)
	}
	s.dropped(p.key)
	p.entry.Release()
}

// move copies an entry that is on no level's books to a level, where it then is; where there is no
// room for it, it stays where it was if that is the host's, and is dropped otherwise. It is called
// with mu held, and unlocks it. Meanwhile the entry can be found where it was.
func (s *Store) move(p *published, to *level) {
	from := p.entry
	from.Retain()
	defer from.Release()
	s.mu.Unlock()
	copied, err := s.copyTo(to, from)
	s.mu.Lock()
	if s.rec.On() {
		s.rec.In("moved", p.name(), to.place, err == nil, s.index[p.key] == p)
	}
	s.moved.Broadcast()
	if s.index[p.key] == p && err == nil && len(to.free) > 0 {
		p.entry = copied
		to.put(p)
		s.check()
		s.mu.Unlock()
		from.Release() // the store's reference, in place of which it has the copy's
		s.relocated(p.key, to.place)
		if to == s.host {
			s.kick()
		}
		return
	}
	if copied != nil {
		defer copied.Release()
	}
	switch {
	case s.index[p.key] != p: // deleted or replaced meanwhile
		s.mu.Unlock()
	case to == s.top && len(s.host.free) > 0:
		s.host.put(p)
		s.check()
		s.mu.Unlock()
	default:
		s.host.stats[p.kind].Evicted++
		s.drop(p)
	}
}

// copyTo returns a copy of an entry in a level.
func (s *Store) copyTo(to *level, from *Entry) (*Entry, error) {
	e := &Entry{store: s, len: from.len}
	e.refs.Store(1)
	moves := make([]compute.Move, 0, len(from.chunks))
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
func (s *Store) find(key Key) (*published, Place) {
	for {
		p, ok := s.index[key]
		if !ok {
			return nil, Nowhere
		}
		if s.rec.On() {
			s.rec.In("find", p.name())
		}
		if p.level == nil { // on its way
			if p.entry.usable(s.top) {
				return p, p.entry.place()
			}
			s.moved.Wait()
			continue
		}
		p.level.hit(p)
		if p.level == s.top || !p.used && p.entry.usable(s.top) {
			p.used = true
			return p, p.level.place
		}
		p.level.take(p, false)
		s.move(p, s.top)
		s.mu.Lock()
		if s.index[key] != p {
			return nil, Nowhere
		}
		if p.level != nil && !p.entry.usable(s.top) { // no room
			return nil, Nowhere
		}
		if p.level != nil {
			return p, Host
		}
	}
}

// Stats count what a level holds, and what left it to make room, of one kind. Bytes shared by two
// entries count for both.
type Stats struct {
	Entries int
	Bytes   int64
	Evicted int64 // dropped
	Lowered int64 // moved to the host's memory
}

// Stats returns the counts of a kind, in all of memory or at some places.
func (s *Store) Stats(kind plan.Kind, at ...Place) Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	var sum Stats
	for _, l := range s.levels {
		if len(at) > 0 && !slices.Contains(at, l.place) {
			continue
		}
		t := &l.stats[kind]
		sum.Entries += t.Entries
		sum.Bytes += t.Bytes
		sum.Evicted += t.Evicted
		sum.Lowered += t.Lowered
	}
	return sum
}
