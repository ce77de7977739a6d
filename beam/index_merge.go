package beam

import (
	"fmt"
	"slices"
)

// Change is what happens to an index's items.
type Change struct {
	Sizes  []int    // of the levels afterwards
	Remove []uint32 // items of the index, in any order
	Add    []uint32 // numbers of new items, ascending, above all numbers that the index has
	Codes  []int32  // their paths
}

// Merge makes the index of the changed items: the same, but for spare room, as building it anew. What
// lies between the changes is copied as it stands: for few changes it costs about a copy of the index.
// The index that it is called on stays as it is.
func (ix *Index) Merge(c Change) (*Index, error) {
	m := &merger{old: ix, add: c.Add}
	if err := m.prepare(&c); err != nil {
		return nil, fmt.Errorf("beam: merge index: %w", err)
	}
	m.out = &Index{levels: make([]level, len(ix.levels))}
	touched := []touchedNode{{end: 1, r1: len(m.removed), a1: len(m.added)}}
	for l := range ix.levels {
		touched = m.level(l, c.Sizes[l], touched)
	}
	m.positions(touched)
	m.seal()
	return m.out, nil
}

// Renumbered makes the index of the same items under other numbers: item i becomes numbers[i]. The order of
// numbers MUST stay. The paths are shared with the index that it is called on.
func (ix *Index) Renumbered(numbers []uint32, places int) *Index {
	out := &Index{levels: ix.levels, mask: ix.mask, owner: ix.owner,
		items: make([]uint32, len(ix.items)), place: slices.Repeat([]uint32{none}, places)}
	for p, item := range ix.items {
		out.items[p] = numbers[item]
		out.place[numbers[item]] = uint32(p)
	}
	return out
}

// merger walks the tree from the top, one level after the other. On each it knows the touched nodes: those
// with a change below them. Children of all others are copied in blocks.
type merger struct {
	old     *Index
	out     *Index
	removed []uint32 // positions, ascending
	add     []uint32
	added   []uint32 // places in add, in the order of their paths
	codes   []int32  // paths of add

	level0 level // being made
	spans  []uint32
	nodes  uint32 // made so far
	bits   *runs  // of the level before: where children begin
	most   uint32 // children of one touched node
	blocks []shifted
	landed []uint32 // new positions of added
}

// touchedNode is a node with changes below it, in the order of paths.
type touchedNode struct {
	node, end      uint32 // in the old index, end exclusive; of a new one, the node that it stands before, twice
	gone           bool   // nothing is left below it
	r0, r1, a0, a1 int    // its changes in removed and added
}

// shifted says that positions from one on, up to the next, moved by an amount.
type shifted struct {
	from uint32
	by   int32
}

func (m *merger) prepare(c *Change) error {
	ix, depth := m.old, len(m.old.levels)
	if len(c.Sizes) != depth {
		return fmt.Errorf("%d levels, the index has %d", len(c.Sizes), depth)
	}
	for l, size := range c.Sizes { // searches read logits by code, unchecked
		if size < ix.Size(l) && size <= int(ix.Largest(l)) {
			return fmt.Errorf("level %d is to have %d codes, but code %d is in use", l, size, ix.Largest(l))
		}
	}
	n, err := checkPaths(c.Sizes, c.Codes)
	if err == nil {
		err = checkNumbers(c.Add, n, uint32(len(ix.place)))
	}
	if err != nil {
		return err
	}
	m.codes, m.added = c.Codes, sortPaths(c.Sizes, c.Codes, n)
	m.removed = make([]uint32, len(c.Remove))
	for i, item := range c.Remove {
		if !ix.Holds(item) {
			return fmt.Errorf("item %d is to be removed, but is not there", item)
		}
		m.removed[i] = ix.place[item]
	}
	slices.Sort(m.removed)
	for i := 1; i < len(m.removed); i++ {
		if m.removed[i] == m.removed[i-1] {
			return fmt.Errorf("item %d is to be removed twice", ix.items[m.removed[i]])
		}
	}
	return nil
}

// code returns the code of an added item.
func (m *merger) code(a, level int) int32 {
	return m.codes[int(m.added[a])*len(m.old.levels)+level]
}

// level makes the nodes of a level, given the touched nodes of the level before, and returns those touched.
func (m *merger) level(l, size int, parents []touchedNode) (touched []touchedNode) {
	old := &m.old.levels[l]
	most := uint32(old.codes.Len() + len(m.added))
	m.level0 = level{size: size, codes: newCodes(size, most)}
	m.nodes, m.spans, m.bits, m.most = 0, nil, nil, 0
	if old.spans != nil {
		m.spans = make([]uint32, 0, most+1)
	}
	if l > 0 {
		m.bits = &runs{words: make([]uint64, wordsFor(most)), most: m.old.levels[l-1].below.most}
	}
	at := uint32(0) // in the old level
	for i := range parents {
		p := &parents[i]
		from, to := m.children(l, p)
		m.copyNodes(l, at, from, p.a0-p.r0, true)
		if at = to; p.gone {
			if to > from {
				touched = append(touched, touchedNode{node: from, end: to, gone: true, r0: p.r0, r1: p.r1, a0: p.a0, a1: p.a1})
			}
			continue
		}
		touched = m.family(l, from, to, p, touched)
	}
	m.copyNodes(l, at, uint32(old.codes.Len()), len(m.added)-len(m.removed), true)
	m.finish(l)
	return touched
}

