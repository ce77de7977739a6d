package embed

import (
	"math/bits"
	"runtime"
	"sync"
	"unsafe"
)

// A gather looks up many keys in a pipeline, because waiting for one key's memory after the other's would take most of
// the time: a key's set is asked for, some keys later its row is, some keys later the row is copied. The distances were
// measured; between setAhead and rowAhead a set's line arrives, within rowAhead a row's.
const (
	setAhead = 16
	rowAhead = 5
	flight   = 32 // keys under way, a power of two
)

// lookup is a key under way.
type lookup struct {
	h    uint64
	set  *set
	slot int // that may be the key's, −1: none has its tag
}

// inParallel is how many keys make work for another thread.
const inParallel = 1024

// gather is Get for many keys, whose rows go to out; those that miss are listed in s.
func (c *Cache) gather(keys []uint64, out []byte, s *scratch) {
	s.at = c.tick(len(keys))
	e := c.gate.enter(s.stripe)
	s.sets = int(c.n.Load())
	if parts := min(len(keys)/inParallel, runtime.GOMAXPROCS(0)); parts > 1 {
		c.gatherParts(keys, out, s, parts)
	} else {
		c.gatherRun(keys, out, s, 0)
	}
	c.gate.leave(e, s.stripe, c.pool)
	c.hits.Add(int64(len(keys) - len(s.misses)))
	c.misses.Add(int64(len(s.misses)))
	if len(s.watched) > 0 {
		c.listens.record(s.watched)
	}
}

// gatherParts divides the keys among threads.
func (c *Cache) gatherParts(keys []uint64, out []byte, s *scratch, parts int) {
	for len(s.parts) < parts-1 {
		s.parts = append(s.parts, &scratch{})
	}
	var wg sync.WaitGroup
	for p := 1; p < parts; p++ {
		part := s.parts[p-1]
		part.reset()
		part.at, part.sets = s.at, s.sets
		first, last := len(keys)*p/parts, len(keys)*(p+1)/parts
		wg.Go(func() { c.gatherRun(keys[first:last], out[first*c.rowBytes:], part, first) })
	}
	c.gatherRun(keys[:len(keys)/parts], out, s, 0)
	wg.Wait()
	for _, part := range s.parts[:parts-1] {
		s.misses = append(s.misses, part.misses...)
		s.watched = append(s.watched, part.watched...)
	}
}

// gatherRun looks up keys that stand at first of the batch, by one thread.
func (c *Cache) gatherRun(keys []uint64, out []byte, s *scratch, first int) {
	var fly [flight]lookup
	mask := ^uint64(0)
	if c.listens != nil {
		mask = c.listens.mask.Load()
	}
	for i := range len(keys) + setAhead {
		if i < len(keys) {
			l := &fly[i%flight]
			l.h = mix(keys[i])
			l.set = &c.sets[c.home(l.h, s.sets)]
			prefetch(unsafe.Pointer(l.set), setHead)
		}
		if j := i - setAhead + rowAhead; j >= 0 && j < len(keys) {
			c.ahead(&fly[j%flight])
		}
		at := i - setAhead
		if at < 0 {
			continue
		}
		l := &fly[at%flight]
		now := s.at + uint64(first+at)
		if !c.take(l, now, out[at*c.rowBytes:(at+1)*c.rowBytes]) {
			s.misses = append(s.misses, int32(first+at))
		}
		if l.h&mask == 0 && c.listens != nil {
			s.watched = append(s.watched, access{l.h, now})
		}
	}
}

// ahead asks for the row of the first slot with the key's tag, which is the key's more often than not.
func (c *Cache) ahead(l *lookup) {
	m := l.set.match(tagOf(l.h))
	l.slot = -1
	if m == 0 {
		return
	}
	l.slot = bits.TrailingZeros64(m)
	base := unsafe.Add(c.origin, int(l.set.rows.Load()))
	prefetch(unsafe.Pointer(&l.set.slots[l.slot]), 16)
	prefetch(unsafe.Add(base, l.slot*c.rowBytes), c.rowBytes)
	if m &= m - 1; m != 0 {
		slot := bits.TrailingZeros64(m)
		prefetch(unsafe.Pointer(&l.set.slots[slot]), 16)
	}
}

// take copies a key's row; it tries the slot that was asked for first.
func (c *Cache) take(l *lookup, now uint64, dst []byte) bool {
	if l.slot < 0 {
		return false
	}
	s := l.set
	v := s.version.Load()
	if v&1 == 0 && s.slots[l.slot].key.Load() == l.h && s.tag(l.slot) != 0 {
		copyRow(dst, c.row(s, l.slot))
		if s.version.Load() == v {
			c.mark(s, l.slot, now)
			return true
		}
	}
	return c.read(l.h, s, now, dst)
}
