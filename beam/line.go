package beam

import "slices"

const (
	maxSteps = 128 // sets that a Line keeps: together they take at most 16 bytes for each item of the index
	minStep  = 16  // items between two of them
)

// Line has items of an index in an order, such as that of their prices, and makes sets of the items between two places.
// It never changes.
type Line struct {
	ix        *Index
	positions []uint32
	// steps has the words of sets: that of number i has the first i·every items. It is nil if an item stands in the line
	// twice: then the items before the end less those before the begin are not those between.
	steps [][]uint64
	every int
}

// NewLine returns a line of items that the index holds.
func NewLine(ix *Index, items []uint32) *Line {
	l := &Line{ix: ix, positions: make([]uint32, len(items))}
	for i, item := range items {
		l.positions[i] = ix.place[item]
	}
	first := NewSet(ix)
	// Subtracting two steps passes over all words: steps that are nearer than that save no time.
	l.every = max(minStep, (len(items)+maxSteps-1)/maxSteps, len(first.words)/4)
	for i, p := range l.positions {
		if i%l.every == 0 {
			l.steps = append(l.steps, slices.Clone(first.words))
		}
		if first.at(p) {
			l.steps = nil
			break
		}
		first.set(p)
	}
	return l
}

// Between returns the set of the items from a place on and before another one.
func (l *Line) Between(from, to int) *Set {
	set := NewSet(l.ix)
	a, b := l.near(from), l.near(to)
	if l.steps == nil || b <= a {
		for _, p := range l.positions[min(from, to):to] {
			set.set(p)
		}
		return set
	}
	set.subtracted(l.steps[b], l.steps[a])
	// The steps are near the ends, not at them.
	if at := a * l.every; from < at {
		set.setAll(l.positions[from:at])
	} else {
		set.unsetAll(l.positions[at:from])
	}
	if at := b * l.every; to > at {
		set.setAll(l.positions[at:to])
	} else {
		set.unsetAll(l.positions[to:at])
	}
	return set
}

// near returns the step that is nearest to a place.
func (l *Line) near(place int) int { return min((place+l.every/2)/l.every, len(l.steps)-1) }