// children returns the nodes of a level below a touched node of the level before.
func (m *merger) children(l int, p *touchedNode) (from, to uint32) {
	if l == 0 {
		return m.old.children(0, 0)
	}
	below := &m.old.levels[l-1].below
	return below.start(p.node), below.start(p.end)
}

// family makes the children of a touched node that stays: of the old ones from … to those with something
// left below them, and new ones in between.
func (m *merger) family(l int, from, to uint32, p *touchedNode, touched []touchedNode) []touchedNode {
	first, at := m.nodes, from
	for r, a := p.r0, p.a0; r < p.r1 || a < p.a1; {
		c := m.next(l, from, to, p, r, a)
		m.copyNodes(l, at, c.node, a-r, false)
		at = c.end
		switch {
		case c.node == c.end:
			m.node(l, m.code(a, l), c.node, a-r)
		case !m.left(l, &c):
			c.gone = true
		default:
			m.node(l, m.old.levels[l].codes.At(int(c.node)), c.node, a-r)
		}
		touched = append(touched, c)
		r, a = c.r1, c.a1
	}
	m.copyNodes(l, at, to, p.a1-p.r1, false)
	if m.bits != nil {
		m.bits.mark(first)
		m.most = max(m.most, m.nodes-first)
	}
	return touched
}

// next returns the first touched child of p from the changes r and a on.
func (m *merger) next(l int, from, to uint32, p *touchedNode, r, a int) touchedNode {
	c := touchedNode{node: none, r0: r, r1: r, a0: a, a1: a}
	if r < p.r1 {
		c.node = m.old.nodeAt(l, m.removed[r])
		c.end = c.node + 1
	}
	if a < p.a1 {
		old := &m.old.levels[l]
		code := m.code(a, l)
		node, known := to, false
		if int(code) < old.size {
			i, ok := old.codes.slice(from, to).find(code)
			node, known = from+uint32(i), ok
		}
		if node < c.node || node == c.node && !known {
			c.node, c.end = node, node
			if known {
				c.end++
			}
		}
		if node == c.node { // else a child that only loses items comes first
			for c.a1 < p.a1 && m.code(c.a1, l) == code {
				c.a1++
			}
		}
	}
	if c.end > c.node && r < p.r1 {
		_, end := m.old.positions(l, c.node)
		for c.r1 < p.r1 && m.removed[c.r1] < end {
			c.r1++
		}
	}
	return c
}

// left reports whether items are below an old node after its changes.
func (m *merger) left(l int, c *touchedNode) bool {
	from, to := m.old.positions(l, c.node)
	return int(to-from)-(c.r1-c.r0)+(c.a1-c.a0) > 0
}

// node makes one node, in front of an old one; by says how far positions there have moved.
func (m *merger) node(l int, code int32, before uint32, by int) {
	m.level0.codes.set(m.nodes, code)
	if m.spans != nil {
		m.spans = append(m.spans, m.old.levels[l].spans[before]+uint32(by))
	}
	m.nodes++
}

// copyNodes copies old nodes; whole families take the marks of their first ones along.
func (m *merger) copyNodes(l int, from, to uint32, by int, families bool) {
	if from == to {
		return
	}
	old := &m.old.levels[l]
	m.level0.codes.copy(m.nodes, old.codes.slice(from, to))
	if m.spans != nil {
		for _, s := range old.spans[from:to] {
			m.spans = append(m.spans, s+uint32(by))
		}
	}
	if families && m.bits != nil {
		copyBits(m.bits.words, m.nodes, m.old.levels[l-1].below.words, from, to-from)
	}
	m.nodes += to - from
}

// finish puts what was made of a level into the new index.
func (m *merger) finish(l int) {
	out := &m.out.levels[l]
	out.size, out.codes = m.level0.size, m.level0.codes.slice(0, m.nodes)
	if m.spans != nil {
		out.spans = append(m.spans, uint32(len(m.old.items)+len(m.added)-len(m.removed)))
	}
	if l > 0 {
		m.below(l-1, m.nodes)
	}
}

// below gives a level its runs, of n elements.
func (m *merger) below(l int, n uint32) {
	m.bits.n, m.bits.words = n, m.bits.words[:wordsFor(n)]
	m.bits.most = max(m.bits.most, m.most)
	m.bits.tabulate()
	m.out.levels[l].below = *m.bits
}

