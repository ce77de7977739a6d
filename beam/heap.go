package beam

import "slices"

// candidate is a continuation of a beam: the node it leads to and the beam's row, or -1 if settled.
type candidate struct {
	score float64
	node  uint32
	row   int32
}

// better is the order of beams: by score, then the lower node, which is the one of the lower parent
// row, or of the lower code of the same one.
func (c candidate) better(o candidate) bool {
	return c.score > o.score || c.score == o.score && c.node < o.node
}

// best keeps the best candidates of those offered, at most limit, the worst of them first.
type best struct {
	limit int
	heap  []candidate
}

func (b *best) reset(limit int) {
	b.limit = limit
	b.heap = slices.Grow(b.heap[:0], limit)
}

func (b *best) full() bool { return len(b.heap) >= b.limit }

// wants reports whether a candidate would be kept.
func (b *best) wants(c candidate) bool { return !b.full() || c.better(b.heap[0]) }

// offer keeps a candidate if it is among the best.
func (b *best) offer(c candidate) {
	if !b.full() {
		b.heap = append(b.heap, c)
		b.up(len(b.heap) - 1)
		return
	}
	if c.better(b.heap[0]) {
		b.heap[0] = c
		b.down()
	}
}

func (b *best) up(i int) {
	c := b.heap[i]
	for i > 0 {
		p := (i - 1) / 2
		if !b.heap[p].better(c) {
			break
		}
		b.heap[i] = b.heap[p]
		i = p
	}
	b.heap[i] = c
}

func (b *best) down() {
	h := b.heap
	c, i := h[0], 0
	for {
		k := 2*i + 1
		if k >= len(h) {
			break
		}
		if k+1 < len(h) && h[k].better(h[k+1]) {
			k++
		}
		if !c.better(h[k]) {
			break
		}
		h[i] = h[k]
		i = k
	}
	h[i] = c
}
