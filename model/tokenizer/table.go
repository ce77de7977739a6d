package tokenizer

import (
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
)

// tokenBytes holds the bytes of all tokens back to back.
type tokenBytes struct {
	blob string
	ends []uint32 // ends[id] is where token id ends and the next one starts
}

func (t *tokenBytes) len() int { return len(t.ends) }

// at returns the bytes of a token, empty for an id that no token has.
func (t *tokenBytes) at(id int32) string {
	if uint(id) >= uint(len(t.ends)) {
		return ""
	}
	start := uint32(0)
	if id > 0 {
		start = t.ends[id-1]
	}
	return t.blob[start:t.ends[id]]
}

// extend adds tokens with the next ids.
func (t *tokenBytes) extend(tokens []string) {
	size := len(t.blob)
	for _, s := range tokens {
		size += len(s)
	}
	blob := append(make([]byte, 0, size), t.blob...)
	for _, s := range tokens {
		blob = append(blob, s...)
		t.ends = append(t.ends, uint32(len(blob)))
	}
	t.blob = string(blob)
}

// wordTable finds a token by its bytes: open addressing with linear probing, at most
// half full. Hashes are seeded at random, so that no file can make them collide.
type wordTable struct {
	seed    maphash.Seed
	slots   []wordSlot
	mask    uint64
	longest int
}

// wordSlot is empty when ref is 0.
type wordSlot struct {
	tag uint32 // high half of the hash
	ref uint32 // (id+1)<<1, plus one if the bytes encode to this token alone
}

func newWordTable(entries int) wordTable {
	n := tableSize(entries)
	return wordTable{seed: maphash.MakeSeed(), slots: make([]wordSlot, n), mask: uint64(n - 1)}
}

// tableSize is the power of two that leaves a table of n entries at most half full.
func tableSize(n int) int { return 1 << bits.Len(uint(max(2*n-1, 1))) }

// add enters a token. The caller enters each text once.
func (t *wordTable) add(word string, id int32, whole bool) {
	h := maphash.String(t.seed, word)
	ref := uint32(id+1) << 1
	if whole {
		ref |= 1
	}
	i := h & t.mask
	for t.slots[i].ref != 0 {
		i = (i + 1) & t.mask
	}
	t.slots[i] = wordSlot{tag: uint32(h >> 32), ref: ref}
	t.longest = max(t.longest, len(word))
}

// find returns the token with these bytes and whether the bytes encode to it alone.
func (t *wordTable) find(word string, tokens *tokenBytes) (id int32, whole, ok bool) {
	if len(word) > t.longest {
		return 0, false, false
	}
	h := maphash.String(t.seed, word)
	for i := h & t.mask; ; i = (i + 1) & t.mask {
		slot := t.slots[i]
		if slot.ref == 0 {
			return 0, false, false
		}
		id := int32(slot.ref>>1) - 1
		if slot.tag == uint32(h>>32) && tokens.at(id) == word {
			return id, slot.ref&1 != 0, true
		}
	}
}

// pairTable maps a pair of 32-bit numbers to a 64-bit value other than absent. Open
// addressing, at most half full; the multipliers are random, so that no file can make
// the hashes collide.
type pairTable struct {
	slots  []pairSlot
	ka, kb uint64
	shift  uint
}

type pairSlot struct{ key, value uint64 }

// absent is what a pairTable returns for a pair it does not hold. It compares above
// every value in use.
const absent = ^uint64(0)

func newPairTable(entries int) pairTable {
	n := tableSize(entries)
	t := pairTable{
		slots: make([]pairSlot, n),
		ka:    rand.Uint64() | 1,
		kb:    rand.Uint64() | 1,
		shift: uint(64 - bits.TrailingZeros(uint(n))),
	}
	for i := range t.slots {
		t.slots[i].value = absent
	}
	return t
}

func (t *pairTable) home(a, b uint32) uint64 {
	return (uint64(a)*t.ka + uint64(b)*t.kb) >> t.shift
}

// put enters or replaces the value of a pair.
func (t *pairTable) put(a, b uint32, value uint64) {
	key := uint64(a)<<32 | uint64(b)
	mask := uint64(len(t.slots) - 1)
	i := t.home(a, b)
	for t.slots[i].value != absent && t.slots[i].key != key {
		i = (i + 1) & mask
	}
	t.slots[i] = pairSlot{key, value}
}

func (t *pairTable) get(a, b uint32) uint64 {
	key := uint64(a)<<32 | uint64(b)
	mask := uint64(len(t.slots) - 1)
	for i := t.home(a, b); ; i = (i + 1) & mask {
		slot := &t.slots[i&mask]
		if slot.key == key || slot.value == absent {
			return slot.value
		}
	}
}
