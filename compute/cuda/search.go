package cuda

import (
	"errors"
	"fmt"
	"slices"

	"grebe/compute"
	"grebe/compute/cuda/attend"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/topk"
	"grebe/internal/offheap"
)

// searching is what a runner needs to run searches. The work of all rounds is put into the stream one
// after the other; nothing of it depends on what the GPU finds out, so the host never waits for a result
// before Found.
//
// A round is a batch like any other whose tokens only the GPU knows. Its attention has a scratch with all
// layers of the prompt and, behind it, slots for each round: a row's path lies together in the slots of its
// round, of which follow.cu copies all but the last from the parent's. So a round plans, and replays
// graphs, as if all of its widest beams were there. Rows beyond the true number of beams compute something
// that nobody reads.
type searching struct {
	spec  *compute.Search
	tree  *tree
	level int
	now   *prepared

	segments int // of the prompts, which begin every round's

	att    *beamAttention
	set    *topk.Set
	known  []*prepared // the most recently used last
	follow *driver.Function
	times  timeline
	near   *driver.Event  // the last level's rows are computed: the end is near
	hosts  []*driver.Host // by level, the tables of a round: those of earlier ones may not have been copied yet
	batch  compute.Batch  // of the round
	chunks []compute.Chunk
	first  []int // by level, the first slot of the round
	// unread is where rope.cu writes the keys and values of rounds besides the scratch.
	unread      driver.Ptr
	unreadBytes int
}

// beamAttention keeps all layers of a search's prompt in its scratch.
type beamAttention struct {
	tensor
	round bool // the batch is a round: what it sees is in the scratch
}

func (a *beamAttention) plan(b *compute.Batch, left []int32) error {
	err := a.tensor.plan(b, left)
	a.cached = a.cached && !a.round
	return err
}

// shape is none of tensor's.
func (a *beamAttention) shape() launches {
	l := a.tensor.shape()
	l.kind = kindBeams
	return l
}

// rows returns how many rows a level's logits are of.
func (s *searching) rows(level int) int {
	if level == 0 {
		return len(s.spec.Prompts)
	}
	return len(s.spec.Prompts) * s.spec.Widths[level-1]
}

func (r *runner) Search(spec *compute.Search) error {
	if r.err != nil {
		return r.err
	}
	if err := spec.Validate(r.batch); err != nil {
		r.err = err
		return err
	}
	if r.begun || len(r.ops) > 0 {
		r.fail(errors.New("cuda: a search of a batch of which layers were started or recorded"))
		return r.err
	}
	t, ok := spec.Tree.(*tree)
	if !ok {
		r.err = errors.New("cuda: the search's tree is not on this device")
		return r.err
	}
	s := &r.search
	s.spec, s.tree, s.level, s.segments = spec, t, 0, len(r.batch.Segments)
	most := 0
	for l := range spec.Widths {
		most = max(most, s.rows(l))
	}
	if most > r.max || r.dev.opt.Direct || !attend.Supports(&r.shape) {
		s.spec = nil
		return compute.ErrNoSearch
	}
	return nil
}

func (r *runner) Select(norm compute.Vector, head compute.Linear) {
	gain := r.values("the final norm", norm, r.shape.Hidden)
	w, ok := head.(*linear)
	s := &r.search
	switch {
	case s.spec == nil:
		r.fail(errors.New("cuda: a selection outside of a search"))
	case !ok || w.gated || w.in != r.shape.Hidden || w.out != s.tree.levels[s.level].size:
		r.fail(fmt.Errorf("cuda: the head of level %d does not fit its codes", s.level))
	case s.level == 0 && (!r.kept || len(r.keep) != len(s.spec.Prompts)):
		r.fail(errors.New("cuda: a search without Keep of its prompts' rows"))
	}
	if r.err == nil {
		if err := r.chosenBy(gain, w); err != nil {
			r.err = fmt.Errorf("cuda: level %d of a search: %w", s.level, err)
		}
	}
	if r.err != nil {
		r.giveUp()
	}
}

// chosenBy is choose from outside of the context.
func (r *runner) chosenBy(gain *vector, head *linear) error {
	defer r.dev.c.Leave()
	if err := r.dev.c.Enter(); err != nil {
		return err
	}
	return r.choose(gain, head)
}

