package hstu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"grebe/compute"
)

// index is the items' vectors: on a device that retrieves, in bf16 like the model's other products, else in blocks that
// the device multiplies with queries in float32.
type index struct {
	width   int
	items   int
	vectors compute.Vectors // nil: blocks
	asked   *company
	blocks  []*linear
	bytes   int64
}

// indexRows is the items of a block: their scores stay in a core's cache until they are looked at.
const indexRows = 16384

func newIndex(dev compute.Device, m *Model) (*index, error) {
	x := &index{width: m.cfg.Hidden, items: m.cfg.Items}
	if r, ok := dev.(compute.Retriever); ok && m.dt == compute.BF16 {
		err := x.onDevice(r, m)
		if !errors.Is(err, compute.ErrNoVectors) {
			return x, err
		}
	}
	for first := 0; first < m.cfg.Items; first += indexRows {
		n := min(indexRows, m.cfg.Items-first)
		rows, err := m.vectorsOf(first, n)
		if err != nil {
			return nil, err
		}
		block, err := newLinear(dev, rows, n, x.width, nil)
		if err != nil {
			return nil, fmt.Errorf("the vectors of %d items: %w", n, err)
		}
		x.blocks = append(x.blocks, block)
		x.bytes += 4 * int64(len(rows))
	}
	return x, nil
}

// vectorsOf returns the vectors of n items.
func (m *Model) vectorsOf(first, n int) ([]float32, error) {
	rows := rowsOf(m.content.item.tensor, first, n)
	if m.itemMLP == nil {
		return rows, nil
	}
	return m.itemMLP.apply(rows)
}

// onDevice puts the vectors on a device that retrieves.
func (x *index) onDevice(r compute.Retriever, m *Model) (err error) {
	x.vectors, err = r.Vectors(x.items, x.width, func(first int, to []float32) error {
		for len(to) > 0 {
			n := min(indexRows, len(to)/x.width)
			rows, err := m.vectorsOf(first, n)
			if err != nil {
				return err
			}
			copy(to, rows)
			first, to = first+n, to[len(rows):]
		}
		return nil
	})
	if err != nil {
		return err
	}
	x.bytes = x.vectors.Bytes()
	x.asked = newCompany(x.vectors)
	return nil
}

// Found is an item and its score.
type Found struct {
	Item  int32
	Score float32
}

// Retrieve returns the n items that the state of a history's last row scores best, best first, ties by row. The items
// of without, ascending, are left out, and so are those that eligible refuses; it may be nil, and is called by several
// goroutines. Broken is how many more have a score that is no finite number, and are left out. Retrieve ends when ctx
// does.
func (m *Model) Retrieve(ctx context.Context, hidden []float32, n int, query int64, without []int32,
	eligible func(item int32) bool) (found []Found, broken int, err error) {
	if m.index == nil {
		return nil, 0, errors.New("hstu: the model retrieves nothing")
	}
	user, err := m.post.apply(hidden, m.cfg.Hidden, query)
	if err != nil {
		return nil, 0, err
	}
	for i, v := range user { // no score would be the best
		if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
			return nil, 0, fmt.Errorf("hstu: value %d of the user's vector is %v", i, v)
		}
	}
	if m.index.vectors != nil {
		r := retrieval{x: m.index, user: user, n: n, without: without, eligible: eligible}
		err := r.run(ctx)
		return r.found, r.broken, err
	}
	return m.index.multiply(ctx, user, n, without, eligible)
}

// multiply is Retrieve by products of blocks.
func (x *index) multiply(ctx context.Context, user []float32, n int, without []int32,
	eligible func(item int32) bool) (found []Found, broken int, err error) {
	best := top{n: n}
	first := int32(0)
	takes := func(item int32) bool {
		_, out := slices.BinarySearch(without, item)
		return !out && (eligible == nil || eligible(item))
	}
	for _, b := range x.blocks {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		scores, err := b.apply(user)
		if err != nil {
			return nil, 0, err
		}
		for i, s := range scores {
			if f := float64(s); math.IsNaN(f) || math.IsInf(f, 0) {
				if takes(first + int32(i)) {
					broken++
				}
				continue
			}
			if best.takes(s) && takes(first+int32(i)) {
				best.add(Found{first + int32(i), s})
			}
		}
		first += int32(b.out)
	}
	return best.sorted(), broken, nil
}

// top keeps the n best of what comes in the order of items: a heap with the worst on top.
type top struct {
	n    int
	heap []Found
}

// takes reports whether a score is among the best so far. An equal one is not: its item comes later.
func (t *top) takes(s float32) bool {
	return len(t.heap) < t.n || t.n > 0 && s > t.heap[0].Score
}

func worse(a, b Found) bool { return a.Score < b.Score || a.Score == b.Score && a.Item > b.Item }

func (t *top) add(f Found) {
	if len(t.heap) < t.n {
		t.heap = append(t.heap, f)
		for i := len(t.heap) - 1; i > 0; {
			up := (i - 1) / 2
			if !worse(t.heap[i], t.heap[up]) {
				return
			}
			t.heap[i], t.heap[up] = t.heap[up], t.heap[i]
			i = up
		}
		return
	}
	t.heap[0] = f
	for i := 0; ; {
		low := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(t.heap); c++ {
			if worse(t.heap[c], t.heap[low]) {
				low = c
			}
		}
		if low == i {
			return
		}
		t.heap[i], t.heap[low] = t.heap[low], t.heap[i]
		i = low
	}
}

func (t *top) sorted() []Found {
	slices.SortFunc(t.heap, func(a, b Found) int {
		if worse(b, a) {
			return -1
		}
		return 1
	})
	return t.heap
}
