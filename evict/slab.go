package evict

import "math"

// Slab chooses victims within sets of 64 slots, as in a cache of embedding rows, where hits take no lock. All it knows
// of a row is one word, its [Stamp], which a hit replaces. The missed row competes with those in the set and may be
// declined.
//
// A stamp holds two decayed counts of uses, with a short and a long half-life, as in LRFU. The logarithm of a count as
// of now is a difference, so nothing needs an update as time passes. A row's value is the logarithm of the long count
// plus a multiple of the short one. The [Mode] sets the multiple, or plain LRU; [Tuner] finds the best mode. A [Ghost]
// remembers the stamps of some rows that are not cached, so that a row's uses count before it has a slot.
//
// The zero Slab is not usable; NewSlab makes one.
type Slab struct {
	last, short, long uint // shifts from accesses to units of the fields
}

// SlabSlots is the number of slots of a set.
const SlabSlots = 64

// Stamp records a row's uses: last 24 bits, short 20, long 20. A count is stored as its logarithm in 32nds, plus the
// time of the last use in 32nds of the half-life. All fields wrap around.
type Stamp uint64

const (
	fieldBits = 20
	fieldMask = 1<<fieldBits - 1
	fraction  = 5 // bits per halving
)

// NewSlab makes a Slab for a cache of that many rows. The half-lives are that many accesses and 64 times as many.
func NewSlab(rows int) Slab {
	n := uint(max(6, math.Ilogb(float64(max(rows, 1)))))
	return Slab{last: n - 6, short: n, long: n + 6}
}

func field(now uint64, halfLife uint) uint64 { return now >> ((halfLife - fraction) & 63) }

// behind returns the logarithm of a count now: the difference between a field and the time.
func behind(f, t uint64) int32 { return int32(uint32(f-t)<<(32-fieldBits)) >> (32 - fieldBits) }

// First returns the stamp of a row's first use.
func (c Slab) First(now uint64) Stamp {
	return Stamp(now>>(c.last&63)<<(2*fieldBits) | field(now, c.short)&fieldMask<<fieldBits | field(now, c.long)&fieldMask)
}

// Use returns the stamp after another use.
func (c Slab) Use(m Stamp, now uint64) Stamp {
	s, l := field(now, c.short), field(now, c.long)
	short := s + uint64(plusOne(behind(uint64(m)>>fieldBits, s)))
	long := l + uint64(plusOne(behind(uint64(m), l)))
	return Stamp(now>>(c.last&63)<<(2*fieldBits) | short&fieldMask<<fieldBits | long&fieldMask)
}

// Steady returns the stamp of a row that has had this share of all accesses for long, and was used now.
func (c Slab) Steady(now uint64, share float64) Stamp {
	count := func(halfLife uint) uint64 {
		n := math.Log2(max(share*math.Exp2(float64(halfLife))/math.Ln2, 1))
		return field(now, halfLife) + uint64(n*(1<<fraction))
	}
	return Stamp(now>>(c.last&63)<<(2*fieldBits) | count(c.short)&fieldMask<<fieldBits | count(c.long)&fieldMask)
}

// Parts returns the constants that Use works with, for callers that update many stamps with vector instructions: the
// shifts from the time to the units of last, short and long, and log2(1 + 2^−d) by d. Index 255 stands for all larger
// d.
func (c Slab) Parts() (last, short, long uint, more *[256]uint64) {
	return c.last, c.short - fraction, c.long - fraction, &wideMore
}

var wideMore = func() (t [256]uint64) {
	for d := range t {
		t[d] = uint64(moreOf[d])
	}
	return t
}()

// Age returns the time since the last use, in 64ths of the cache's size.
func (c Slab) Age(m Stamp, now uint64) int32 {
	return int32(uint32(now>>(c.last&63)-uint64(m)>>(2*fieldBits))<<8) >> 8
}

// Mode says how stamps are valued.
type Mode int32

// LRU values only the last use. The other modes add the short count times 2^(Mode−1) to the long one.
const LRU Mode = 0

const modes = 4

// Value returns a row's value; the row with the least is evicted first.
func (c Slab) Value(m Stamp, now uint64, mode Mode) int32 {
	if mode == LRU {
		return -c.Age(m, now)
	}
	return worth(m, field(now, c.short), field(now, c.long), weightOf(mode))
}

// worth returns the logarithm of the long count plus the weighted short one. short and long are the time in units of
// the fields.
func worth(m Stamp, short, long uint64, weight int32) int32 {
	a := behind(uint64(m), long)
	b := behind(uint64(m)>>fieldBits, short) + weight
	return a - less(a-b, 0) + more(a-b)
}

// weightOf returns the logarithm of the short count's multiple.
func weightOf(mode Mode) int32 { return int32(mode-1) * (1 << fraction) * modeStep }

const modeStep = 2

