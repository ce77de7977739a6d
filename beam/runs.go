package beam

import (
	"fmt"
	"math/bits"
)

// runs cuts 0 … n-1 into consecutive non-empty runs: a bit is set where a run starts. It takes an
// eighth of a byte per element where an array of offsets takes four bytes per run, which is what
// keeps deep, thin trees small.
type runs struct {
	n     uint32
	words []uint64
	rank  []uint32 // set bits before each block of blockWords words, and in all
	hint  []uint32 // block that holds every hintEvery-th run's start
	most  uint32   // elements of the longest run, or more
}

const (
	blockWords = 4
	blockBits  = 64 * blockWords
	hintEvery  = 256
)

func wordsFor(n uint32) int { return int((uint64(n) + 63) / 64) }

func (r *runs) mark(i uint32) { r.words[i/64] |= 1 << (i % 64) }

// seal makes the tables after the bits are set.
func (r *runs) seal() {
	r.tabulate()
	r.most = r.longest()
}

func (r *runs) tabulate() {
	blocks := (len(r.words) + blockWords - 1) / blockWords
	r.rank = make([]uint32, blocks+1)
	r.hint = r.hint[:0]
	ones := uint32(0)
	for b := range blocks {
		r.rank[b] = ones
		for _, w := range r.words[b*blockWords : min((b+1)*blockWords, len(r.words))] {
			ones += uint32(bits.OnesCount64(w))
		}
		for uint32(len(r.hint))*hintEvery < ones {
			r.hint = append(r.hint, uint32(b))
		}
	}
	r.rank[blocks] = ones
}

func (r *runs) longest() uint32 {
	most, last := uint32(0), uint32(0)
	for i, w := range r.words {
		for ; w != 0; w &= w - 1 {
			at := uint32(i*64 + bits.TrailingZeros64(w))
			most, last = max(most, at-last), at
		}
	}
	return max(most, r.n-last)
}

func (r *runs) count() uint32 { return r.rank[len(r.rank)-1] }

// of returns the run that holds element i.
func (r *runs) of(i uint32) uint32 {
	b := i / blockBits
	k := r.rank[b]
	w := i / 64
	for _, x := range r.words[b*blockWords : w] {
		k += uint32(bits.OnesCount64(x))
	}
	return k + uint32(bits.OnesCount64(r.words[w]<<(63-i%64))) - 1
}

// starts returns where each run starts, and where the last one ends.
func (r *runs) starts() []uint32 {
	all := make([]uint32, 0, r.count()+1)
	for i, w := range r.words {
		for ; w != 0; w &= w - 1 {
			all = append(all, uint32(i*64+bits.TrailingZeros64(w)))
		}
	}
	return append(all, r.n)
}

// start returns the first element of run k, or n for the run after the last.
func (r *runs) start(k uint32) uint32 {
	if k >= r.count() {
		return r.n
	}
	lo, hi := r.hint[k/hintEvery], uint32(len(r.rank)-1)
	if h := k/hintEvery + 1; h < uint32(len(r.hint)) {
		hi = r.hint[h] + 1
	}
	for hi-lo > 1 { // the last block with at most k set bits before it
		if m := (lo + hi) / 2; r.rank[m] <= k {
			lo = m
		} else {
			hi = m
		}
	}
	k -= r.rank[lo]
	w := lo * blockWords
	for {
		c := uint32(bits.OnesCount64(r.words[w]))
		if k < c {
			return w*64 + nthBit(r.words[w], k)
		}
		k -= c
		w++
	}
}

// bounds returns the elements from, to (exclusive) of run k.
func (r *runs) bounds(k uint32) (from, to uint32) {
	from = r.start(k)
	w := (from + 1) / 64
	if int(w) >= len(r.words) {
		return from, r.n
	}
	if x := r.words[w] >> ((from + 1) % 64); x != 0 {
		return from, from + 1 + uint32(bits.TrailingZeros64(x))
	}
	return from, r.start(k + 1)
}

func (r *runs) bytes() int { return 8*len(r.words) + 4*len(r.rank) + 4*len(r.hint) }

// nthBit returns the place of the k-th set bit of x, counted from 0.
func nthBit(x uint64, k uint32) uint32 {
	at := uint32(0)
	for width := uint32(32); width >= 8; width /= 2 {
		low := x & (1<<width - 1)
		if c := uint32(bits.OnesCount64(low)); k >= c {
			k -= c
			x >>= width
			at += width
		} else {
			x = low
		}
	}
	for ; k > 0; k-- {
		x &= x - 1
	}
	return at + uint32(bits.TrailingZeros64(x))
}

// check refuses bits that are not the given number of runs of 0 … n-1.
func (r *runs) check(count uint32) error {
	ones := uint32(0)
	for _, w := range r.words {
		ones += uint32(bits.OnesCount64(w))
	}
	tail := r.n%64 != 0 && r.words[len(r.words)-1]>>(r.n%64) != 0
	if ones != count || tail || r.n > 0 && r.words[0]&1 == 0 {
		return fmt.Errorf("%d runs of %d elements, want %d from the first to the last", ones, r.n, count)
	}
	return nil
}
