package topk

import (
	"errors"
	"fmt"
	"unsafe"

	"grebe/compute/cuda/driver"
	"grebe/internal/offheap"
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
	scratch, maxes, rows, bounds       driver.Ptr
	stride, size, width, deads, limit  int32
}

const searchBytes = int(unsafe.Sizeof(search{}))

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
	Requests int   // most that are searched for at a time
	Logits   []Logits
}

func (o *Options) validate(t *Tree) error {
	if len(o.Widths) != len(t.levels) || len(o.Logits) != len(t.levels) || o.Requests < 1 {
		return fmt.Errorf("topk: %d widths and %d logits for %d levels, %d requests", len(o.Widths), len(o.Logits),
			len(t.levels), o.Requests)
	}
	for l, w := range o.Widths {
		if w < 1 || w > MaxWidth || o.Logits[l].Stride < t.levels[l].size {
			return fmt.Errorf("topk: level %d: width %d of 1 … %d, stride %d of %d logits", l, w, MaxWidth, o.Logits[l].Stride,
				t.levels[l].size)
		}
	}
	return nil
}

// Search holds the rounds of a few requests at a time. All its addresses stay the same, so that its rounds
// can be part of a graph. All of its memory on the GPU is one block.
type Search struct {
	memory
	tree   *Tree
	opts   Options
	n      int // requests in use
	stages []*stages
	beams  [][]Beams      // by round, then by request; the last are the results
	steps  []int          // by round, bytes from one request's beams to the next one's
	roots  driver.Ptr     // beams of the first round, to begin with
	most   int            // beams that the kernels have room for
	limits []bool         // by round: some request's TopK limits it
	found  [][]driver.Ptr // what the kernels found out about each beam, by round and request
	rounds [][]search     // by round, then by request: views of staged
	staged *driver.Host   // the rounds as they go to the GPU
	on     []driver.Ptr   // where each round's are there
	torn   bool           // a round was launched in part: scratch memory is not zero
}

// NewSearch takes the memory of a search. All of Options.Requests are in use. The caller MUST Close it.
func (s *Set) NewSearch(t *Tree, o Options) (*Search, error) {
	if err := o.validate(t); err != nil {
		return nil, err
	}
	q := &Search{memory: memory{c: s.c}, tree: t, opts: o, n: o.Requests, most: room(o.Widths),
		limits: make([]bool, len(t.levels))}
	for l := range t.levels {
		st, err := s.load(format{o.Logits[l].BF16, t.levels[l].wide, q.most})
		if err != nil {
			return nil, errors.Join(err, q.free())
		}
		q.stages = append(q.stages, st)
	}
	if err := q.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("topk: memory of a search: %w", err), q.Close())
	}
	return q, nil
}

// Use has Begin and Round search for the first n requests only, 1 … Options.Requests.
func (q *Search) Use(n int) { q.n = n }

// rows returns the beams that a request may have before a round.
func (q *Search) rows(round int) int {
	if round == 0 {
		return 1
	}
	return q.opts.Widths[round-1]
}

// open takes the memory, and fills in what does not change.
func (q *Search) open() error {
	table := len(q.tree.levels) * q.opts.Requests * searchBytes
	var err error
	if q.staged, err = q.c.AllocHost(table + q.opts.Requests*beamLayout(1).bytes); err != nil {
		return err
	}
	size := q.lay(0)
	base := q.alloc(size)
	if q.err != nil {
		return q.err
	}
	if err := q.c.Zero(base, size); err != nil { // scratch memory is zero between rounds
		return err
	}
	q.lay(base)
	for i := range q.opts.Requests {
		at := q.staged.Bytes[table+i*q.steps[0]:][:q.steps[0]]
		clear(at)
		at[0] = 1 // beams: the empty path, of score 0
	}
	return errors.Join(q.c.Upload(q.roots, q.staged.Bytes[table:]), q.c.Upload(q.on[0], q.staged.Bytes[:table]))
}

// fields is where the fields of a request's beams lie.
type fields struct{ scores, nodes, parents, codes, bytes int }

// beamLayout lays out beams with room for so many. The head is first.
func beamLayout(room int) fields {
	var f fields
	f.scores = align(headBytes, 16)
	f.nodes = f.scores + align(8*room, 16)
	f.parents = f.nodes + align(4*room, 16)
	f.codes = f.parents + align(4*room, 16)
	f.bytes = f.codes + align(4*room, 16)
	return f
}

func align(n, to int) int { return (n + to - 1) / to * to }

