package ref

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"grebe/compute"
)

// Searching returns d with runners that are Searchers and trees for them: it defines what a search yields.
// The host runs the rounds, one batch after the other, and chooses by sorting all continuations.
func Searching(d compute.Device) compute.Device { return &searching{d} }

type searching struct{ compute.Device }

type tree struct {
	levels []compute.TreeLevel
	items  []uint32 // one more than there are leaves
}

func (t *tree) Depth() int { return len(t.levels) }

func (t *tree) Items() int { return int(t.items[len(t.items)-1]) }

// alive reports whether one of the items whose bits are set lies below a node.
func (t *tree) alive(level int, node uint32, bits []uint64) bool {
	from, to := node, node+1
	for _, l := range t.levels[level+1:] {
		from, to = l.Starts[from], l.Starts[to]
	}
	for i := t.items[from]; i < t.items[to]; i++ {
		if bits[i/64]>>(i%64)&1 != 0 {
			return true
		}
	}
	return false
}

func (d *searching) Tree(levels []compute.TreeLevel, items []uint32) (compute.Tree, error) {
	if err := compute.ValidateItems(levels, items); err != nil {
		return nil, err
	}
	t := &tree{items: slices.Clone(items)}
	for _, l := range levels {
		if err := l.Validate(); err != nil {
			return nil, err
		}
		l.Starts, l.Codes, l.Tokens = slices.Clone(l.Starts), slices.Clone(l.Codes), slices.Clone(l.Tokens)
		t.levels = append(t.levels, l)
	}
	if items == nil {
		for i := range len(levels[len(levels)-1].Codes) + 1 {
			t.items = append(t.items, uint32(i))
		}
	}
	return t, nil
}

func (d *searching) Open(s compute.Shape, maxRows int) (compute.Runner, error) {
	r, err := d.Device.Open(s, maxRows)
	if err != nil {
		return nil, err
	}
	return &searcher{Runner: r, shape: s, memory: d.Memory()}, nil
}

// searcher runs a search's rounds on a runner.
type searcher struct {
	compute.Runner
	shape  compute.Shape
	memory compute.Memory
	batch  *compute.Batch

	search *compute.Search
	err    error
	own    compute.Batch   // the prompt, then each round
	blocks []compute.Block // of KV, freed in the end
	level  int
	beams  [][]path // by prompt
}

// path is a beam: where it ends, and its row and KV.
type path struct {
	node   uint32
	code   uint32
	score  float64
	row    int32
	parent int // of the prompt's beams before
	kv     compute.Block
}

func (r *searcher) Begin(b *compute.Batch) error {
	r.batch, r.search = b, nil
	r.free()
	return r.Runner.Begin(b)
}

func (r *searcher) Close() error {
	r.free()
	return r.Runner.Close()
}

func (r *searcher) free() {
	for _, b := range r.blocks {
		r.memory.Free(b)
	}
	r.blocks = r.blocks[:0]
}

func (r *searcher) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// room takes memory for the KV of some tokens in all layers.
func (r *searcher) room(tokens int) (compute.Block, error) {
	b, err := r.memory.Alloc(r.shape.ChunkBytes(tokens, false))
	if err == nil {
		r.blocks = append(r.blocks, b)
	}
	return b, err
}

func (r *searcher) Search(s *compute.Search) error {
	if r.batch == nil {
		return errors.New("ref: no batch was begun")
	}
	if err := s.Validate(r.batch); err != nil {
		return err
	}
	if _, ok := s.Tree.(*tree); !ok {
		return errors.New("ref: the search's tree is another device's")
	}
	r.search, r.err, r.level = s, nil, 0
	r.own = compute.Batch{Tokens: r.batch.Tokens, Positions: r.batch.Positions, Segments: slices.Clone(r.batch.Segments)}
	for i := range r.own.Segments {
		g := &r.own.Segments[i]
		g.Chunks = slices.Clone(g.Chunks)
		for c := range g.Chunks {
			if !g.Chunks[c].Transient {
				continue
			}
			b, err := r.room(g.Chunks[c].Tokens)
			if err != nil {
				return err
			}
			g.Chunks[c] = b.Chunk(g.Chunks[c].Tokens, false)
		}
	}
	r.beams = nil
	for _, p := range s.Prompts {
		r.beams = append(r.beams, []path{{row: p.Row}})
	}
	return r.Runner.Begin(&r.own)
}

