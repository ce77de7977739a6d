package beam

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Build makes the index of a catalog. sizes holds the number of codes of each level; codes holds the
// path of item 0, of item 1, and so on, each len(sizes) long. Items with the same path keep that order.
func Build(sizes []int, codes []int32) (*Index, error) { return BuildNumbered(sizes, codes, nil) }

// BuildNumbered makes an index as Build does, of items that have the given numbers, which ascend; nil
// means 0, 1, and so on.
func BuildNumbered(sizes []int, codes []int32, numbers []uint32) (*Index, error) {
	n, err := checkPaths(sizes, codes)
	if err == nil && numbers != nil {
		err = checkNumbers(numbers, n, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("beam: build index: %w", err)
	}
	items := sortPaths(sizes, codes, n)
	ix := &Index{levels: make([]level, len(sizes)), items: items}
	for l, c := range countNodes(codes, len(sizes), items) {
		below := uint32(n)
		if l+1 < len(sizes) {
			below = c.next
		}
		ix.levels[l] = level{size: sizes[l], codes: newCodes(sizes[l], c.nodes),
			below: runs{n: below, words: make([]uint64, wordsFor(below))}}
	}
	ix.fill(codes)
	places := n
	if numbers != nil {
		for i, row := range items {
			items[i] = numbers[row]
		}
		if places = 0; n > 0 {
			places = int(numbers[n-1]) + 1
		}
	}
	ix.seal(places)
	return ix, nil
}

// checkNumbers refuses numbers that do not ascend from first on, or are not those of n items.
func checkNumbers(numbers []uint32, n int, first uint32) error {
	if len(numbers) != n {
		return fmt.Errorf("%d numbers of %d items", len(numbers), n)
	}
	for i, number := range numbers {
		if number < first || number > math.MaxInt32 {
			return fmt.Errorf("item %d is number %d, want one from %d on that is above the one before", i, number, first)
		}
		first = number + 1
	}
	return nil
}

func checkPaths(sizes []int, codes []int32) (items int, err error) {
	depth := len(sizes)
	if depth == 0 {
		return 0, errors.New("no levels")
	}
	for l, size := range sizes {
		if size < 1 || size > math.MaxInt32 {
			return 0, fmt.Errorf("level %d has %d codes, want 1 … %d", l, size, math.MaxInt32)
		}
	}
	if len(codes)%depth != 0 {
		return 0, fmt.Errorf("%d codes are no whole number of paths of %d", len(codes), depth)
	}
	items = len(codes) / depth
	if items > math.MaxInt32 {
		return 0, fmt.Errorf("%d items, want at most %d", items, math.MaxInt32)
	}
	for l, size := range sizes {
		for i := l; i < len(codes); i += depth {
			if c := codes[i]; c < 0 || int(c) >= size {
				return 0, fmt.Errorf("item %d has code %d at level %d, want 0 … %d", i/depth, c, l, size-1)
			}
		}
	}
	return items, nil
}

// sortPaths returns the items in the order of their paths, equal paths in the order given. Neighbouring
// levels are packed into keys of up to 64 bits, which a stable radix sort takes from the last to the
// first: the common case is one key.
func sortPaths(sizes []int, codes []int32, n int) []uint32 {
	rows := make([]uint32, n)
	for i := range rows {
		rows[i] = uint32(i)
	}
	keys := make([]uint64, n)
	var s radix
	for hi := len(sizes); hi > 0; {
		lo, width := hi, 0
		for lo > 0 && width+bits.Len(uint(sizes[lo-1]-1)) <= 64 {
			lo--
			width += bits.Len(uint(sizes[lo] - 1))
		}
		for i, r := range rows {
			key := uint64(0)
			path := codes[int(r)*len(sizes):][:len(sizes)]
			for l := lo; l < hi; l++ {
				key = key<<bits.Len(uint(sizes[l]-1)) | uint64(path[l])
			}
			keys[i] = key
		}
		keys, rows = s.sort(keys, rows, width)
		hi = lo
	}
	return rows
}

const (
	digitBits = 11
	digits    = 1 << digitBits
)

// radix sorts pairs by key, stably, a digit at a time from the lowest.
type radix struct {
	keys []uint64
	rows []uint32
}

// sort returns the sorted pairs; what it was given becomes its scratch.
func (s *radix) sort(keys []uint64, rows []uint32, width int) ([]uint64, []uint32) {
	if s.keys == nil {
		s.keys, s.rows = make([]uint64, len(keys)), make([]uint32, len(rows))
	}
	for shift := 0; shift < width; shift += digitBits {
		var next [digits]uint32
		for _, k := range keys {
			next[k>>shift%digits]++
		}
		if len(keys) > 0 && int(next[keys[0]>>shift%digits]) == len(keys) {
			continue
		}
		sum := uint32(0)
		for d, c := range next {
			next[d] = sum
			sum += c
		}
		for i, k := range keys {
			d := k >> shift % digits
			s.keys[next[d]], s.rows[next[d]] = k, rows[i]
			next[d]++
		}
		keys, rows, s.keys, s.rows = s.keys, s.rows, keys, rows
	}
	return keys, rows
}

type nodeCount struct{ nodes, next uint32 } // of a level and of the level after it

func countNodes(codes []int32, depth int, items []uint32) []nodeCount {
	counts := make([]nodeCount, depth)
	eachPath(codes, depth, items, func(_ int, _ []int32, shared int) {
		if shared < depth {
			counts[shared].nodes++
		}
	})
	for l := 1; l < depth; l++ { // a path that leaves at a level adds a node there and at all below
		counts[l].nodes += counts[l-1].nodes
		counts[l-1].next = counts[l].nodes
	}
	return counts
}

// eachPath visits the paths in their order, each with the number of codes it shares with the one before.
func eachPath(codes []int32, depth int, items []uint32, visit func(position int, path []int32, shared int)) {
	var last []int32
	for i, item := range items {
		path := codes[int(item)*depth:][:depth]
		shared := 0
		for last != nil && shared < depth && path[shared] == last[shared] {
			shared++
		}
		visit(i, path, shared)
		last = path
	}
}

func (ix *Index) fill(codes []int32) {
	depth := len(ix.levels)
	next := make([]uint32, depth) // nodes of each level so far
	eachPath(codes, depth, ix.items, func(position int, path []int32, shared int) {
		for l := shared; l < depth; l++ {
			if l > shared { // the first child of a new node
				ix.levels[l-1].below.mark(next[l])
			}
			ix.levels[l].codes.set(next[l], path[l])
			next[l]++
		}
		if shared < depth {
			ix.levels[depth-1].below.mark(uint32(position))
		}
	})
}

// seal derives what is not stored: tables of the runs, spans, the mask, the positions of items, whose
// numbers are below places.
func (ix *Index) seal(places int) {
	for l := range ix.levels {
		ix.levels[l].below.seal()
	}
	for l := range ix.levels {
		ix.span(l)
	}
	ix.cover()
	ix.place = slices.Repeat([]uint32{none}, places)
	for position, item := range ix.items {
		ix.place[item] = uint32(position)
	}
}

// cover makes the mask of the first level.
func (ix *Index) cover() {
	ix.mask = make([]uint64, wordsFor(uint32(ix.levels[0].size)))
	for i := range ix.levels[0].codes.Len() {
		c := ix.levels[0].codes.At(i)
		ix.mask[c/64] |= 1 << (c % 64)
	}
}

// spanned reports whether the nodes of a level are few enough for a table of their positions, which
// then costs next to nothing.
func (ix *Index) spanned(l int) bool { return ix.Nodes(l) <= len(ix.items)/8 }

// span tabulates the positions below the nodes of a level, where they are few.
func (ix *Index) span(l int) {
	if !ix.spanned(l) {
		return
	}
	nodes := ix.Nodes(l)
	spans := make([]uint32, 0, nodes+1)
	for node := range uint32(nodes) {
		from, _ := ix.positions(l, node)
		spans = append(spans, from)
	}
	ix.levels[l].spans = append(spans, uint32(len(ix.items)))
}
