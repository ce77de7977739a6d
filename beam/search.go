package beam

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Options say how wide to search.
type Options struct {
	Width  int    // beams kept per round
	TopK   int    // continuations of one beam that compete per round; 0: Width
	N      int    // results wanted: the last round keeps as many paths, if Width is less
	Widths []int  // beams kept by each round, at most Width; shorter or nil: Width
	Free   bool   // without the constraint, for comparisons: any code may follow any other
	Rules  *Rules // nil: none
	// OnePerPath returns only the first of the items of a path.
	OnePerPath bool
}

// Validate reports what is wrong with the options.
func (o *Options) Validate() error {
	if o.Width < 1 || o.TopK < 0 || o.N < 0 {
		return fmt.Errorf("beam: width %d, top_k %d, n %d: want at least 1, 0, 0", o.Width, o.TopK, o.N)
	}
	for l, w := range o.Widths {
		if w < 1 || w > o.Width {
			return fmt.Errorf("beam: width %d of round %d, want 1 … %d", w, l, o.Width)
		}
	}
	return nil
}

// Result is an item, and the log-probability of its path with the item's boost added.
type Result struct {
	Item  uint32
	Codes []int32
	Score float64
	Boost float64 // part of Score
}

// Search generates items for one request after another. Its rows, in the order of their nodes, are the
// beams that need logits; settled beams are kept beside them.
type Search struct {
	ix       *Index
	eligible *Eligible // nil: all
	opts     Options
	exact    bool // nothing is cut
	level    int

	beams   []candidate // in the order of their nodes; row: their own, or -1 if settled
	parents []int32     // by row
	codes   []int32
	spans   []span // by beam, what follows it in the index; empty until Prepare
	sel     selector
	ruled   ruled

	taken, before []int32 // of a free search: the codes of each row so far, and a round before
	reached       int     // paths that it kept

	ranked []candidate // scratch of Results
	paths  []int32
}

// span is what follows a beam: nodes of the next level and, where that is asked for, positions below it.
type span struct{ from, to, first, last uint32 }

// New returns a search with the memory that a request of the given options needs on the index.
func New(ix *Index, e *Eligible, o Options) (*Search, error) {
	s := &Search{}
	if err := s.Reset(ix, e, o); err != nil {
		return nil, err
	}
	blocks, longest := 0, 0 // blocks of all rows, and of one row
	for l := range ix.levels {
		n, rows := ix.Nodes(0), 1
		if l > 0 {
			n, rows = int(ix.levels[l-1].below.most), min(o.Width, ix.Nodes(l-1))
		}
		perRow := (n + blockLen - 1) / blockLen
		blocks, longest = max(blocks, rows*perRow), max(longest, perRow)
	}
	leaves := ix.Nodes(ix.Depth() - 1)
	width, last := min(o.Width, leaves), min(max(o.Width, o.N), leaves)
	s.sel.maxes = make([]float32, 0, blocks+groupLen)
	s.sel.sums = make([]float32, 0, longest+groupLen)
	s.sel.scratch = make([]float32, 0, (longest+1)*blockLen)
	s.sel.rows = slices.Grow(s.sel.rows, width+1)
	s.sel.order = slices.Grow(s.sel.order, width+1)
	s.sel.kept.heap = slices.Grow(s.sel.kept.heap, last)
	s.beams = slices.Grow(s.beams, last)
	s.parents, s.codes = slices.Grow(s.parents, width), slices.Grow(s.codes, width)
	s.spans = slices.Grow(s.spans, width+1)
	return s, nil
}

