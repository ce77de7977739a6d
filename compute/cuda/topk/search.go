package topk

import (
	"errors"
	"fmt"

	"grebe/compute/cuda/driver"
)

// Beams are the beams that one request has before a round, as addresses on the GPU.
type Beams struct {
	Head    driver.Ptr // two int32: how many there are, and whether a logit was NaN or +Inf; then there are none
	Scores  driver.Ptr // float64
	Nodes   driver.Ptr // uint32, of the level before
	Parents driver.Ptr // int32: row of the round before
	Codes   driver.Ptr // int32: code of the level before
}

// search is struct Search of kernels/select.cu.
type search struct {
	logits, starts, codes, alive, dead driver.Ptr
	in, out                            Beams
	scratch, maxes, rows               driver.Ptr
	stride, size, width, deads         int32
}

// Logits are a level's logits of all requests: row r of request i begins Stride·(i·rows + r) values from
// Ptr on, where rows is the width of the round before, or 1 in the first.
type Logits struct {
	Ptr    driver.Ptr
	Stride int
	BF16   bool // else float32
}

// Options are the sizes of a search.
type Options struct {
	Widths   []int // beams that each level keeps, at most MaxWidth
	Requests int   // that are searched for at a time
	Logits   []Logits
}

func (o *Options) validate(t *Tree) error {
	if len(o.Widths) != len(t.levels) || len(o.Logits) != len(t.levels) || o.Requests < 1 {
		return fmt.Errorf("topk: %d widths and %d logits for %d levels, %d requests", len(o.Widths), len(o.Logits), len(t.levels), o.Requests)
	}
	for l, w := range o.Widths {
		if w < 1 || w > MaxWidth || o.Logits[l].Stride < t.levels[l].size {
			return fmt.Errorf("topk: level %d: width %d of 1 … %d, stride %d of %d logits", l, w, MaxWidth, o.Logits[l].Stride, t.levels[l].size)
		}
	}
	return nil
}

// Search holds the rounds of a few requests at a time. All its addresses stay the same, so that its rounds
// can be part of a graph.
type Search struct {
	memory
	tree   *Tree
	opts   Options
	stages []*stages
	beams  [][]Beams      // by round, then by request; the last are the results
	rounds [][]search     // as they lie on the GPU
	on     []driver.Ptr   // where
	roots  []driver.Ptr   // first beams of each request, to begin with
	found  [][]driver.Ptr // what the kernels found out about each beam, by round and request
}

// NewSearch takes the memory of a search. The caller MUST Close it.
func (s *Set) NewSearch(t *Tree, o Options) (*Search, error) {
	if err := o.validate(t); err != nil {
		return nil, err
	}
	q := &Search{memory: memory{c: s.c}, tree: t, opts: o}
	for l := range t.levels {
		st, err := s.load(format{o.Logits[l].BF16, t.levels[l].wide})
		if err != nil {
			return nil, errors.Join(err, q.free())
		}
		q.stages = append(q.stages, st)
	}
	q.layOut()
	if q.err != nil {
		return nil, errors.Join(fmt.Errorf("topk: memory of a search: %w", q.err), q.free())
	}
	return q, nil
}

// rows returns the beams that a request may have before a round.
func (q *Search) rows(round int) int {
	if round == 0 {
		return 1
	}
	return q.opts.Widths[round-1]
}

func (q *Search) layOut() {
	n := q.opts.Requests
	rows := 1
	for round := range len(q.tree.levels) + 1 {
		room := q.rows(round)
		rows = max(rows, room)
		row := make([]Beams, n)
		for i := range row {
			row[i] = Beams{q.alloc(headBytes), q.alloc(8 * room), q.alloc(4 * room), q.alloc(4 * room), q.alloc(4 * room)}
		}
		q.beams = append(q.beams, row)
	}
	one := []int32{1, 0}
	q.roots = []driver.Ptr{q.upload(bytesOf(one)), q.upload(make([]byte, 8))}
	scratch, maxes := make([]driver.Ptr, n), make([]driver.Ptr, n)
	for i := range n {
		scratch[i], maxes[i] = q.upload(make([]byte, scratchBytes)), q.alloc(4*groups*rows)
	}
	for l := range q.tree.levels {
		level, logits := &q.tree.levels[l], q.opts.Logits[l]
		size := 4
		if logits.BF16 {
			size = 2
		}
		row, found := make([]search, n), make([]driver.Ptr, n)
		for i := range row {
			found[i] = q.alloc(rowBytes * q.rows(l))
			row[i] = search{logits: logits.Ptr.At(i * q.rows(l) * logits.Stride * size), starts: level.starts, codes: level.codes,
				in: q.beams[l][i], out: q.beams[l+1][i], scratch: scratch[i], maxes: maxes[i], rows: found[i],
				stride: int32(logits.Stride), size: int32(level.size), width: int32(q.opts.Widths[l])}
		}
		q.rounds, q.found = append(q.rounds, row), append(q.found, found)
		q.on = append(q.on, q.upload(bytesOf(row)))
	}
}

// Close frees the memory.
func (q *Search) Close() error { return q.free() }

// Beams returns a request's beams before a round; those after the last round are the results.
func (q *Search) Beams(round, request int) Beams { return q.beams[round][request] }

// Limit says which nodes of a level a request may keep: those whose bit is set in alive (0: all), less
// those in dead, which lists n nodes in ascending order. Others take part in the softmax all the same. It
// holds for later rounds, also in graphs, and waits for the GPU.
func (q *Search) Limit(level, request int, alive, dead driver.Ptr, n int) error {
	r := &q.rounds[level][request]
	r.alive, r.dead, r.deads = alive, dead, int32(n)
	one := bytesOf(q.rounds[level][request : request+1])
	return q.c.Upload(q.on[level].At(request*len(one)), one)
}

// Begin gives every request its first beam, the empty path.
func (q *Search) Begin(s *driver.Stream) error {
	for _, b := range q.beams[0] {
		if err := s.Copy(b.Head, q.roots[0], headBytes); err != nil {
			return err
		}
		if err := s.Copy(b.Scores, q.roots[1], 8); err != nil {
			return err
		}
		if err := s.Copy(b.Nodes, q.roots[1], 4); err != nil {
			return err
		}
	}
	return nil
}

// Round selects the continuations of all requests' beams at a level. args is overwritten. With overlap
// its first kernel may start before what writes the logits has finished, which it waits for.
func (q *Search) Round(s *driver.Stream, args *driver.Args, level int, overlap bool) error {
	st, rows, n := q.stages[level], q.rows(level), q.opts.Requests
	args.Reset().Ptr(q.on[level])
	launch := func(f *driver.Function, blocks, threads int, overlap bool) error {
		return f.Launch(s, driver.Launch{Grid: [3]int{blocks, n}, Block: [3]int{threads}, Overlap: overlap && q.c.Info().Arch >= 90}, args)
	}
	if err := launch(st.scan, rows, scan, overlap); err != nil {
		return err
	}
	if err := launch(st.count, (rows+together-1)/together, scan, true); err != nil {
		return err
	}
	if err := launch(st.pick, rows, scan, true); err != nil {
		return err
	}
	return launch(st.keep, keepGrid, keep, true)
}
