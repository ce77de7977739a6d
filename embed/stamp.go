package embed

import (
	"math"
	"math/bits"
)

// stamp is what a slot remembers of its row's use: the time of the last one and two decayed counts of uses as of
// then, in 64ths: last<<32 | short<<16 | long. One atomic word: a reader loads and stores it, and where two
// do so at once one use is lost.
type stamp uint64

const oneUse = 64

func (m stamp) last() uint32  { return uint32(m >> 32) }
func (m stamp) short() uint16 { return uint16(m >> 16) }
func (m stamp) long() uint16  { return uint16(m) }

func newStamp(now uint32, short, long uint16) stamp {
	return stamp(now)<<32 | stamp(short)<<16 | stamp(long)
}

// scale has the half-lives of the two counts: 1<<short and 1<<long accesses of the cache.
type scale struct{ short, long int }

// scaleFor fits a cache of so many rows: a row that nobody uses stays for a few times as many accesses.
func scaleFor(rows int) scale {
	n := max(6, bits.Len(uint(rows)))
	return scale{min(n+2, 26), min(n+5, 30)}
}

// use counts a use.
func (c scale) use(m stamp, now uint32) stamp {
	age := now - m.last()
	if int32(age) < 0 { // a use that overtook this one
		age = 0
	}
	return newStamp(now, count(m.short(), age, c.short), count(m.long(), age, c.long))
}

func count(n uint16, age uint32, halfLife int) uint16 {
	return uint16(min(decay(n, age, halfLife)+oneUse, math.MaxUint16))
}

// decay halves n once per half-life, in steps of a sixteenth of it.
func decay(n uint16, age uint32, halfLife int) uint32 {
	halvings := age >> halfLife
	if halvings >= 16 {
		return 0
	}
	return uint32(uint64(n) * sixteenths[age>>(halfLife-4)&15] >> (16 + halvings))
}

var sixteenths = func() (t [16]uint64) {
	for i := range t {
		t[i] = uint64(math.Round(65536 * math.Exp2(-float64(i)/16)))
	}
	return t
}()

// Bins, half an octave wide, in which predictions are kept.
const (
	ageBins   = 40 // the first has all ages below 1<<ageBase
	ageBase   = 5
	countBins = 21 // the first has all counts below one use
)

func bin(v uint32, base, bins int) int {
	n := bits.Len32(v)
	if n <= base {
		return 0
	}
	half := int(v>>(n-2)) & 1
	return min(1+2*(n-base-1)+half, bins-1)
}

func ageBin(age uint32) int { return bin(age, ageBase, ageBins) }
func countBin(n uint16) int { return int(countBinOf[n>>5]) }
func cell(a, s, l int) int  { return (a*countBins+s)*countBins + l }

// countBinOf has the bin of a count by its upper bits, which decide: bins begin at 64, 96, 128, 192, …
var countBinOf = func() (t [1 << 11]uint8) {
	for i := range t {
		t[i] = uint8(bin(uint32(i)<<5, 6, countBins))
	}
	return t
}()

const cells = ageBins * countBins * countBins

// middle is the value that stands for a bin.
func middle(b, base int) float64 {
	if b == 0 {
		return math.Exp2(float64(base) - 1)
	}
	lo := math.Exp2(float64(base + (b-1)/2))
	if (b-1)%2 == 0 {
		return lo * 1.25
	}
	return lo * 1.75
}

// history remembers the stamps of rows that are not cached: 256 per set, by hash, the latest where two meet.
// A word is tag<<48 | last<<16 | bin of short<<8 | bin of long. The set's lock guards it.
type history []uint64

const remembered = 256

func newHistory(sets int) history { return make(history, sets*remembered) }

func (y history) at(home int, h uint64) *uint64 { return &y[home*remembered+int(h>>8)%remembered] }

func (y history) put(home int, h uint64, m stamp) {
	*y.at(home, h) = h>>16<<48 | uint64(m.last())<<16 | uint64(countBin(m.short()))<<8 | uint64(countBin(m.long()))
}

// get returns what is remembered; the zero stamp as of now when nothing is.
func (y history) get(home int, h uint64, now uint32) stamp {
	w := *y.at(home, h)
	if w == 0 || w>>48 != h>>16&0xFFFF {
		return newStamp(now, 0, 0)
	}
	return newStamp(uint32(w>>16), uint16(min(middle(int(w>>8&0xFF), 6), math.MaxUint16)),
		uint16(min(middle(int(w&0xFF), 6), math.MaxUint16)))
}
