package tokenizer

// bpe holds the merge rules. Encoding a word starts from its bytes and merges, again
// and again, the adjacent pair with the lowest rank, the leftmost where ranks are equal.
type bpe struct {
	bytes [256]uint32 // token of each byte
	rules pairTable   // pair of tokens → rank<<32 | merged token
}

// shortWord is the longest word, in bytes, that is merged by looking at all pairs in
// turn. Longer ones keep their pairs in a heap, which stays O(n log n).
const shortWord = 48

// mergeBuffers is the memory for merging a long word, kept between words.
type mergeBuffers struct {
	parts []part
	heap  []uint64
}

// part is a run of the word's bytes that is one token so far.
type part struct {
	id         uint32
	prev, next int32
	rule       uint64 // of this part and the next, absent if none
}

// append appends the tokens of word, which is not empty.
func (b *bpe) append(dst []int32, word string, buf *mergeBuffers) []int32 {
	if len(word) <= shortWord {
		return b.appendShort(dst, word)
	}
	return b.appendLong(dst, word, buf)
}

func (b *bpe) appendShort(dst []int32, word string) []int32 {
	var ids [shortWord]uint32
	var rules [shortWord]uint64 // rules[i] is of the pair i, i+1
	n := len(word)
	for i := range n {
		ids[i] = b.bytes[word[i]]
	}
	for i := range n - 1 {
		rules[i] = b.rules.get(ids[i], ids[i+1])
	}
	for n > 1 {
		at, best := 0, absent
		for i, r := range rules[:n-1] {
			if r < best {
				at, best = i, r
			}
		}
		if best == absent {
			break
		}
		ids[at] = uint32(best)
		copy(ids[at+1:n-1], ids[at+2:n])
		copy(rules[at:n-2], rules[at+1:n-1])
		n--
		if at+1 < n {
			rules[at] = b.rules.get(ids[at], ids[at+1])
		}
		if at > 0 {
			rules[at-1] = b.rules.get(ids[at-1], ids[at])
		}
	}
	for _, id := range ids[:n] {
		dst = append(dst, int32(id))
	}
	return dst
}

// appendLong keeps the parts in a linked list and the pairs that have a rule in a heap
// of rank<<32 | position. An entry is stale, and skipped, once the pair at its position
// has another rank.
func (b *bpe) appendLong(dst []int32, word string, buf *mergeBuffers) []int32 {
	buf.fill(b, word)
	parts := buf.parts
	for len(buf.heap) > 0 {
		top := buf.pop()
		at := int32(uint32(top))
		p := &parts[at]
		if p.rule == absent || p.rule>>32 != top>>32 {
			continue
		}
		right := &parts[p.next]
		p.id = uint32(p.rule)
		p.next = right.next
		right.rule = absent
		p.rule = absent
		if p.next >= 0 {
			parts[p.next].prev = at
			buf.setRule(at, b.rules.get(p.id, parts[p.next].id))
		}
		if p.prev >= 0 {
			buf.setRule(p.prev, b.rules.get(parts[p.prev].id, p.id))
		}
	}
	for i := int32(0); i >= 0; i = parts[i].next {
		dst = append(dst, int32(parts[i].id))
	}
	return dst
}

// fill sets up the parts of word, one for each byte, and the heap of their pairs.
func (m *mergeBuffers) fill(b *bpe, word string) {
	m.parts, m.heap = m.parts[:0], m.heap[:0]
	for i := range len(word) {
		m.parts = append(m.parts, part{
			id: b.bytes[word[i]], prev: int32(i) - 1, next: int32(i) + 1, rule: absent,
		})
	}
	m.parts[len(word)-1].next = -1
	for i := range len(word) - 1 {
		m.setRule(int32(i), b.rules.get(m.parts[i].id, m.parts[i+1].id))
	}
}

// setRule records the rule of the pair that starts at part at.
func (m *mergeBuffers) setRule(at int32, rule uint64) {
	m.parts[at].rule = rule
	if rule != absent {
		m.push(rule>>32<<32 | uint64(uint32(at)))
	}
}

func (m *mergeBuffers) push(v uint64) {
	h := append(m.heap, v)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up] <= v {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = v
	m.heap = h
}

func (m *mergeBuffers) pop() uint64 {
	h := m.heap
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	m.heap = h
	if len(h) == 0 {
		return top
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if h[child] >= last {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = last
	return top
}
