package compute

import (
	"errors"
	"fmt"
)

// ErrNoSearch says that a device does not run this search by itself: its caller runs the rounds.
var ErrNoSearch = errors.New("compute: the device does not run such a search")

// MaxBeams is the most beams that a level of a search on a device keeps.
const MaxBeams = 8192

// TreeLevel is a level of a tree of valid paths, as package beam has it: the children of node n of the
// level before are the nodes Starts[n] … Starts[n+1]-1, in the order of their codes. The first level's
// Starts are 0 and the number of its nodes.
type TreeLevel struct {
	Size   int      // codes, valid or not: logits of a row
	Starts []uint32 // one more than there are nodes at the level before
	Codes  []uint32 // of the level's nodes
	Tokens []int32  // of the level's Size codes
}

// Tree is a tree of valid paths on a device, equal to none but itself. It is freed when nothing refers to it any more.
type Tree interface {
	Depth() int
	Items() int
}

// Trees is a Device whose runners may be Searchers.
type Trees interface {
	// Tree copies a tree to the device. The items of leaf n are items[n] … items[n+1]-1; without items each leaf has
	// one. Neither levels nor items are used after the return.
	Tree(levels []TreeLevel, items []uint32) (Tree, error)
}

// Search is a beam search that a device runs by itself: level by level it keeps the best continuations of
// all beams, by score and then by node, and computes a row for each of them that sees the prompt and its
// own path. A continuation's score is its beam's plus the log-softmax of its logit over the beam's valid
// continuations.
type Search struct {
	Tree    Tree
	Widths  []int // most beams that each level keeps of any prompt, 1 … MaxBeams
	Prompts []Prompt
}

// Prompt is where one request's search begins.
type Prompt struct {
	Row      int32   // of the batch: the prompt's last token. Ascending from prompt to prompt
	Position int32   // of the first code's token
	Sees     []int32 // segments of the batch that the beams see, in full
	Limits
}

// Limits say what a search may keep. Continuations that it may not keep take part in softmax all the same.
type Limits struct {
	Widths []int      // nil, or by level the beams that are kept, at most the search's
	TopK   int        // most continuations of one beam that are kept, the lower nodes of equals; 0: all
	Dead   [][]uint32 // nil, or by level the nodes that are not kept, ascending
	Alive  []uint64   // nil, or a bit for each item, in the order of the leaves: nodes with none below are not kept
}

// Width returns how many beams are kept at a level of a search.
func (l *Limits) Width(s *Search, level int) int {
	if l.Widths == nil {
		return s.Widths[level]
	}
	return l.Widths[level]
}

// Leaf is a path that a search found.
type Leaf struct {
	Node  uint32
	Score float64
}

// Searcher is a Runner that runs the rounds of a search without the host between them:
//
//	Begin · Search · Embed · layers · Select · { Round · Embed · layers · Select } per further level · Found
//
// where the prompt's layers end with Keep of the prompts' rows. The batch may have transient chunks.
type Searcher interface {
	Runner
	// Search says what follows the batch that was begun. Both MUST stay unchanged until Found returned. It
	// returns ErrNoSearch where the caller has to search itself; so may Found.
	Search(s *Search) error
	// Select chooses a level's continuations by the logits norm(x)·headᵀ of all beams.
	Select(norm Vector, head Linear)
	// Round begins the next level's rows: the tokens of what was chosen.
	Round()
	// Found waits, and appends the leaves of each prompt to out[i][:0], in the order of their nodes.
	Found(out [][]Leaf) error
}

// Validate checks a search against the batch that it follows.
func (s *Search) Validate(b *Batch) error {
	if s.Tree == nil || len(s.Widths) != s.Tree.Depth() || len(s.Prompts) == 0 {
		return fmt.Errorf("compute: a search of %d levels for %d prompts does not fit its tree", len(s.Widths),
			len(s.Prompts))
	}
	for l, w := range s.Widths {
		if w < 1 || w > MaxBeams {
			return fmt.Errorf("compute: a search keeps %d beams at level %d, want 1 … %d", w, l, MaxBeams)
		}
	}
	last := int32(-1)
	for i := range s.Prompts {
		p := &s.Prompts[i]
		if p.Row <= last || int(p.Row) >= len(b.Tokens) || p.Position < 0 {
			return fmt.Errorf("compute: prompt %d ends at row %d of %d, after row %d, with position %d to follow", i, p.Row,
				len(b.Tokens), last, p.Position)
		}
		last = p.Row
		for _, g := range p.Sees {
			if g < 0 || int(g) >= len(b.Segments) {
				return fmt.Errorf("compute: prompt %d sees segment %d of %d", i, g, len(b.Segments))
			}
		}
		if err := p.Limits.validate(s); err != nil {
			return fmt.Errorf("compute: prompt %d: %w", i, err)
		}
	}
	return nil
}

func (l *Limits) validate(s *Search) error {
	depth := len(s.Widths)
	if l.Dead != nil && len(l.Dead) != depth || l.Widths != nil && len(l.Widths) != depth || l.TopK < 0 {
		return fmt.Errorf("limits of %d and %d levels, of %d, and %d continuations", len(l.Dead), len(l.Widths), depth,
			l.TopK)
	}
	for i, w := range l.Widths {
		if w < 1 || w > s.Widths[i] {
			return fmt.Errorf("%d beams at level %d, want 1 … %d", w, i, s.Widths[i])
		}
	}
	if words := (s.Tree.Items() + 63) / 64; l.Alive != nil && len(l.Alive) != words {
		return fmt.Errorf("%d words of items, want %d", len(l.Alive), words)
	}
	return nil
}

// ValidateItems checks the first items of a tree's leaves, each of which has at least one.
func ValidateItems(levels []TreeLevel, items []uint32) error {
	if items == nil || len(levels) == 0 {
		return nil
	}
	leaves := len(levels[len(levels)-1].Codes)
	if len(items) != leaves+1 || items[0] != 0 {
		return fmt.Errorf("compute: %d first items of %d leaves, want one more, from 0", len(items), leaves)
	}
	for i, first := range items[:leaves] {
		if items[i+1] <= first {
			return fmt.Errorf("compute: leaf %d has no items", i)
		}
	}
	return nil
}

// Validate checks that a level is one of a tree, and that its codes have tokens.
func (l *TreeLevel) Validate() error {
	if l.Size < 1 || len(l.Starts) < 2 || l.Starts[0] != 0 || int(l.Starts[len(l.Starts)-1]) != len(l.Codes) ||
		len(l.Tokens) != l.Size {
		return fmt.Errorf("compute: a level of %d codes, %d nodes, %d starts and %d tokens", l.Size, len(l.Codes),
			len(l.Starts), len(l.Tokens))
	}
	for node, code := range l.Codes {
		if int(code) >= l.Size {
			return fmt.Errorf("compute: node %d has code %d of a level of %d", node, code, l.Size)
		}
	}
	return nil
}