func (r *searcher) Select(norm compute.Vector, head compute.Linear) {
	if r.search == nil {
		r.fail(errors.New("ref: no search was begun"))
	}
	if r.err != nil {
		return
	}
	t := r.search.Tree.(*tree)
	level := &t.levels[r.level]
	if head.Out() != level.Size {
		r.fail(fmt.Errorf("ref: a head of %d logits for %d codes", head.Out(), level.Size))
		return
	}
	var rows []int32
	for _, beams := range r.beams {
		for _, b := range beams {
			rows = append(rows, b.row)
		}
	}
	logits := make([]float32, len(rows)*level.Size)
	if err := r.Project(norm, head, rows, logits); err != nil {
		r.fail(err)
		return
	}
	for i := range r.beams {
		n := len(r.beams[i]) * level.Size
		r.beams[i] = r.choose(t, &r.search.Prompts[i].Limits, r.beams[i], logits[:n])
		logits = logits[n:]
	}
}

// choose returns the best continuations of a prompt's beams, in the order of their nodes.
func (r *searcher) choose(t *tree, lim *compute.Limits, beams []path, logits []float32) []path {
	var all []path
	level := &t.levels[r.level]
	for i, b := range beams {
		row := logits[i*level.Size:][:level.Size]
		from, to := level.Starts[b.node], level.Starts[b.node+1]
		most, sum := math.Inf(-1), 0.0
		for _, code := range level.Codes[from:to] {
			most = max(most, float64(row[code]))
		}
		if math.IsNaN(most) || math.IsInf(most, 1) {
			r.fail(fmt.Errorf("ref: a logit of level %d is %v", r.level, most))
			return nil
		}
		for _, code := range level.Codes[from:to] {
			sum += math.Exp(float64(row[code]) - most)
		}
		first := len(all)
		for node := from; node < to; node++ {
			code := level.Codes[node]
			if math.IsInf(float64(row[code]), -1) || lim.Dead != nil && slices.Contains(lim.Dead[r.level], node) ||
				lim.Alive != nil && !t.alive(r.level, node, lim.Alive) {
				continue
			}
			score := b.score + (float64(row[code]) - (most + math.Log(sum)))
			all = append(all, path{node: node, code: code, score: score, parent: i, kv: b.kv})
		}
		if own := all[first:]; lim.TopK > 0 && len(own) > lim.TopK {
			slices.SortFunc(own, bestFirst)
			all = all[:first+lim.TopK]
		}
	}
	slices.SortFunc(all, bestFirst)
	all = all[:min(len(all), lim.Width(r.search, r.level))]
	slices.SortFunc(all, func(a, b path) int { return cmp.Compare(a.node, b.node) })
	return all
}

func bestFirst(a, b path) int {
	return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.node, b.node))
}

func (r *searcher) Round() {
	if r.err != nil {
		return
	}
	if r.search == nil || r.level+1 >= r.search.Tree.Depth() {
		r.fail(errors.New("ref: a round after the last level"))
		return
	}
	r.level++
	if err := r.lay(); err != nil {
		r.fail(err)
		return
	}
	if err := r.Runner.Begin(&r.own); err != nil {
		r.fail(err)
	}
}

// lay makes the batch of the next round: the prompt, which is cached now, and a segment for each beam.
func (r *searcher) lay() error {
	own := compute.Batch{Segments: slices.Clone(r.own.Segments[:len(r.batch.Segments)])}
	for i := range own.Segments {
		g := &own.Segments[i]
		g.First, g.Cached = 0, g.Len
	}
	tokens := r.search.Tree.(*tree).levels[r.level-1].Tokens
	room := r.search.Tree.Depth() - 1
	for i := range r.beams {
		p := &r.search.Prompts[i]
		for j := range r.beams[i] {
			b := &r.beams[i][j]
			to, err := r.room(room)
			if err != nil {
				return err
			}
			if r.level > 1 {
				if err := r.memory.Copy(compute.MoveAll(to, b.kv)); err != nil {
					return err
				}
			}
			b.kv, b.row = to, int32(len(own.Tokens))
			own.Segments = append(own.Segments, compute.Segment{First: len(own.Tokens), Cached: r.level - 1, Len: r.level,
				Sees: p.Sees, Chunks: []compute.Chunk{to.Chunk(room, false)}})
			own.Tokens = append(own.Tokens, tokens[b.code])
			own.Positions = append(own.Positions, p.Position+int32(r.level-1))
		}
	}
	r.own = own
	return nil
}

func (r *searcher) Found(out [][]compute.Leaf) error {
	if r.search == nil || r.level+1 != r.search.Tree.Depth() || len(out) != len(r.search.Prompts) {
		r.fail(errors.New("ref: results of a search that is not at its end, or not room for all"))
	}
	r.free()
	if r.err != nil {
		return r.err
	}
	for i, beams := range r.beams {
		out[i] = out[i][:0]
		for _, b := range beams {
			out[i] = append(out[i], compute.Leaf{Node: b.node, Score: b.score})
		}
	}
	r.search = nil
	return nil
}
