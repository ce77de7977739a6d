package residency

import "math/bits"

// table is a hash table with open addressing, linear probing and a fixed size. A slot has stride words, of which the
// first is its hash; 0 means that the slot is empty. Several slots may have the same hash.
type table struct {
	words  []uint64
	stride int
	size   int // number of slots
	count  int // of them, how many are used
	most   int // slots that may be used
}

// newTable returns a table for that many entries. It has more slots than entries, so that searches stay short.
func newTable(entries, slots, stride int) table {
	slots = max(slots, entries) + 1
	return table{words: make([]uint64, slots*stride), stride: stride, size: slots, most: entries}
}

// slot returns the words of a slot.
func (t *table) slot(i int) []uint64 { return t.words[i*t.stride : (i+1)*t.stride] }

func (t *table) hash(i int) uint64 { return t.words[i*t.stride] }

// home is the slot at which the search for a hash begins.
func (t *table) home(hash uint64) int {
	hi, _ := bits.Mul64(hash, uint64(t.size))
	return int(hi)
}

func (t *table) next(i int) int {
	if i++; i == t.size {
		return 0
	}
	return i
}

// find returns the first slot with a hash, or -1.
func (t *table) find(hash uint64) int {
	for i := t.home(hash); ; i = t.next(i) {
		switch t.hash(i) {
		case hash:
			return i
		case 0:
			return -1
		}
	}
}

// add takes an empty slot for a hash. It returns -1 if the table is full.
func (t *table) add(hash uint64) int {
	if t.count == t.most {
		return -1
	}
	t.count++
	i := t.home(hash)
	for t.hash(i) != 0 {
		i = t.next(i)
	}
	t.words[i*t.stride] = hash
	return i
}

// remove empties a slot and moves later ones back, so that no search ends too early. Another entry may be in the slot
// afterwards. Entries that a loop from slot 0 up to here has not seen are in this slot or behind it.
func (t *table) remove(i int) {
	t.count--
	for j := t.next(i); t.hash(j) != 0; j = t.next(j) {
		// The entry at j may move to i unless its home lies behind i, on the way to j.
		home := t.home(t.hash(j))
		if behind := i < j && i < home && home <= j || j < i && (i < home || home <= j); behind {
			continue
		}
		copy(t.slot(i), t.slot(j))
		i = j
	}
	clear(t.slot(i))
}

// mix spreads a hash over all bits, so that keys need not be digests. It never returns 0.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return max(x^x>>31, 1)
}