// Reset begins a request. The index and what is eligible (nil: everything) are read until the search
// is reset again, and must not change.
func (s *Search) Reset(ix *Index, e *Eligible, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if e != nil {
		if e.ix != ix || e.set != nil && e.set.ix != ix {
			return errors.New("beam: what is eligible belongs to another index")
		}
		e.seal()
		if e.set == nil && len(e.out) == 0 {
			e = nil
		}
	}
	if (e != nil || o.Rules != nil) && o.Free {
		return errors.New("beam: a free search leaves nothing out and has no rules")
	}
	if err := s.ruled.reset(ix, o.Rules); err != nil {
		return err
	}
	if o.TopK == 0 {
		o.TopK = o.Width
	}
	s.ix, s.eligible, s.opts, s.level = ix, e, o, 0
	s.beams, s.parents, s.codes, s.spans = s.beams[:0], s.parents[:0], s.codes[:0], s.spans[:0]
	s.taken, s.before, s.reached = s.taken[:0], s.before[:0], 0
	leaves := ix.Nodes(ix.Depth() - 1)
	if e != nil {
		leaves = e.leaves(o.Width)
	}
	s.exact = leaves <= o.Width && !o.Free
	if leaves == 0 {
		return nil
	}
	root := candidate{}
	if ix.Nodes(0) == 1 && ix.settled(0, 0) && !o.Free {
		root.row = -1
	} else {
		s.parents, s.codes = append(s.parents, -1), append(s.codes, -1)
	}
	s.beams = append(s.beams, root)
	return s.settle()
}

// Level returns the level that the next round chooses codes of.
func (s *Search) Level() int { return s.level }

// Rows returns the number of rows that the next round needs logits of.
func (s *Search) Rows() int { return len(s.parents) }

// Parents returns the row of the round before that each row continues: non-decreasing, see Permute. In
// the first round the one row is the prompt's, with parent -1. It is valid until the next round.
func (s *Search) Parents() []int32 { return s.parents }

// Codes returns the code of the level before that each row has taken, -1 in the first round. It is
// valid until the next round.
func (s *Search) Codes() []int32 { return s.codes }

// Exact reports whether the search scores every eligible path.
func (s *Search) Exact() bool { return s.exact }

// Done reports whether no more logits are needed.
func (s *Search) Done() bool { return s.level == s.ix.Depth() || len(s.beams) == 0 }

// Advance takes the logits of the round's rows and keeps the best continuations: row i has the logits of
// all Size(Level()) codes from logits[i*stride] on. After an error the search is where it was.
func (s *Search) Advance(logits []float32, stride int) error {
	if s.Done() {
		return errors.New("beam: advance a search that is done")
	}
	size := s.ix.Size(s.level)
	if need := (s.Rows()-1)*stride + size; stride < size || len(logits) < need {
		return fmt.Errorf("beam: round %d: %d logits in rows of %d, want %d rows of %d", s.level, len(logits), stride,
			s.Rows(), size)
	}
	if err := s.round(logits, stride); err != nil {
		return fmt.Errorf("beam: round %d: %w", s.level, err)
	}
	return s.settle()
}

// settle runs the rounds that need no logits.
func (s *Search) settle() error {
	for !s.Done() && s.Rows() == 0 {
		if err := s.round(nil, 0); err != nil {
			return err
		}
	}
	return nil
}

// Prepare looks up what may follow each beam, which needs no logits: a caller may do so while they are
// computed. Advance does what was not done.
func (s *Search) Prepare() {
	if s.Done() || s.opts.Free {
		return
	}
	for i := len(s.spans); i < len(s.beams); i++ {
		node := s.beams[i].node
		var p span
		p.from, p.to = s.ix.children(s.level, node)
		if s.eligible != nil {
			p.first, p.last = 0, uint32(s.ix.Len())
			if s.level > 0 {
				p.first, p.last = s.ix.positions(s.level-1, node)
			}
		}
		s.spans = append(s.spans, p)
	}
}

func (s *Search) round(logits []float32, stride int) error {
	s.Prepare()
	s.sel.reset(s.level, s.eligible)
	s.ruled.of = s.ruled.of[:0]
	size := s.ix.Size(s.level)
	for i, b := range s.beams {
		if !s.opts.Free && b.row < 0 {
			s.sel.addSettled(b.score, s.spans[i].from)
			s.ruled.of = append(s.ruled.of, int32(i))
			continue
		}
		var r selectorRow
		if row := logits[int(b.row)*stride:][:size]; s.opts.Free {
			r = s.freeRow(i, b, row)
		} else {
			r = s.validRow(s.spans[i], b, row)
		}
		if err := s.sel.add(r); err != nil {
			return err
		}
		if len(s.sel.rows) > len(s.ruled.of) { // some continuation has a probability
			s.ruled.of = append(s.ruled.of, int32(i))
		}
	}
	s.spans = s.spans[:0]
	switch width, topK := s.cut(); {
	case s.opts.Free:
		s.layFree(s.sel.choose(width, topK))
	case s.opts.Rules != nil:
		s.lay(s.chooseRuled(width, topK))
	default:
		s.lay(s.sel.choose(width, topK))
	}
	return nil
}