// plusOne returns log2(2^d + 1) in 32nds.
func plusOne(d int32) int32 { return d - less(d, 0) + more(d) }

// more returns log2(1 + 2^−|d|) in 32nds. It has no branches, because they would be unpredictable.
func more(d int32) int32 {
	sign := d >> 31
	d = (d ^ sign) - sign
	return int32(moreOf[uint8(d|(255-d)>>31)]) // 255 stands for all larger d
}

var moreOf = func() (t [256]uint8) {
	for d := range t {
		t[d] = uint8(math.Round(math.Log2(1+math.Exp2(-float64(d)/(1<<fraction))) * (1 << fraction)))
	}
	return t
}()

// Queue holds the slots of a set that are evicted next. A scan of all slots fills it, so most misses look at one slot
// only.
type Queue struct {
	slots    [queueLen]uint8
	n        uint8
	at       uint64 // time of the scan
	declined uint8
}

const queueLen = 7

// patience is the number of rows that are declined before the set is scanned again.
const patience = 32

// Stamps gives access to the stamps of a set's slots.
type Stamps interface {
	Stamp(slot int) Stamp
	Stamps() [SlabSlots]Stamp
}

// Place returns the slot whose row a missed row with stamp m replaces, or false if the missed row is worth less than
// all of them. The set is full.
func (c Slab) Place(q *Queue, m Stamp, now uint64, mode Mode, of Stamps) (int, bool) {
	looked := false
	if q.declined >= patience {
		q.n = 0
	}
	for {
		if q.n == 0 {
			c.look(q, now, mode, of)
			looked = true
		}
		slot := int(q.slots[(q.n-1)%queueLen])
		x := of.Stamp(slot)
		if !looked && c.Age(x, q.at) < 0 { // used since the scan; after a late scan, all may have been
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

// Waiting returns the slots that are evicted next unless they are used, the first victim last.
func (q *Queue) Waiting() []uint8 {
	if q.declined >= patience {
		return nil
	}
	return q.slots[:min(q.n, queueLen)]
}

// Next returns the slot that Place would take now, or false if Place would have to scan the set.
func (c Slab) Next(q *Queue, of Stamps) (slot int, ok bool) {
	waiting, at := q.Waiting(), q.at
	for i := len(waiting) - 1; i >= 0; i-- {
		if slot := int(waiting[i]) % SlabSlots; c.Age(of.Stamp(slot), at) >= 0 {
			return slot, true
		}
	}
	return 0, false
}

// look scans the set for the slots of least value, and puts the least last.
func (c Slab) look(q *Queue, now uint64, mode Mode, of Stamps) {
	all := of.Stamps()
	var words [SlabSlots]int32 // a value and a slot in one word, so all are different
	if mode == LRU {
		for slot, m := range all {
			words[slot] = -c.Age(m, now)*SlabSlots + int32(SlabSlots-1-slot)
		}
	} else {
		short, long, weight := field(now, c.short), field(now, c.long), weightOf(mode)
		for slot, m := range all {
			words[slot] = worth(m, short, long, weight)*SlabSlots + int32(SlabSlots-1-slot)
		}
	}
	const groups = 8
	var least [groups]int32 // of each group of slots
	for g := range least {
		least[g] = leastOf((*[groups]int32)(words[g*groups:]))
	}
	*q = Queue{n: queueLen, at: now}
	for i := queueLen - 1; i >= 0; i-- {
		w := leastOf(&least)
		slot := SlabSlots - 1 - int(w)&(SlabSlots-1)
		q.slots[i] = uint8(slot)
		words[slot] = gone
		g := slot / groups
		least[g] = leastOf((*[groups]int32)(words[g*groups:]))
	}
}

// gone is larger than all words.
const gone = 1 << 29

// leastOf returns the least of eight, without branches.
func leastOf(w *[8]int32) int32 {
	return less(less(less(w[0], w[1]), less(w[2], w[3])), less(less(w[4], w[5]), less(w[6], w[7])))
}

func less(a, b int32) int32 { return b + (a-b)&((a-b)>>31) }

// Ghost remembers the stamps of rows that are not cached. Each group of four places keeps the rows of highest value.
type Ghost [GhostLen]uint64

// GhostLen is the number of rows that a set remembers beside those it holds.
const GhostLen = 128

const ways = 4

// Ask returns the first word that Take and Put read for a row, for prefetching; the others are in the same cache line.
// A word is tag<<40 | short<<20 | long.
func (g *Ghost) Ask(h uint64) *uint64 {
	first, _ := ghostAt(h)
	return &g[first]
}

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

// Put remembers a row that has no slot.
func (g *Ghost) Put(c Slab, h uint64, m Stamp, now uint64, mode Mode) {
	first, tag := ghostAt(h)
	mode = max(mode, 1) // ghosts do not store the last use, which LRU needs
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
