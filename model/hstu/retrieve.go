package hstu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
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

// newIndex makes the index of so many items, whose vectors read writes to to, from item first on.
func newIndex(dev compute.Device, m *Model, items int, read func(first int, to []float32) error) (*index, error) {
	x := &index{width: m.cfg.Hidden, items: items}
	if r, ok := dev.(compute.Retriever); ok && m.dt == compute.BF16 {
		var v compute.Vectors
		err := withMemory(func() (err error) {
			v, err = r.Vectors(items, x.width, read)
			return err
		})
		if err == nil {
			x.vectors, x.bytes, x.asked = v, v.Bytes(), newCompany(v)
		}
		if !errors.Is(err, compute.ErrNoVectors) {
			return x, err
		}
	}
	for first := 0; first < items; first += indexRows {
		block, err := newBlock(dev, x.width, first, min(indexRows, items-first), read)
		if err != nil {
			return nil, err
		}
		x.blocks = append(x.blocks, block)
		x.bytes += 4 * int64(block.out*block.in)
	}
	return x, nil
}

func newBlock(dev compute.Device, width, first, n int, read func(first int, to []float32) error) (*linear, error) {
	rows := make([]float32, n*width)
	if err := read(first, rows); err != nil {
		return nil, err
	}
	var block *linear
	err := withMemory(func() (err error) {
		block, err = newLinear(dev, rows, n, width, nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the vectors of %d items: %w", n, err)
	}
	return block, nil
}

// withMemory calls f, and once more if the device has no memory: an index that nobody uses any more has its memory
// until the garbage collector finds that out.
func withMemory(f func() error) error {
	err := f()
	if errors.Is(err, compute.ErrNoMemory) {
		runtime.GC()
		err = f()
	}
	return err
}

// readVectors writes the vectors of items from first on to to, from the rows that gather gets.
func (m *Model) readVectors(first int, to []float32, gather func(rows []int32, out []float32) error) error {
	var list []int32
	for len(to) > 0 {
		n := min(blockRows, len(to)/m.cfg.Hidden)
		list = list[:0]
		for i := range n {
			list = append(list, int32(first+i))
		}
		if err := m.vectorsOf(list, to[:n*m.cfg.Hidden], gather); err != nil {
			return err
		}
		first, to = first+n, to[n*m.cfg.Hidden:]
	}
	return nil
}

// vectorsOf writes the vectors of items to to.
func (m *Model) vectorsOf(items []int32, to []float32, gather func(rows []int32, out []float32) error) error {
	if m.itemMLP == nil {
		return gather(items, to)
	}
	rows := make([]float32, len(items)*m.cfg.TableDim)
	if err := gather(items, rows); err != nil {
		return err
	}
	out, err := m.itemMLP.apply(rows)
	copy(to, out)
	return err
}

// Found is an item and its score.
type Found struct {
	Item  int32
	Score float32
}

// Retrieve returns the n items that the state of a history's last row scores best, best first, ties by row. The items
// of without, ascending, are left out, and so are those that eligible refuses; it may be nil, and is called by several
// goroutines. If fewer than n are found, it was called for all items but those of without. Broken is how many more have
// a score that is no finite number, and are left out. Retrieve ends when ctx does.
func (m *Model) Retrieve(ctx context.Context, hidden []float32, n int, query int64, without []int32,
	eligible func(item int32) bool) (found []Found, broken int, err error) {
	if m.index == nil && m.live == nil {
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
	if m.live != nil {
		return m.live.retrieve(ctx, user, n, without, eligible)
	}
	return m.index.retrieve(ctx, user, n, without, eligible)
}

// retrieve is Model.Retrieve for the user's vector.
func (x *index) retrieve(ctx context.Context, user []float32, n int, without []int32,
	eligible func(item int32) bool) (found []Found, broken int, err error) {
	if x.vectors != nil {
		r := retrieval{x: x, user: user, n: n, without: without, eligible: eligible}
		err := r.run(ctx)
		return r.found, r.broken, err
	}
	return x.multiply(ctx, user, n, without, eligible)
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
