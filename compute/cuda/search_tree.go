package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/topk"
	"grebe/internal/offheap"
)

// tree is the valid paths of a catalog on the GPU.
type tree struct {
	on     *topk.Tree
	levels []treeLevel
	most   int32 // the largest token of a code
}

type treeLevel struct {
	size   int
	tokens driver.Ptr // of its codes
}

func (t *tree) Depth() int { return len(t.levels) }

func (t *tree) Items() int { return t.on.Items() }

func (d *device) Tree(levels []compute.TreeLevel, items []uint32) (compute.Tree, error) {
	t, err := d.newTree(levels, items)
	if driver.OutOfMemory(err) {
		err = errors.Join(compute.ErrNoSearch, err)
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (d *device) newTree(levels []compute.TreeLevel, items []uint32) (*tree, error) {
	if err := compute.ValidateItems(levels, items); err != nil {
		return nil, err
	}
	t := &tree{}
	var paths []topk.Level
	for i := range levels {
		l := &levels[i]
		if err := l.Validate(); err != nil {
			return nil, fmt.Errorf("cuda: level %d: %w", i, err)
		}
		if slices.Min(l.Tokens) < 0 {
			return nil, fmt.Errorf("cuda: level %d: a code has token %d", i, slices.Min(l.Tokens))
		}
		t.most = max(t.most, slices.Max(l.Tokens))
		paths = append(paths, topk.Level{Size: l.Size, Starts: l.Starts, Codes: l.Codes})
	}
	for i := range levels {
		l := &levels[i]
		p, err := d.upload(1, 4*l.Size, func(_ int, to []byte) { copy(offheap.Slice[int32](to, l.Size), l.Tokens) })
		if err != nil {
			return nil, fmt.Errorf("cuda: the tokens of level %d: %w", i, err)
		}
		freeWith(d, t, p)
		t.levels = append(t.levels, treeLevel{size: l.Size, tokens: p})
	}
	defer d.c.Leave()
	err := d.c.Enter()
	if err == nil {
		t.on, err = topk.NewTree(d.c, paths, items)
	}
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	runtime.AddCleanup(t, d.freeTree, t.on)
	return t, nil
}

// freeTree gives a tree's memory back, unless that went with the device.
func (d *device) freeTree(t *topk.Tree) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	defer d.c.Leave()
	if d.c.Enter() == nil {
		_ = t.Close() // fails with a lost GPU only, whose memory is gone
	}
}