// positions makes the list of items, given the touched leaves.
func (m *merger) positions(leaves []touchedNode) {
	l := len(m.old.levels)
	n := uint32(len(m.old.items) + len(m.added) - len(m.removed))
	m.out.items = make([]uint32, 0, n)
	last := &m.old.levels[l-1].below
	m.bits, m.most = &runs{words: make([]uint64, wordsFor(n)), most: last.most}, 0
	at := uint32(0)
	for i := range leaves {
		p := &leaves[i]
		from, to := last.start(p.node), last.start(p.end)
		copyBits(m.bits.words, uint32(len(m.out.items)), last.words, at, from-at)
		m.copyItems(at, from)
		if at = to; p.gone {
			continue
		}
		first := uint32(len(m.out.items))
		for _, r := range m.removed[p.r0:p.r1] {
			m.copyItems(from, r)
			from = r + 1
		}
		m.copyItems(from, to)
		for _, a := range m.added[p.a0:p.a1] {
			m.landed = append(m.landed, uint32(len(m.out.items)))
			m.out.items = append(m.out.items, m.add[a])
		}
		m.bits.mark(first)
		m.most = max(m.most, uint32(len(m.out.items))-first)
	}
	end := uint32(len(m.old.items))
	copyBits(m.bits.words, uint32(len(m.out.items)), last.words, at, end-at)
	m.copyItems(at, end)
	m.below(l-1, n)
}

func (m *merger) copyItems(from, to uint32) {
	if from == to {
		return
	}
	m.blocks = append(m.blocks, shifted{from, int32(len(m.out.items)) - int32(from)})
	m.out.items = append(m.out.items, m.old.items[from:to]...)
}

// seal derives what is left: spans where they pay, the mask, the positions of items.
func (m *merger) seal() {
	ix := m.out
	for l := range ix.levels {
		switch {
		case !ix.spanned(l):
			ix.levels[l].spans = nil
		case ix.levels[l].spans == nil:
			ix.span(l)
		}
	}
	ix.cover()
	places := len(m.old.place)
	if n := len(m.add); n > 0 {
		places = int(m.add[n-1]) + 1
	}
	ix.place = make([]uint32, places)
	for i := len(m.old.place); i < places; i++ {
		ix.place[i] = none
	}
	m.replace(ix.place[:len(m.old.place)])
	for _, p := range m.removed {
		ix.place[m.old.items[p]] = none
	}
	for i, a := range m.added {
		ix.place[m.add[a]] = m.landed[i]
	}
}

// stretch is a power of two of positions for which the block is looked up once.
const stretch = 10

// replace moves the positions of the old items by what stands before them. It goes by item, not by position:
// that way memory is read and written in order.
func (m *merger) replace(place []uint32) {
	if len(m.blocks) == 0 || len(m.blocks) > len(m.old.items)>>stretch/4 {
		copy(place, m.old.place) // for numbers without an item
		for i, b := range m.blocks {
			end := uint32(len(m.old.items))
			if i+1 < len(m.blocks) {
				end = m.blocks[i+1].from
			}
			for p := b.from; p < end; p++ {
				place[m.old.items[p]] = uint32(int32(p) + b.by)
			}
		}
		return
	}
	const mixed = -1 << 31
	table := make([]int32, len(m.old.items)>>stretch+1) // what a stretch moves by; mixed where blocks meet
	first := make([]int32, len(table))                  // block that it begins in
	b := 0
	for i := range table {
		for b+1 < len(m.blocks) && m.blocks[b+1].from <= uint32(i)<<stretch {
			b++
		}
		first[i], table[i] = int32(b), m.blocks[b].by
		if b+1 < len(m.blocks) && m.blocks[b+1].from < uint32(i+1)<<stretch {
			table[i] = mixed
		}
	}
	for i, p := range m.old.place {
		if p == none {
			place[i] = none
			continue
		}
		by := table[p>>stretch]
		if by == mixed {
			b := int(first[p>>stretch])
			for b+1 < len(m.blocks) && m.blocks[b+1].from <= p {
				b++
			}
			by = m.blocks[b].by
		}
		place[i] = uint32(int32(p) + by)
	}
}

// copy writes codes from i on; their widths may differ.
func (c Codes) copy(i uint32, src Codes) {
	switch {
	case c.short != nil && src.short != nil:
		copy(c.short[i:], src.short)
	case c.long != nil && src.long != nil:
		copy(c.long[i:], src.long)
	default:
		for j := range src.Len() {
			c.set(i+uint32(j), src.At(j))
		}
	}
}

// copyBits sets bits of dst, which are zero, to n bits of src.
func copyBits(dst []uint64, at uint32, src []uint64, from, n uint32) {
	for n > 0 {
		word := src[from/64] >> (from % 64)
		if from%64 != 0 && int(from/64)+1 < len(src) {
			word |= src[from/64+1] << (64 - from%64)
		}
		k := min(64, n)
		if k < 64 {
			word &= 1<<k - 1
		}
		dst[at/64] |= word << (at % 64)
		if at%64+k > 64 {
			dst[at/64+1] |= word >> (64 - at%64)
		}
		at, from, n = at+k, from+k, n-k
	}
}
