package beam

import (
	"encoding/hex"
	"math"
	"slices"
	"unsafe"
)

// Digest names the contents of an index: the sizes of its levels and the paths, each with the number of
// its items. It does not depend on the order in which the items were given; their numbers do.
type Digest [32]byte

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Index is the tree of valid paths. A node is a prefix; nodes of a level are numbered in the order of
// their codes, so the children of a node are consecutive nodes of the next level, in the order of their
// codes. Items are kept in the order of their paths: an item's place there is its position, and the
// items below any node are consecutive positions.
type Index struct {
	levels []level
	items  []uint32 // item at each position
	place  []uint32 // position of each item, none for a number that no item has
	mask   []uint64 // codes that begin a path
	owner  any      // of memory that the index lies in
}

// none is the position of a number that no item has.
const none = math.MaxUint32

// level holds the nodes whose prefix ends at one level.
type level struct {
	size  int
	codes Codes    // last code of each node
	below runs     // children of each node, in the next level; of a leaf, its positions
	spans []uint32 // where the positions below each node begin, and the end; nil where nodes are many
}

// Codes is a read-only list of codes, in two bytes each where the level's size allows it.
type Codes struct {
	short []uint16
	long  []uint32
}

// Len returns the number of codes.
func (c Codes) Len() int { return len(c.short) + len(c.long) }

// At returns code i.
func (c Codes) At(i int) int32 {
	if c.short != nil {
		return int32(c.short[i])
	}
	return int32(c.long[i])
}

func (c Codes) slice(from, to uint32) Codes {
	if c.short != nil {
		return Codes{short: c.short[from:to]}
	}
	return Codes{long: c.long[from:to]}
}

func newCodes(size int, n uint32) Codes {
	if size <= 1<<16 {
		return Codes{short: make([]uint16, n)}
	}
	return Codes{long: make([]uint32, n)}
}

func (c Codes) set(i uint32, code int32) {
	if c.short != nil {
		c.short[i] = uint16(code)
		return
	}
	c.long[i] = uint32(code)
}

// gather copies the elements of row that the codes name to dst. All codes are inside of row: those of an
// index are below its level's size.
func (c Codes) gather(dst, row []float32) {
	dst = dst[:c.Len()]
	if c.short != nil {
		first := unsafe.Pointer(unsafe.SliceData(row)) // bounds take a third of the time
		for i, code := range c.short[:len(dst)] {
			dst[i] = *(*float32)(unsafe.Add(first, uintptr(code)*4))
		}
		return
	}
	for i, code := range c.long {
		dst[i] = row[code]
	}
}

// find returns the place of a code in a sorted list.
func (c Codes) find(code int32) (int, bool) {
	if c.short != nil {
		return slices.BinarySearch(c.short, uint16(code))
	}
	return slices.BinarySearch(c.long, uint32(code))
}

// Depth returns the number of levels.
func (ix *Index) Depth() int { return len(ix.levels) }

// Size returns the number of codes that a level has, valid or not: the width of a row of logits.
func (ix *Index) Size(level int) int { return ix.levels[level].size }

// Nodes returns the number of valid prefixes that end at a level.
func (ix *Index) Nodes(level int) int { return ix.levels[level].codes.Len() }

// Len returns the number of items.
func (ix *Index) Len() int { return len(ix.items) }

// Holds reports whether an item is in the index.
func (ix *Index) Holds(item uint32) bool {
	return int(item) < len(ix.place) && ix.place[item] != none
}

// Leaf returns the leaf of an item that the index holds.
func (ix *Index) Leaf(item uint32) uint32 {
	return ix.levels[len(ix.levels)-1].below.of(ix.place[item])
}

// Digest computes the name of the contents, which takes a pass over all paths.
func (ix *Index) Digest() Digest { return ix.contents() }

// Largest returns the largest code in use at a level, -1 where there is none. It looks at all of them.
func (ix *Index) Largest(level int) int32 {
	c := &ix.levels[level].codes
	if c.Len() == 0 {
		return -1
	}
	if c.short != nil {
		return int32(slices.Max(c.short))
	}
	return int32(slices.Max(c.long))
}

// Mask returns the codes that begin a path, a bit each: the dense form of Children(0, 0).
func (ix *Index) Mask() []uint64 { return ix.mask }

// Children returns the codes of a level that continue a node of the level before, in ascending order,
// and the node that the first of them leads to; the rest follow it. Level 0 continues the empty prefix.
func (ix *Index) Children(level int, node uint32) (codes Codes, first uint32) {
	from, to := ix.children(level, node)
	return ix.levels[level].codes.slice(from, to), from
}

func (ix *Index) children(level int, node uint32) (from, to uint32) {
	if level == 0 {
		return 0, uint32(ix.levels[0].codes.Len())
	}
	return ix.levels[level-1].below.bounds(node)
}

// Items returns the items of a leaf in catalog order.
func (ix *Index) Items(leaf uint32) []uint32 {
	from, to := ix.levels[len(ix.levels)-1].below.bounds(leaf)
	return ix.items[from:to]
}

// Find returns the leaf of a path.
func (ix *Index) Find(path []int32) (leaf uint32, ok bool) {
	if len(path) != len(ix.levels) {
		return 0, false
	}
	for l, code := range path {
		if code < 0 || int(code) >= ix.levels[l].size {
			return 0, false
		}
		codes, first := ix.Children(l, leaf)
		i, ok := codes.find(code)
		if !ok {
			return 0, false
		}
		leaf = first + uint32(i)
	}
	return leaf, true
}

// Path appends the codes of a leaf to dst.
func (ix *Index) Path(dst []int32, leaf uint32) []int32 {
	n := len(dst)
	dst = slices.Grow(dst, len(ix.levels))[:n+len(ix.levels)]
	node := leaf
	for l := len(ix.levels) - 1; ; l-- {
		dst[n+l] = ix.levels[l].codes.At(int(node))
		if l == 0 {
			return dst
		}
		node = ix.levels[l-1].below.of(node)
	}
}

// positions returns the positions of all items below a node: from, to (exclusive).
func (ix *Index) positions(level int, node uint32) (from, to uint32) {
	from, to = node, node+1
	for ; level < len(ix.levels); level++ {
		l := &ix.levels[level]
		if l.spans != nil {
			return l.spans[from], l.spans[to]
		}
		if to-from == 1 {
			from, to = l.below.bounds(from)
			continue
		}
		from, to = l.below.start(from), l.below.start(to)
	}
	return from, to
}

// nodeAt returns the node of a level that the item at a position lies below.
func (ix *Index) nodeAt(level int, position uint32) uint32 {
	for l := len(ix.levels) - 1; l >= level; l-- {
		position = ix.levels[l].below.of(position)
	}
	return position
}

// settled reports whether one leaf alone lies below a node.
func (ix *Index) settled(level int, node uint32) bool {
	for ; level < len(ix.levels)-1; level++ {
		from, to := ix.levels[level].below.bounds(node)
		if to-from > 1 {
			return false
		}
		node = from
	}
	return true
}

// Bytes returns the memory that the index takes.
func (ix *Index) Bytes() int {
	n := 4*len(ix.items) + 4*len(ix.place) + 8*len(ix.mask)
	for i := range ix.levels {
		l := &ix.levels[i]
		n += 2*len(l.codes.short) + 4*len(l.codes.long) + l.below.bytes() + 4*len(l.spans)
	}
	return n
}