func (s *Search) validRow(p span, b candidate, logits []float32) selectorRow {
	return selectorRow{logits: logits, codes: s.ix.levels[s.level].codes.slice(p.from, p.to), n: int(p.to - p.from),
		first: p.from, score: b.score, row: b.row, from: p.first, to: p.last}
}

// cut returns how many beams the round keeps, and of one parent.
func (s *Search) cut() (width, topK int) {
	nodes := s.ix.Nodes(s.level)
	if s.opts.Free {
		nodes = len(s.beams) * s.ix.Size(s.level)
	}
	if s.exact {
		return min(s.opts.Width, nodes), nodes
	}
	width = s.opts.Width
	if s.level < len(s.opts.Widths) {
		width = s.opts.Widths[s.level]
	}
	if s.level == s.ix.Depth()-1 {
		width = max(width, s.opts.N)
		if r := s.opts.Rules; r != nil && r.Accept != nil {
			width = max(width, maxLeaves)
			return min(width, nodes), width
		}
	}
	return min(width, nodes), s.opts.TopK
}

// lay makes the chosen continuations, which are in the order of their nodes, the new beams.
func (s *Search) lay(chosen []candidate) {
	s.beams, s.parents, s.codes = s.beams[:0], s.parents[:0], s.codes[:0]
	codes := s.ix.levels[s.level].codes
	last := s.level == s.ix.Depth()-1
	for _, c := range chosen {
		if last || c.row < 0 || s.ix.settled(s.level, c.node) {
			c.row = -1
		} else {
			s.parents, s.codes = append(s.parents, c.row), append(s.codes, codes.At(int(c.node)))
			c.row = int32(len(s.parents) - 1)
		}
		s.beams = append(s.beams, c)
	}
	s.level++
}

// Eligible counts the items that the request may get, or with OnePerPath the paths, up to limit.
func (s *Search) Eligible(limit int) int {
	if s.opts.OnePerPath {
		if s.eligible == nil {
			return min(s.ix.Nodes(s.ix.Depth()-1), limit)
		}
		return min(s.eligible.leaves(limit), limit)
	}
	if s.eligible == nil {
		return min(s.ix.Len(), limit)
	}
	n, end := 0, uint32(s.ix.Len())
	for p, ok := s.eligible.next(0, end); ok && n < limit; p, ok = s.eligible.next(p+1, end) {
		n++
	}
	return n
}

// Results appends the best n items of a search that is done to dst, best first: real, eligible and
// distinct. Items of one path come in catalog order, with the same score, unless boosts differ. short says that there
// were fewer. The codes are valid until the next call or Reset.
func (s *Search) Results(dst []Result, n int) (results []Result, short bool) {
	if s.level != s.ix.Depth() || n <= 0 {
		return dst, n > 0
	}
	if s.opts.Rules != nil {
		return s.ruledResults(dst, n)
	}
	s.ranked = append(s.ranked[:0], s.beams...)
	slices.SortFunc(s.ranked, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.node, b.node))
	})
	depth := s.ix.Depth()
	s.paths = slices.Grow(s.paths[:0], depth*min(n, len(s.ranked)))
	for _, c := range s.ranked {
		if n == 0 {
			break
		}
		s.paths = s.ix.Path(s.paths, c.node)
		codes := s.paths[len(s.paths)-depth:]
		from, to := s.ix.levels[depth-1].below.bounds(c.node)
		for p := from; p < to && n > 0; p++ {
			if s.eligible == nil || s.eligible.has(p) {
				dst = append(dst, Result{Item: s.ix.items[p], Codes: codes, Score: c.score})
				n--
				if s.opts.OnePerPath {
					break
				}
			}
		}
	}
	return dst, n > 0
}
