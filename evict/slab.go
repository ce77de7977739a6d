package evict

import "math"

// Slab chooses within sets of 64 slots, as a cache of embedding rows has them, where hits take no lock: all that is known of
// a row is one word, its [Stamp], which a hit replaces. The missed row competes: it may be declined.
//
// A stamp has two decayed counts of uses, with a short and a long half-life, as LRFU keeps them: the logarithm of a count
// as of now is a difference, so nothing has to be touched while time passes. What a row is worth is the logarithm of the long
// count plus a multiple of the short one; which multiple, or plain LRU, is a [Mode], and [Tuner] finds the best. A
// [Ghost] remembers the stamps of some rows that are not cached, so that a row's uses count before it has a place.
//
// The zero Slab is not ready; NewSlab makes one.
type Slab struct {
	last, short, long uint // shifts from accesses to units of the fields
}

// SlabSlots is the number of slots of a set.
const SlabSlots = 64

// Stamp is what is known of a row's uses: last 24 bits, short 20, long 20. Counts are logarithms, in 32nds, plus the time of
// the last use in 32nds of the half-life; all wrap around.
type Stamp uint64

const (
	fieldBits = 20
	fieldMask = 1<<fieldBits - 1
	fraction  = 5 // bits of a halving
)

// NewSlab is for a cache of so many rows: half-lives of one and of 64 times as many accesses.
func NewSlab(rows int) Slab {
	n := uint(max(6, math.Ilogb(float64(max(rows, 1)))))
	return Slab{last: n - 6, short: n, long: n + 6}
}

func field(now uint64, halfLife uint) uint64 { return now >> (halfLife - fraction) }

// behind is the logarithm of a count now: a field's distance from the time.
func behind(f, t uint64) int32 { return int32(uint32(f-t)<<(32-fieldBits)) >> (32 - fieldBits) }

// First is the stamp of a row's first use.
func (c Slab) First(now uint64) Stamp {
	return Stamp(now>>c.last<<(2*fieldBits) | field(now, c.short)&fieldMask<<fieldBits | field(now, c.long)&fieldMask)
}

// Use is the stamp after another use.
func (c Slab) Use(m Stamp, now uint64) Stamp {
	s, l := field(now, c.short), field(now, c.long)
	short := s + uint64(plusOne(behind(uint64(m)>>fieldBits, s)))
	long := l + uint64(plusOne(behind(uint64(m), l)))
	return Stamp(now>>c.last<<(2*fieldBits) | short&fieldMask<<fieldBits | long&fieldMask)
}

// Age is the time since the last use, in 64ths of the cache's size.
func (c Slab) Age(m Stamp, now uint64) int32 {
	return int32(uint32(now>>c.last-uint64(m)>>(2*fieldBits))<<8) >> 8
}

// Mode is how stamps are valued.
type Mode int32

// LRU values the last use only. The other modes add to the long count the short one times 2^(Mode−1).
const LRU Mode = 0

const modes = 4

// Value grows with what a row is worth.
func (c Slab) Value(m Stamp, now uint64, mode Mode) int32 {
	if mode == LRU {
		return -c.Age(m, now)
	}
	a := behind(uint64(m), field(now, c.long))
	b := behind(uint64(m)>>fieldBits, field(now, c.short)) + int32(mode-1)*(1<<fraction)*modeStep
	if a < b {
		a, b = b, a
	}
	return a + more(a-b)
}

const modeStep = 2

// plusOne is log2(2^d + 1) in 32nds.
func plusOne(d int32) int32 {
	if d < 0 {
		return more(-d)
	}
	return d + more(d)
}

// more is log2(1 + 2^−d) in 32nds, for d ≥ 0.
func more(d int32) int32 {
	if d >= int32(len(moreOf)) {
		return 0
	}
	return int32(moreOf[d])
}

var moreOf = func() (t [7 << fraction]uint8) {
	for d := range t {
		t[d] = uint8(math.Round(math.Log2(1+math.Exp2(-float64(d)/(1<<fraction))) * (1 << fraction)))
	}
	return t
}()

// Queue has the slots of a set that go next, found by a look at all: most misses look at one of them only.
type Queue struct {
	slots    [7]uint8
	n        uint8
	at       uint64 // time of the look
	declined uint8
}

// patience is how many missed rows are declined before a set is looked at again.
const patience = 32

// Place decides for a missed row with stamp m: the slot whose row it replaces, or false when it is worth less than all. The set
// is full; stamps loads a slot's.
func (c Slab) Place(q *Queue, m Stamp, now uint64, mode Mode, stamps func(slot int) Stamp) (int, bool) {
	for looked := false; ; {
		if q.n == 0 || q.declined >= patience {
			c.look(q, now, mode, stamps)
			looked = true
		}
		slot := int(q.slots[q.n-1])
		x := stamps(slot)
		if !looked && c.Age(x, q.at) < 0 { // used since the look; after a late one, all may have been
			q.n--
			continue
		}
		if c.Value(m, now, mode) < c.Value(x, now, mode) {
			q.declined++
			return 0, false
		}
		q.n--
		return slot, true
	}
}

// look finds the slots that are worth least, the least last.
func (c Slab) look(q *Queue, now uint64, mode Mode, stamps func(slot int) Stamp) {
	var values [7]int32
	*q = Queue{at: now}
	for slot := range SlabSlots {
		v := c.Value(stamps(slot), now, mode)
		if int(q.n) == len(q.slots) && v >= values[0] {
			continue
		}
		i := int(q.n)
		if i == len(q.slots) { // the first goes
			copy(values[:], values[1:])
			copy(q.slots[:], q.slots[1:])
			i--
		} else {
			q.n++
		}
		for ; i > 0 && values[i-1] < v; i-- {
			values[i], q.slots[i] = values[i-1], q.slots[i-1]
		}
		values[i], q.slots[i] = v, uint8(slot)
	}
}

// Ghost remembers stamps of rows that are not cached: of four whose places are the same, those worth most.
type Ghost [GhostLen]uint64

// GhostLen is the number of rows that a set remembers beside those that it has.
const GhostLen = 128

const ways = 4

// A word is tag<<40 | short<<20 | long.
func ghostAt(h uint64) (first int, tag uint64) {
	return int(h>>8) % (GhostLen / ways) * ways, h >> 16 << 40
}

// Take returns the stamp of a row that is used now, and forgets it.
func (g *Ghost) Take(c Slab, h, now uint64) Stamp {
	first, tag := ghostAt(h)
	for i := first; i < first+ways; i++ {
		if w := g[i]; w != 0 && w>>40 == tag>>40 {
			g[i] = 0
			return c.Use(Stamp(w&(1<<40-1)), now)
		}
	}
	return c.First(now)
}

// Put remembers a row that has no place.
func (g *Ghost) Put(c Slab, h uint64, m Stamp, now uint64, mode Mode) {
	first, tag := ghostAt(h)
	mode = max(mode, 1) // what LRU looks at is not remembered
	at, least := first, int32(math.MaxInt32)
	for i := first; i < first+ways; i++ {
		if g[i] == 0 {
			at = i
			break
		}
		if v := c.Value(Stamp(g[i]&(1<<40-1)), now, mode); v < least {
			at, least = i, v
		}
	}
	g[at] = tag | uint64(m)&(1<<40-1)
}