// choose puts the batch, its logits and the selection into the stream.
func (r *runner) choose(gain *vector, head *linear) error {
	s := &r.search
	if s.level == 0 {
		s.times.phases = s.times.phases[:0]
		if err := r.mark("begin"); err != nil {
			return err
		}
		if err := r.openSearch(); err != nil {
			if driver.OutOfMemory(err) {
				err = errors.Join(compute.ErrNoSearch, err)
			}
			return err
		}
	}
	usual := r.att
	defer func() { r.att = usual }()
	r.att, s.att.round = s.att, s.level > 0
	p := pass{m: bucket(s.rows(s.level)), rows: r.tables.trueRows(), cores: r.graphs.cores}
	if s.level == 0 {
		p.rows = r.tables.keptRows()
		if err := r.start(); err != nil {
			return err
		}
		if err := s.now.q.Begin(r.stream); err != nil {
			return err
		}
	} else if err := r.startRound(); err != nil {
		return err
	}
	if err := r.mark("layers"); err != nil {
		return err
	}
	if s.level+1 == len(s.spec.Widths) {
		if err := s.near.Record(r.stream); err != nil {
			return err
		}
	}
	if err := r.settle(); err != nil {
		return err
	}
	if head.dt == compute.FP8 {
		return errors.New("heads of searches are not in fp8")
	}
	if err := r.norm(&p, gain, head.dt); err != nil {
		return err
	}
	product := driver.Product{M: p.m, N: head.rows, K: head.cols, In: numberOf(head.dt), Out: driver.NumberF32}
	if err := r.product(product, s.now.logits, r.bufs.normed, head); err != nil {
		return err
	}
	if err := r.mark("logits"); err != nil {
		return err
	}
	if err := s.now.q.Round(r.stream, r.args, s.level, r.dev.overlaps()); err != nil {
		return err
	}
	return r.mark("selection")
}

// settle waits for the GPU where products may be timed next.
func (r *runner) settle() error {
	if s := &r.search; s.now.ran[len(s.spec.Prompts)] {
		return nil
	}
	return r.stream.Sync()
}

func (r *runner) Round() {
	s := &r.search
	if s.spec == nil || s.level+1 >= len(s.spec.Widths) {
		r.fail(errors.New("cuda: a round outside of a search, or after its last level"))
	}
	if r.err == nil && !r.ran {
		r.fail(errors.New("cuda: a round before the selection"))
	}
	if r.err != nil {
		r.giveUp()
		return
	}
	s.level++
	s.lay(&r.shape, r.batch.Segments[:s.segments])
	r.batch, r.ops = &s.batch, r.ops[:0]
	r.rows, r.kept, r.ran = len(s.batch.Tokens), false, false
	r.dropped, r.base = false, false
}

// lay makes the batch of a round: the prompts, the slots of the rounds before, which nobody sees, and a
// segment for each row.
func (s *searching) lay(shape *compute.Shape, prompts []compute.Segment) {
	rows, b := s.rows(s.level), &s.batch
	b.Segments = append(b.Segments[:0], prompts...)
	slots := 0
	for i := range b.Segments {
		g := &b.Segments[i]
		g.First, g.Cached = 0, g.Len
		slots += g.Len
	}
	hole, room := s.first[s.level]-slots, shape.ChunkBytes(1, true)
	s.chunks = slices.Grow(s.chunks[:0], 2*rows+1)[:2*rows+1]
	s.chunks[2*rows] = compute.Chunk{Addr: uint64(s.unread), Tokens: max(hole, 1)}
	b.Segments = append(b.Segments, compute.Segment{Len: hole, Cached: hole, Chunks: s.chunks[2*rows:]})
	b.Tokens, b.Positions = slices.Grow(b.Tokens[:0], rows)[:rows], slices.Grow(b.Positions[:0], rows)[:rows]
	clear(b.Tokens)
	width := s.spec.Widths[s.level-1]
	for i := range rows {
		p := &s.spec.Prompts[i/width]
		// The path so far is in the scratch only. What is new is a chunk by itself, with scales of its own.
		chunks := s.chunks[2*i : 2*i+2]
		chunks[0] = compute.Chunk{Addr: uint64(s.unread), Tokens: s.level - 1, Transient: true}
		chunks[1] = compute.Chunk{Addr: uint64(s.unread.At(i * room)), Tokens: 1, Transient: true}
		if s.level == 1 {
			chunks = chunks[1:]
		}
		b.Segments = append(b.Segments, compute.Segment{
			First: i, Cached: s.level - 1, Len: s.level, Sees: p.Sees, Chunks: chunks})
		b.Positions[i] = p.Position + int32(s.level-1)
	}
}

