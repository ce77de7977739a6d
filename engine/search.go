package engine

import (
	"errors"
	"fmt"
	"slices"

	"grebe/compute"
)

// Search is a beam search behind a job's plan, all rounds of which the device runs by itself: its beams
// see all segments of the plan. Only devices that are compute.Trees do that, and not for every model: the
// job's error is compute.ErrNoSearch where its caller has to run the rounds.
type Search struct {
	Tree           compute.Tree
	Heads          []compute.Linear // of the tree's levels, from the model's Head
	Segment        int              // the first code follows its last token, which the job computes
	Position       int              // of the first code
	compute.Limits                  // with Widths for all levels
	Leaves         []compute.Leaf   // what was found, in the memory that there was
}

// searcher is a model that can search.
type searcher interface {
	Search(r compute.Searcher, b *compute.Batch, s *compute.Search, heads []compute.Linear, out [][]compute.Leaf) error
}

// At most maxSearches run together, and more than fewSearches only while a round has at most manyRows rows: beyond that
// larger rounds are hardly faster per row, and their KV takes memory.
const (
	maxSearches = 16
	fewSearches = 8
	manyRows    = 4096
)

// most returns how many searches whose rounds have so many rows run together.
func most(rows int) int { return min(maxSearches, max(fewSearches, manyRows/rows)) }

// rows returns the most rows that a round has.
func (s *Search) rows() int {
	if len(s.Widths) < 2 {
		return 1
	}
	return slices.Max(s.Widths[:len(s.Widths)-1])
}

// with reports whether two searches can run together. All of a group have the rows of its widest, so that widths may
// differ by a factor of two at most.
func (s *Search) with(o *Search) bool {
	a, b := s.rows(), o.rows()
	return s.Tree == o.Tree && max(a, b) <= 2*min(a, b) && slices.Equal(s.Heads, o.Heads)
}

// checkSearch validates what a job searches for.
func (e *Engine) checkSearch(j *Job) error {
	s := j.Search
	if s == nil {
		return nil
	}
	if len(j.Want) > 0 || len(j.Hidden) > 0 || j.Beams != nil {
		return errors.New("engine: a job searches and wants something else, too")
	}
	if _, ok := e.model.(searcher); !ok {
		return fmt.Errorf("engine: %w", compute.ErrNoSearch)
	}
	if _, ok := e.runner.(compute.Searcher); !ok {
		return fmt.Errorf("engine: %w", compute.ErrNoSearch)
	}
	if s.Tree == nil || len(s.Widths) != s.Tree.Depth() || len(s.Heads) != len(s.Widths) || len(s.Widths) == 0 {
		return fmt.Errorf("engine: a search of %d levels with %d heads does not fit its tree", len(s.Widths), len(s.Heads))
	}
	if last := s.Position + len(s.Widths) - 1; s.Position < 0 || last > e.model.MaxPositions() {
		return fmt.Errorf("engine: a search from position %d to %d of %d", s.Position, last, e.model.MaxPositions())
	}
	if n := s.rows(); n > e.opt.MaxTokens {
		return fmt.Errorf("%w: %d beams, at most %d", ErrTooLarge, n, e.opt.MaxTokens)
	}
	return e.checkAnswer(j, s.Segment)
}

// cost adds what the rounds compute.
func (s *Search) cost(c *Cost, prompt, most int) {
	for l, w := range s.Widths[:len(s.Widths)-1] {
		c.Rows += w
		c.Keys += w * (prompt + l + 1)
	}
	c.Rows = min(c.Rows, most)
}

// group puts those of the tasks that run together with the first one to the front, and returns how many
// they are: as many as fit of those that search for nothing, or some searches of one tree.
func (e *Engine) group(tasks []task) int {
	first, n, rows, most := tasks[0].job.Search, 1, tasks[0].rows, len(tasks)
	if first != nil {
		like, widest := alike(tasks)
		most = min(evenly(like, widest), e.opt.MaxTokens/widest)
	}
	most = min(most, e.room.most())
	for i := 1; i < len(tasks) && n < most; i++ {
		s := tasks[i].job.Search
		if rows+tasks[i].rows > e.opt.MaxTokens || !tasks[i].job.Blend.with(tasks[0].job.Blend) ||
			(s == nil) != (first == nil) || s != nil && !s.with(first) {
			continue
		}
		rows += tasks[i].rows
		tasks[n], tasks[i] = tasks[i], tasks[n]
		n++
	}
	return n
}

// alike returns how many searches can run with the first one, and the most rows of one's rounds.
func alike(tasks []task) (n, widest int) {
	for i := range tasks {
		if s := tasks[i].job.Search; s != nil && s.with(tasks[0].job.Search) {
			n, widest = n+1, max(widest, s.rows())
		}
	}
	return n, widest
}

// evenly returns how many of n searches run together, so that their groups are as few as possible and of about the same
// size: of eighteen, nine are answered before the others, not sixteen at once.
func evenly(n, widest int) int {
	most := most(widest)
	groups := (n + most - 1) / most
	return (n + groups - 1) / groups
}

// search runs the searches of the tasks, which are all of one tree.
func (p *pass) search(e *Engine) error {
	var spec compute.Search
	var found [][]compute.Leaf
	var heads []compute.Linear
	for i := range p.tasks {
		t := &p.tasks[i]
		if t.out.Err != nil {
			continue
		}
		s := t.job.Search
		spec.Tree, heads = s.Tree, s.Heads
		spec.Widths = slices.Grow(spec.Widths, len(s.Widths))[:len(s.Widths)]
		for l, w := range s.Widths {
			spec.Widths[l] = max(spec.Widths[l], w)
		}
		sees := make([]int32, len(t.job.Plan.Segments))
		for j := range sees {
			sees[j] = int32(t.base + j)
		}
		spec.Prompts = append(spec.Prompts, compute.Prompt{
			Row: p.lastRow(t, s.Segment), Position: int32(s.Position), Sees: sees,
			Limits: s.Limits})
		found = append(found, s.Leaves)
	}
	if len(found) == 0 {
		return nil
	}
	if err := e.model.(searcher).Search(e.runner.(compute.Searcher), &p.batch, &spec, heads, found); err != nil {
		return err
	}
	for i := range p.tasks {
		if t := &p.tasks[i]; t.out.Err == nil {
			t.job.Search.Leaves, found = found[0], found[1:]
		}
	}
	return nil
}
