package hstu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"grebe/compute"
)

// index is the items' vectors, in blocks that a device multiplies with queries. It computes in float32, so
// that the best items are the best, not nearly.
type index struct {
	width  int
	blocks []*linear
	bytes  int64
}

// indexRows is the items of a block: their scores stay in a core's cache until they are looked at.
const indexRows = 16384

func newIndex(dev compute.Device, m *Model) (*index, error) {
	x := &index{width: m.cfg.Hidden}
	for first := 0; first < m.cfg.Items; first += indexRows {
		n := min(indexRows, m.cfg.Items-first)
		rows := rowsOf(m.items, first, n)
		if m.itemMLP != nil {
			var err error
			if rows, err = m.itemMLP.apply(rows); err != nil {
				return nil, err
			}
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

// Found is an item and its score.
type Found struct {
	Item  int32
	Score float32
}

// Retrieve returns the n items that the state of a history's last row scores best, best first, ties by row.
// Items that eligible refuses are left out; it is asked only of items that would be among the best, and may be
// nil. Broken is how many more have a score that is no finite number, and are left out. Retrieve ends when ctx does.
func (m *Model) Retrieve(ctx context.Context, hidden []float32, n int, query int64, eligible func(item int32) bool) (found []Found, broken int, err error) {
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
	best := top{n: n}
	first := int32(0)
	for _, b := range m.index.blocks {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		scores, err := b.apply(user)
		if err != nil {
			return nil, 0, err
		}
		for i, s := range scores {
			if f := float64(s); math.IsNaN(f) || math.IsInf(f, 0) {
				if eligible == nil || eligible(first+int32(i)) {
					broken++
				}
				continue
			}
			if best.takes(s) && (eligible == nil || eligible(first+int32(i))) {
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
