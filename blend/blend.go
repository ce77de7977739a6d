// Package blend chooses which tokens of an ordinary causal prompt are computed although KV from elsewhere could
// stand in for them (RCL-5).
//
// An item's block was computed without the user and the items before it, and a prototype is another token's KV: both
// are near what the prompt would have given, not equal to it. Tokens that much attention goes to are worth repairing.
// What is compared (RcLLM's rule, CacheBlend's, EPIC's) differs in the scores only; Choose is the same for all.
//
// The package is pure.
package blend

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Source says where a token's KV may come from.
type Source uint8

const (
	Own       Source = iota // from nowhere: it is computed
	Block                   // from an item's own block
	Prototype               // from a prototype that is like it
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
type Chooser struct{ order []int32 }

// Choose appends base plus the numbers, ascending, of the tokens that are computed: those without a source, the
// window, and of either source the share with the highest scores. Of equal scores the earlier token's counts more.
// A score that is no number counts as the highest: what is broken is computed.
func (c *Chooser) Choose(dst []int32, base int32, from []Source, score []float32, b Budget) []int32 {
	first := len(dst)
	c.order = c.order[:0]
	window := len(from) - b.Window
	for i, s := range from {
		if s == Own || i >= window {
			dst = append(dst, base+int32(i))
			continue
		}
		c.order = append(c.order, int32(i))
	}
	rest := c.order
	slices.SortStableFunc(rest, func(i, j int32) int { // a sort by source, then score
		if by := cmp.Compare(from[i], from[j]); by != 0 {
			return by
		}
		return cmp.Compare(rank(score[j]), rank(score[i]))
	})
	blocks := 0
	for blocks < len(rest) && from[rest[blocks]] == Block {
		blocks++
	}
	for _, part := range []struct {
		of    []int32
		share float64
	}{{rest[:blocks], b.Items}, {rest[blocks:], b.History}} {
		n := min(len(part.of), int(math.Ceil(part.share*float64(len(part.of))-1e-9)))
		for _, i := range part.of[:n] {
			dst = append(dst, base+i)
		}
	}
	slices.Sort(dst[first:])
	return dst
}

func rank(v float32) float32 {
	if v != v {
		return float32(math.Inf(1))
	}
	return v
}
