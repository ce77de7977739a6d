// Package blend chooses which tokens of an ordinary causal prompt are computed again although KV of other prompts is
// there for them (RCL-5).
//
// An item's block was computed without the user and the items before it, and a prototype is another token's KV: both
// are near what the prompt would have given, not equal to it. Tokens that much attention goes to are worth repairing.
// The rules that benchmarks compare (RcLLM's, CacheBlend's, EPIC's) differ in the scores only; Choose is the same for
// all.
//
// The package is pure.
package blend

import (
	"fmt"
	"math"
	"slices"

	"grebe/plan"
)

// Budget says how much of what could be reused is computed again.
type Budget struct {
	Items   float64 // share of the tokens of blocks, 0 to 1
	History float64 // share of the tokens of prototypes, 0 to 1
	Window  int     // last tokens of the prompt that are computed whatever their score
}

// Check refuses shares that are none.
func (b Budget) Check() error {
	for name, share := range map[string]float64{"items": b.Items, "history": b.History} {
		if !(share >= 0 && share <= 1) {
			return fmt.Errorf("%s: %v is not between 0 and 1", name, share)
		}
	}
	if b.Window < 0 {
		return fmt.Errorf("window: %d is negative", b.Window)
	}
	return nil
}

// Chooser keeps the memory of Choose.
type Chooser struct {
	keys   [plan.NumSources][]uint64 // of the tokens with a source: the highest score first, then the earliest
	chosen []bool
}

// Choose appends base plus the numbers, ascending, of the tokens that are computed: those without a source, the
// window, and of either source the share with the highest scores. Of equal scores the earlier token's counts more.
// A score that is no number counts as the highest: what is broken is computed.
func (c *Chooser) Choose(dst []int32, base int32, from []plan.Source, score []float32, b Budget) []int32 {
	return c.ChooseRounded(dst, base, from, score, b, 0)
}

// ChooseRounded appends so many more tokens than Choose, those with the highest scores of the ones that Choose leaves
// out, or so many fewer, without the lowest of those that it takes. Shares of 0 and 1 stay what they are.
func (c *Chooser) ChooseRounded(dst []int32, base int32, from []plan.Source, score []float32, b Budget,
	more int) []int32 {
	for s := range c.keys {
		c.keys[s] = c.keys[s][:0]
	}
	c.chosen = append(c.chosen[:0], make([]bool, len(from))...)
	window := len(from) - b.Window
	for i, s := range from {
		if !s.Rotated() || i >= window {
			c.chosen[i] = true
			continue
		}
		c.keys[s] = append(c.keys[s], key(score[i], i))
	}
	// between are the tokens that rounding adds or takes away. Tokens that are computed need no key: their list is free.
	between := c.keys[plan.Computed]
	for s, keys := range c.keys[plan.Block:] {
		n := taken(len(keys), b.Share(plan.Block+plan.Source(s)))
		lowest(keys, n)
		c.mark(keys[:n], true)
		if n > 0 && n < len(keys) && more > 0 {
			between = append(between, keys[n:]...)
		} else if n > 0 && n < len(keys) && more < 0 {
			between = append(between, keys[:n]...)
		}
	}
	c.keys[plan.Computed] = between
	at := min(more, len(between))
	if more < 0 {
		at = max(0, len(between)+more)
	}
	lowest(between, at)
	if more < 0 {
		c.mark(between[at:], false)
	} else {
		c.mark(between[:at], true)
	}
	for i, yes := range c.chosen {
		if yes {
			dst = append(dst, base+int32(i))
		}
	}
	return dst
}

// Count returns how many tokens Choose appends, how many of them ChooseRounded may leave out, and how many others it
// may add.
func Count(from []plan.Source, b Budget) (all, optional, spare int) {
	var of [plan.NumSources]int
	window := len(from) - b.Window
	for i, s := range from {
		if !s.Rotated() || i >= window {
			s = plan.Computed
		}
		of[s]++
	}
	all = of[plan.Computed]
	for s := plan.Block; s <= plan.Prototype; s++ {
		n := taken(of[s], b.Share(s))
		all += n
		if n > 0 && n < of[s] {
			optional += n
			spare += of[s] - n
		}
	}
	return all, optional, spare
}

// Round returns how many more rows than all are computed, or fewer, where a device takes as long for a number of rows
// as for the next multiple: the nearest one, unless that changes the optional ones by more than a tenth.
func Round(all, optional, spare, multiple int) int {
	if multiple <= 1 || all%multiple == 0 {
		return 0
	}
	beyond := all % multiple
	missing := multiple - beyond
	switch {
	case missing < beyond && missing <= spare && 10*missing <= optional:
		return missing
	case 10*beyond <= optional:
		return -beyond
	}
	return 0
}

// Share is the budget of a re-rotated source: the share of its tokens that is computed again.
func (b *Budget) Share(s plan.Source) float64 {
	if s == plan.Prototype {
		return b.History
	}
	return b.Items
}

// taken is how many of n tokens a share is.
func taken(n int, share float64) int { return min(n, int(math.Ceil(share*float64(n)-1e-9))) }

func (c *Chooser) mark(keys []uint64, yes bool) {
	for _, k := range keys {
		c.chosen[uint32(k)] = yes
	}
}

// key sorts by descending score, then by ascending number.
func key(score float32, i int) uint64 {
	v := rank(score)
	if v == 0 {
		v = 0 // and not −0
	}
	bits := math.Float32bits(v)
	if bits>>31 == 0 {
		bits = ^(bits | 1<<31)
	}
	return uint64(bits)<<32 | uint64(uint32(i))
}

// lowest moves the n lowest of keys, which differ, to the front.
func lowest(keys []uint64, n int) {
	for rounds := 0; n > 0 && n < len(keys); rounds++ {
		if len(keys) <= 32 || rounds > 48 {
			slices.Sort(keys)
			return
		}
		at := partition(keys)
		switch {
		case at < n:
			keys, n = keys[at:], n-at
		default:
			keys = keys[:at]
		}
	}
}

// partition moves keys up to the median of three to the front, and returns how many there are: at least one, and not
// all.
func partition(keys []uint64) int {
	a, b, c := keys[0], keys[len(keys)/2], keys[len(keys)-1]
	pivot := max(min(a, b), min(max(a, b), c))
	i, j := 0, len(keys)-1
	for {
		for keys[i] < pivot {
			i++
		}
		for keys[j] > pivot {
			j--
		}
		if i >= j {
			return i
		}
		keys[i], keys[j] = keys[j], keys[i]
		i++
		j--
	}
}

func rank(v float32) float32 {
	if v != v {
		return float32(math.Inf(1))
	}
	return v
}