// lay gives everything its place in a block at base, and returns the size of the block.
func (q *Search) lay(base driver.Ptr) int {
	n, at := q.opts.Requests, 0
	take := func(bytes int) driver.Ptr {
		p := base.At(at)
		at += align(bytes, 256)
		return p
	}
	q.beams, q.steps, q.rounds, q.found, q.on = nil, nil, nil, nil, nil
	rows := 1
	for round := range len(q.tree.levels) + 1 {
		rows = max(rows, q.rows(round))
		f := beamLayout(q.rows(round))
		first, row := take(n*f.bytes), make([]Beams, n)
		for i := range row {
			p := first.At(i * f.bytes)
			row[i] = Beams{p, p.At(f.scores), p.At(f.nodes), p.At(f.parents), p.At(f.codes)}
		}
		q.beams, q.steps = append(q.beams, row), append(q.steps, f.bytes)
	}
	q.roots = take(n * q.steps[0])
	scratch, maxes, bounds := make([]driver.Ptr, n), make([]driver.Ptr, n), make([]driver.Ptr, n)
	for i := range n {
		scratch[i], maxes[i], bounds[i] = take(scratchBytes(q.most)), take(4*groups*rows), take(boundBytes*rows)
	}
	table := take(len(q.tree.levels) * n * searchBytes)
	for l := range q.tree.levels {
		level, logits := &q.tree.levels[l], q.opts.Logits[l]
		size := 4
		if logits.BF16 {
			size = 2
		}
		row, found := offheap.Slice[search](q.staged.Bytes[l*n*searchBytes:], n), make([]driver.Ptr, n)
		for i := range row {
			found[i] = take(rowBytes * q.rows(l))
			row[i] = search{logits: logits.Ptr.At(i * q.rows(l) * logits.Stride * size), starts: level.starts,
				codes: level.codes,
				in:    q.beams[l][i], out: q.beams[l+1][i], scratch: scratch[i], maxes: maxes[i], rows: found[i], bounds: bounds[i],
				stride: int32(logits.Stride), size: int32(level.size), width: int32(q.opts.Widths[l])}
		}
		q.rounds, q.found = append(q.rounds, row), append(q.found, found)
		q.on = append(q.on, table.At(l*n*searchBytes))
	}
	return at
}

// Close frees the memory.
func (q *Search) Close() error { return errors.Join(q.free(), q.c.FreeHost(q.staged)) }

// Beams returns a request's beams before a round; those after the last round are the results.
func (q *Search) Beams(round, request int) Beams { return q.beams[round][request] }

// Results says where the results of all requests lie: those of request i are Bytes bytes from Base + i·Bytes on. In
// these, the head is first, scores begin at Scores and nodes at Nodes.
type Results struct {
	Base                 driver.Ptr
	Bytes, Scores, Nodes int
}

// Results returns them. They stay where they are.
func (q *Search) Results() Results {
	last := len(q.tree.levels)
	f := beamLayout(q.rows(last))
	return Results{Base: q.beams[last][0].Head, Bytes: f.bytes, Scores: f.scores, Nodes: f.nodes}
}

// Limits say what a request may keep at a level. What it may not keep takes part in the softmax all the same.
type Limits struct {
	Alive driver.Ptr // bits of the nodes that may be kept; 0: all
	Dead  driver.Ptr // of these, nodes that may not, ascending
	Deads int        // their number
	Width int        // beams, at most Options.Widths
	TopK  int        // continuations of one beam, the lower nodes of equals; 0: all
}

// Limit sets a request's limits at a level. They hold for rounds behind the next Send, also in graphs. Nothing that was
// sent may still be on its way.
func (q *Search) Limit(level, request int, l Limits) {
	r := &q.rounds[level][request]
	r.alive, r.dead, r.deads, r.width, r.limit = l.Alive, l.Dead, int32(l.Deads), int32(l.Width), 0
	if l.TopK < l.Width {
		r.limit = int32(l.TopK)
	}
	q.limits[level] = false
	for i := range q.rounds[level] {
		q.limits[level] = q.limits[level] || q.rounds[level][i].limit > 0
	}
}

// Send puts the copy of all limits to the GPU into the stream.
func (q *Search) Send(s *driver.Stream) error {
	return s.Copy(q.on[0], q.staged.Ptr, len(q.tree.levels)*q.opts.Requests*searchBytes)
}

// Begin gives every request its first beam, the empty path.
func (q *Search) Begin(s *driver.Stream) error {
	if q.torn {
		for i := range q.rounds[0] {
			if err := s.Fill(q.rounds[0][i].scratch, 0, scratchBytes(q.most)); err != nil {
				return err
			}
		}
		q.torn = false
	}
	return s.Copy(q.beams[0][0].Head, q.roots, q.n*q.steps[0])
}

// Round selects the continuations of all requests' beams at a level. args is overwritten. With overlap
// its first kernel may start before what writes the logits has finished, which it waits for.
func (q *Search) Round(s *driver.Stream, args *driver.Args, level int, overlap bool) error {
	st, rows, n := q.stages[level], q.rows(level), q.n
	args.Reset().Ptr(q.on[level])
	launch := func(f *driver.Function, blocks, threads, shared int, overlap bool) error {
		l := driver.Launch{Grid: [3]int{blocks, n}, Block: [3]int{threads}, Shared: shared, Overlap: overlap &&
			q.c.Info().Arch >= 90}
		return f.Launch(s, l, args)
	}
	if q.limits[level] {
		if err := launch(st.limit, rows, scan, 0, overlap); err != nil {
			return err
		}
		overlap = true
	}
	q.torn = true
	if err := launch(st.scan, rows, scan, 0, overlap); err != nil {
		return err
	}
	if err := launch(st.count, (rows+together-1)/together, scan, 0, true); err != nil {
		return err
	}
	if err := launch(st.pick, rows, scan, 0, true); err != nil {
		return err
	}
	err := launch(st.keep, keepGrid, keep, keyBytes*q.most, true)
	q.torn = err != nil
	return err
}
