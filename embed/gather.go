package embed

import (
	"runtime"

	"grebe/evict"
	"grebe/internal/contain"
)

// inParallel is how many keys make work for another thread.
const inParallel = 1024

// gather is Get for many keys, whose rows go to out; those that miss are listed in s.
func (c *Cache) gather(keys []uint64, out []byte, s *scratch) {
	s.at = c.tick(len(keys))
	c.gatherInside(keys, out, s)
	misses := len(s.misses) + s.near.misses()
	c.hits.Add(int64(len(keys) - misses))
	c.misses.Add(int64(misses))
	c.offered(s.near.declined, s.near.evicted)
	if len(s.watched) > 0 {
		c.listens.record(s.watched)
	}
}

// gatherInside looks up keys while the sets stay where they are.
func (c *Cache) gatherInside(keys []uint64, out []byte, s *scratch) {
	e := c.gate.enter(s.stripe)
	defer func() { c.gate.leave(e, s.stripe, c.pool) }()
	s.sets = int(c.n.Load())
	if parts := min(len(keys)/inParallel, runtime.GOMAXPROCS(0)); parts > 1 {
		c.gatherParts(keys, out, s, parts)
	} else {
		c.gatherRun(keys, out, s, 0)
	}
}

// gatherParts divides the keys among threads.
func (c *Cache) gatherParts(keys []uint64, out []byte, s *scratch, parts int) {
	for len(s.parts) < parts-1 {
		s.parts = append(s.parts, &scratch{})
	}
	var wg contain.Group
	for p := 1; p < parts; p++ {
		part := s.parts[p-1]
		part.reset()
		part.at, part.sets = s.at, s.sets
		part.near.reset(s.near.table)
		first, last := len(keys)*p/parts, len(keys)*(p+1)/parts
		if s.near.known != nil {
			part.near.known = s.near.known[first:last]
		}
		wg.Go(func() { c.gatherRun(keys[first:last], out[first*c.rowBytes:], part, first) })
	}
	c.gatherRun(keys[:len(keys)/parts], out, s, 0)
	wg.Wait()
	for _, part := range s.parts[:parts-1] {
		s.misses = append(s.misses, part.misses...)
		s.watched = append(s.watched, part.watched...)
		s.near.add(&part.near)
	}
}

// step is how many rows are copied before their uses are recorded: their slots are still in the nearest cache.
const step = 128

// gatherRun looks up keys that stand at first of the batch, by one thread.
func (c *Cache) gatherRun(keys []uint64, out []byte, s *scratch, first int) {
	if len(keys) == 0 {
		return
	}
	out = out[:len(keys)*c.rowBytes]
	l := &s.lookups
	l.begin(c, keys, s.sets, s.near.memory())
	l.run(c, out, -lead, 0)
	for from := 0; from < len(keys); from += step {
		to := min(from+step, len(keys))
		l.run(c, out, from, to)
		c.settle(l, out, from, to, s, first)
		s.near.advance(c, out, s.sets)
	}
	for !s.near.done() {
		s.near.advance(c, out, s.sets)
	}
}

// settle records uses and lists misses of keys whose rows were copied, or not.
func (c *Cache) settle(l *lookups, out []byte, from, to int, s *scratch, first int) {
	mask := ^uint64(0)
	if c.listens != nil {
		mask = c.listens.mask.Load()
	}
	v, _ := c.chosen.(*valued)
	sets, slots, hashes := l.sets[lead:], l.slots[lead:], l.hashes[lead:]
	now := s.at + uint64(first)
	marked := v != nil && l.marks(v.slab, from, to, now+uint64(from))
	for i := from; i < to; i++ {
		at := now + uint64(i)
		switch slot := slots[i]; {
		case slot >= 0 && marked:
		case slot >= 0 && v != nil:
			p := &sets[i].slots[slot%setSlots].meta
			mark(p, uint64(v.slab.Use(evict.Stamp(p.Load()), at)))
		case slot >= 0:
			c.mark(sets[i], slot, at)
		case slot == disturbed && c.read(hashes[i], sets[i], at, out[i*c.rowBytes:]):
		case l.near != nil:
			s.near.missed(c, i, l.keys[i], hashes[i], at, sets[i], out[i*c.rowBytes:][:c.rowBytes], slot == stored)
		default:
			s.misses = append(s.misses, int32(first+i))
		}
		if hashes[i]&mask == 0 && c.listens != nil {
			s.watched = append(s.watched, access{hashes[i], at})
		}
	}
}
