// Package topk runs the rounds of a beam search's selection on a GPU (kernels/select.cu), so that no
// round waits for the host: logits in, the next round's beams out, exactly those that sorting all valid
// continuations by score and then by node would put first.
//
// A Tree is the catalog's valid paths on the GPU. A Search holds the beams of each round of several
// requests at a time; Round launches what selects a level's continuations. Beams lie in the order of their
// nodes, so parents never decrease. Every beam has a row of logits, also one with a single path left: its
// continuation has the probability one and its score stays to the bit.
//
// A request may keep fewer beams than the search has room for, fewer continuations of one beam, and leave nodes out
// (Limits).
//
// All of it belongs to the goroutine that is inside the context.
package topk

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/kernels"
)

// MaxWidth is the most beams that a round can keep.
const MaxWidth = 8192

// usualWidth is the most beams of searches that share the smaller of two sets of kernels.
const usualWidth = 1024

// Sizes that kernels/select.cu has, too.
const (
	scan     = 256 // threads of a beam's block
	groups   = 4 * scan
	rowBytes = 32
	// boundBytes is the size of struct Bound.
	boundBytes = 8
	together   = 4 // beams of a block that counts
	bins       = 2304
	keep       = 512 // threads of the last kernel
	keepGrid   = 64

	candidateBytes = 16
	headBytes      = 8
	keyBytes       = 8 // of a beam that is sorted
)

// room returns the width that the kernels of a search have room for.
func room(widths []int) int {
	if slices.Max(widths) <= usualWidth {
		return usualWidth
	}
	return MaxWidth
}

// listed is LIST, the continuations that are ranked for a search with room for most beams.
func listed(most int) int {
	if most < 2*usualWidth {
		return 16 * usualWidth
	}
	return 8 * most
}

// scratchBytes is the size of struct Scratch.
func scratchBytes(most int) int { return 32 + 4*bins + candidateBytes*(most+listed(most)) }

// Set holds the kernels.
type Set struct {
	c       *driver.Context
	loaded  map[format]*stages
	modules []*driver.Module
}

// format is what the kernels are compiled for.
type format struct {
	bf16, wide bool
	most       int // beams
}

type stages struct{ limit, scan, count, pick, keep *driver.Function }

// New returns a set without kernels. The caller MUST Close it.
func New(c *driver.Context) *Set { return &Set{c: c, loaded: map[format]*stages{}} }

// Close unloads the kernels, none of which may be running.
func (s *Set) Close() error {
	var errs []error
	for _, m := range s.modules {
		errs = append(errs, m.Close())
	}
	s.modules = nil
	clear(s.loaded)
	return errors.Join(errs...)
}

func (s *Set) load(f format) (*stages, error) {
	if st := s.loaded[f]; st != nil {
		return st, nil
	}
	number := map[bool]string{true: "1", false: "0"}
	m, err := kernels.Load(s.c, "select.cu", "LOGITS_BF16="+number[f.bf16], "CODES_WIDE="+number[f.wide],
		fmt.Sprint("MOST=", f.most))
	if err != nil {
		return nil, err
	}
	s.modules = append(s.modules, m)
	st := &stages{}
	for name, to := range map[string]**driver.Function{
		"select_limit": &st.limit, "select_scan": &st.scan, "select_count": &st.count,
		"select_pick": &st.pick, "select_keep": &st.keep} {
		if *to, err = m.Function(name); err != nil {
			return nil, err
		}
	}
	if err := st.keep.AllowShared(keyBytes * f.most); err != nil {
		return nil, err
	}
	s.loaded[f] = st
	return st, nil
}

// memory frees together what was allocated bit by bit.
type memory struct {
	c    *driver.Context
	ptrs []driver.Ptr
	err  error
}

func (m *memory) alloc(n int) driver.Ptr {
	if m.err != nil {
		return 0
	}
	p, err := m.c.Alloc(n)
	m.err = err
	m.ptrs = append(m.ptrs, p)
	return p
}

func (m *memory) upload(b []byte) driver.Ptr {
	p := m.alloc(len(b))
	if m.err == nil {
		m.err = m.c.Upload(p, b)
	}
	return p
}

func (m *memory) free() error {
	var errs []error
	for _, p := range m.ptrs {
		errs = append(errs, m.c.Free(p))
	}
	m.ptrs = nil
	return errors.Join(errs...)
}

// Level is a level of the tree of valid paths, as package beam has it: the children of node n of the level
// before are the nodes Starts[n] … Starts[n+1]-1, in the order of their codes. The first level's Starts are
// 0 and the number of its nodes.
type Level struct {
	Size   int      // codes, valid or not: logits of a row
	Starts []uint32 // one more than there are nodes at the level before
	Codes  []uint32 // of the level's nodes
}

func (l *Level) validate() error {
	if l.Size < 1 || len(l.Starts) < 2 || l.Starts[0] != 0 || int(l.Starts[len(l.Starts)-1]) != len(l.Codes) {
		return fmt.Errorf("%d codes, %d nodes, %d starts that do not fit", l.Size, len(l.Codes), len(l.Starts))
	}
	return nil
}

// Tree is a tree of valid paths on the GPU.
type Tree struct {
	memory
	levels []level
	items  int        // below all leaves
	first  driver.Ptr // first item of each leaf and, behind them, the number of all; 0: a leaf has one
}

// Items returns how many items the leaves have.
func (t *Tree) Items() int { return t.items }

type level struct {
	size, nodes   int
	starts, codes driver.Ptr
	wide          bool
}

// NewTree copies a tree. The items of leaf n are items[n] … items[n+1]-1, at least one; without items each leaf has
// one. The caller MUST Close it after the last search on it.
func NewTree(c *driver.Context, levels []Level, items []uint32) (*Tree, error) {
	t := &Tree{memory: memory{c: c}}
	for i, l := range levels {
		if err := l.validate(); err != nil {
			return nil, errors.Join(fmt.Errorf("topk: level %d: %w", i, err), t.free())
		}
		d := level{size: l.Size, nodes: len(l.Codes), wide: l.Size > 1<<16, starts: t.upload(bytesOf(l.Starts))}
		if d.wide {
			d.codes = t.upload(bytesOf(l.Codes))
		} else {
			short := make([]uint16, len(l.Codes))
			for j, code := range l.Codes {
				short[j] = uint16(code)
			}
			d.codes = t.upload(bytesOf(short))
		}
		t.levels = append(t.levels, d)
		t.items = d.nodes
	}
	if items != nil && int(items[t.items]) != t.items {
		t.items, t.first = int(items[t.items]), t.upload(bytesOf(items))
	}
	if t.err != nil {
		return nil, errors.Join(fmt.Errorf("topk: copy a tree: %w", t.err), t.free())
	}
	return t, nil
}

// Close frees the tree.
func (t *Tree) Close() error { return t.free() }

func bytesOf[T any](v []T) []byte {
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(one)))
}