// startRound puts a round's layers into the stream.
func (r *runner) startRound() error {
	s := &r.search
	for i := range r.ops {
		if t := r.ops[i].table; t != nil && int(s.tree.most) >= t.rows {
			return fmt.Errorf("a code has token %d, outside the table of %d", s.tree.most, t.rows)
		}
	}
	r.ran = true
	host := r.tables.host
	r.tables.host = s.hosts[s.level]
	err := r.tables.fill(r.dev, r.batch, nil, nil, false, false)
	if err == nil {
		r.busy = true
		err = r.tables.upload(r.stream)
	}
	r.tables.host = host
	if err != nil {
		return err
	}
	if err := r.att.plan(r.batch, nil); err != nil {
		return err
	}
	if err := r.followParents(); err != nil {
		return err
	}
	if err := r.settle(); err != nil {
		return err
	}
	r.bufs.second = false
	return r.launch()
}

// followParents gives the rows their tokens and their parents' paths.
func (r *runner) followParents() error {
	s, l := &r.search, r.search.level
	past, before, layers := l-1, 1, 1
	if past > 0 {
		before, layers = s.spec.Widths[l-2], r.shape.Layers
	}
	scratch := s.att.a.Scratch()
	a := r.args.Reset().Ptr(r.tables.tokens()).Ptr(s.now.beams[l]).Ptr(s.tree.levels[l-1].tokens).Ptr(scratch.Base).Int(
		scratch.Slots)
	return s.follow.Launch(r.stream, r.overlapping(driver.Launch{
		Grid: [3]int{len(r.batch.Tokens), layers}, Block: [3]int{256}}),
		a.Int(s.spec.Widths[l-1]).Int(before).Int(past).Int(s.first[past]).Int(s.first[l]))
}

func (r *runner) Found(out [][]compute.Leaf) error {
	s := &r.search
	if s.spec == nil || s.level+1 != len(s.spec.Widths) || !r.ran || len(out) != len(s.spec.Prompts) {
		r.fail(errors.New("cuda: results of a search that is not at its end, or not room for all"))
	}
	s.spec = nil
	if r.err != nil {
		r.giveUp() // earlier levels may still write to the prompts' KV
		return r.err
	}
	found := s.now.q.Results()
	err := r.finish(func(r *runner) error { return r.fetch(&found, len(out)) })
	if err != nil {
		return err
	}
	s.now.ran[len(out)] = true
	if err := s.times.read(); err != nil {
		r.err = err
		return err
	}
	for i := range out {
		b := r.io.Bytes[i*found.Bytes:]
		head := offheap.Slice[int32](b, 2)
		if head[1] != 0 {
			r.err = fmt.Errorf("cuda: a logit of search %d is no number", i)
			return r.err
		}
		scores, nodes := offheap.Slice[float64](b[found.Scores:], int(head[0])),
			offheap.Slice[uint32](b[found.Nodes:], int(head[0]))
		out[i] = out[i][:0]
		for j := range nodes {
			out[i] = append(out[i], compute.Leaf{Node: nodes[j], Score: scores[j]})
		}
	}
	return nil
}

// fetch copies the results to the small outputs. It sleeps until they are near, so that waking up takes no
// time from the search.
func (r *runner) fetch(found *topk.Results, requests int) error {
	if err := r.ioBytes(requests * found.Bytes); err != nil {
		return err
	}
	if err := r.stream.Copy(r.io.Ptr, found.Base, requests*found.Bytes); err != nil {
		return err
	}
	if err := r.mark("results"); err != nil {
		return err
	}
	return r.search.near.Sync()
}

var (
	_ compute.Searcher = (*runner)(nil)
	_ compute.Trees    = (*device)(nil)
)
