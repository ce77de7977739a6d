package computetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
)

// searchCase is a random model, catalog and prompts.
type searchCase struct {
	config  config
	sizes   []int // codes of each level
	paths   int   // about as many are valid
	widths  []int
	prompts [][2]int // tokens of the two segments of each prompt
	dead    int      // nodes of each level that are left out
	twins   bool     // neighbouring codes have equal logits
	flat    bool     // all codes have
	topK    int      // most continuations of a beam; 0: all
	every   int      // every so many items are eligible; 0: all are
	shared  bool     // leaves have one to three items
	narrow  bool     // every other prompt keeps half of the beams
}

func searchCases() []searchCase {
	wide := config{seed: 71, shape: shape(2, 256, 4, 2, 64, 512, compute.BF16), dt: compute.BF16, src: compute.BF16,
		headed: true, sharp: 1}
	long := config{seed: 72, shape: shape(3, 256, 8, 4, 128, 512, compute.BF16), dt: compute.BF16, src: compute.BF16,
		bare: true, sharp: 1}
	// With few other keys to see, the wrong path would show.
	near := config{seed: 73, shape: shape(2, 256, 4, 2, 64, 512, compute.BF16), dt: compute.BF16, src: compute.BF16,
		headed: true, sharp: 2}
	return []searchCase{
		{config: wide, sizes: []int{40}, paths: 30, widths: []int{50}, prompts: [][2]int{{3, 20}}},
		{config: wide, sizes: []int{12, 30}, paths: 200, widths: []int{12, 300}, prompts: [][2]int{{3, 20}, {70, 130}}},
		{config: wide, sizes: []int{48, 48, 48}, paths: 5000, widths: []int{48, 200, 64}, prompts: [][2]int{{5, 300}}},
		{config: long, sizes: []int{48, 48, 48}, paths: 5000, widths: []int{40, 60, 100},
			prompts: [][2]int{{1, 500}, {130, 1}, {4, 5}}, dead: 7},
		{config: near, sizes: []int{30, 30, 30, 30}, paths: 4000, widths: []int{30, 60, 70, 80},
			prompts: [][2]int{{1, 1}, {2, 1}}},
		{config: long, sizes: []int{6, 7, 8, 9, 10}, paths: 3000, widths: []int{6, 42, 256, 300, 400},
			prompts: [][2]int{{60, 3}}, dead: 2},
		{config: of(74, 4, 2, 64, compute.FP8), sizes: []int{30, 30, 30}, paths: 3000, widths: []int{20, 50, 60},
			prompts: [][2]int{{6, 90}, {3, 1}}},
		{config: of(75, 3, 3, 80, compute.BF16), sizes: []int{30, 30, 30}, paths: 3000, widths: []int{20, 50, 60},
			prompts: [][2]int{{6, 90}}},
		{config: of(76, 4, 2, 96, compute.BF16), sizes: []int{30, 30, 30}, paths: 3000, widths: []int{20, 50, 60},
			prompts: [][2]int{{6, 90}}},
		{config: of(77, 4, 2, 96, compute.FP8), sizes: []int{30, 30}, paths: 600, widths: []int{20, 50},
			prompts: [][2]int{{6, 40}}},
		{config: of(78, 4, 2, 64, compute.BF16), sizes: []int{48, 48, 48}, paths: 20000, widths: []int{48, 1024, 1024},
			prompts: [][2]int{{2, 30}}},
		{config: of(79, 4, 2, 64, compute.BF16), sizes: []int{40, 40, 40}, paths: 6000, widths: []int{21, 63, 101},
			prompts: [][2]int{{2, 30}, {9, 9}}, twins: true},
		{config: of(80, 4, 2, 64, compute.BF16), sizes: []int{40, 40}, paths: 900, widths: []int{21, 301},
			prompts: [][2]int{{2, 30}}, flat: true},
		{config: of(83, 4, 2, 64, compute.BF16), sizes: []int{48, 48, 48}, paths: 5000, widths: []int{48, 200, 64},
			prompts: [][2]int{{5, 300}, {2, 9}},
			every:   10, shared: true},
		{config: of(84, 4, 2, 64, compute.BF16), sizes: []int{48, 48, 48}, paths: 5000, widths: []int{48, 200, 64},
			prompts: [][2]int{{5, 30}, {2, 9}},
			every:   3, dead: 5, topK: 4},
		{config: of(85, 4, 2, 64, compute.BF16), sizes: []int{48, 48, 48}, paths: 5000, widths: []int{48, 200, 64},
			prompts: [][2]int{{5, 30}}, topK: 3},
		{config: of(86, 4, 2, 64, compute.BF16), sizes: []int{48, 48, 48}, paths: 5000, widths: []int{48, 100, 64},
			prompts: [][2]int{{5, 30}, {2, 9}, {40, 1}}, narrow: true, topK: 20},
		{config: of(87, 4, 2, 64, compute.BF16), sizes: []int{48, 48, 48}, paths: 60000, widths: []int{48, 1024, 3000},
			prompts: [][2]int{{2, 30}}},
		{config: of(88, 4, 2, 64, compute.BF16), sizes: []int{40, 40}, paths: 900, widths: []int{21, 101},
			prompts: [][2]int{{2, 30}}, flat: true, topK: 5},
	}
}

// of is a model of two layers with heads of a kind.
func of(seed uint64, heads, kvHeads, dim int, kv compute.DType) config {
	return config{seed: seed, shape: shape(2, 240, heads, kvHeads, dim, 480, kv), dt: compute.BF16, src: compute.BF16,
		headed: true, sharp: 1}
}

// Search compares the searches of a device with those of ref.Searching on the same device: the paths are
// the same but for a few whose scores are as good as equal, and so are their scores. Every search runs
// several times, at last with its prompt's first segment cached.
func Search(t *testing.T, d compute.Device) {
	for i, c := range searchCases() {
		t.Run(fmt.Sprint("search ", i), func(t *testing.T) {
			if err := c.on(d); err != nil {
				t.Errorf("%v, levels of %v, widths %v, prompts %v: %v", c.config, c.sizes, c.widths, c.prompts, err)
			}
		})
	}
	t.Run("search groups", func(t *testing.T) {
		if err := searchGroups(d); err != nil {
			t.Error(err)
		}
	})
	t.Run("search NaN", func(t *testing.T) {
		if err := searchNaN(d); err != nil {
			t.Error(err)
		}
	})
}

// searchGroups: groups of any number of prompts, with nodes left out or not, follow each other on one runner. What is
// found for a prompt does not depend on the groups before.
func searchGroups(d compute.Device) error {
	c := searchCase{config: of(82, 4, 2, 64, compute.BF16), sizes: []int{30, 30, 30}, paths: 3000,
		widths: []int{20, 50, 60}, prompts: [][2]int{{3, 9}}}
	slow, _, err := c.open(ref.Searching(d))
	if slow != nil {
		defer slow.close()
	}
	if err != nil {
		return err
	}
	fast, _, err := c.open(d)
	if fast != nil {
		defer fast.close()
	}
	if err != nil {
		return err
	}
	for i, g := range []struct{ prompts, dead int }{{5, 4}, {2, 0}, {5, 0}, {1, 3}, {3, 0}, {9, 2}, {4, 0}, {16, 0},
		{9, 5}, {16, 1}} {
		for _, s := range []*searchRun{slow, fast} {
			s.every, s.topK, s.narrow = i%3*4, i%2*7, i%4 == 3
		}
		want, err := slow.group(g.prompts, g.dead)
		if err != nil {
			return err
		}
		got, err := fast.group(g.prompts, g.dead)
		if err != nil {
			return fmt.Errorf("%d prompts, %d nodes left out: %w", g.prompts, g.dead, err)
		}
		for i := range want {
			if err := sameLeaves(got[i], want[i], len(c.sizes)); err != nil {
				return fmt.Errorf("prompt %d of %d, %d nodes left out: %w", i, g.prompts, g.dead, err)
			}
		}
	}
	return nil
}

// group searches for n prompts of other lengths at once, on the same runner.
func (s *searchRun) group(n, dead int) ([][]compute.Leaf, error) {
	g := *s
	g.prompts, g.dead, g.batch, g.blocks = nil, dead, compute.Batch{}, nil
	for i := range n {
		g.prompts = append(g.prompts, [2]int{1 + i, 2 + 5*i})
	}
	defer func() { s.blocks = append(s.blocks, g.blocks...) }()
	if err := g.lay(g.levels()); err != nil {
		return nil, err
	}
	return g.search(false)
}

// searchNaN: a logit that is no number, at any level, is an error, and the next search is not affected.
func searchNaN(d compute.Device) error {
	c := searchCase{config: of(81, 4, 2, 64, compute.BF16), sizes: []int{20, 20, 20}, paths: 900,
		widths: []int{20, 60, 80}, prompts: [][2]int{{3, 9}}}
	s, want, err := c.open(d)
	if s != nil {
		defer s.close()
	}
	if err != nil {
		return err
	}
	bad := newRandom(1).tensor(compute.F32, 20, c.config.shape.Hidden, 0, 1)
	for i := range 20 { // one weight of each code: whichever a beam has
		copy(bad.Data[4*i*bad.Cols:], appendValue(nil, compute.F32, math.NaN()))
	}
	head, err := d.Linear(c.config.dt, bad)
	if err != nil {
		return err
	}
	for level := range s.heads {
		good := s.heads[level]
		s.heads[level] = head
		if _, err := s.search(false); err == nil {
			return fmt.Errorf("logits of level %d are no numbers, and that is no error", level)
		}
		s.heads[level] = good
		got, err := s.search(false)
		if err != nil {
			return fmt.Errorf("after NaN at level %d: %w", level, err)
		}
		if err := sameLeaves(got[0], want[0], len(c.sizes)); err != nil {
			return fmt.Errorf("after NaN at level %d: %w", level, err)
		}
	}
	return nil
}

func (c searchCase) on(d compute.Device) error {
	s, want, err := c.open(ref.Searching(d))
	if s != nil {
		defer s.close()
	}
	if err != nil {
		return err
	}
	fast, _, err := c.open(d)
	if fast != nil {
		defer fast.close()
	}
	if err != nil {
		return err
	}
	for turn := range 4 {
		got, err := fast.search(turn == 3)
		if err != nil {
			return fmt.Errorf("turn %d: %w", turn, err)
		}
		for i := range want {
			if err := sameLeaves(got[i], want[i], len(c.sizes)); err != nil {
				return fmt.Errorf("turn %d, prompt %d: %w", turn, i, err)
			}
		}
	}
	return nil
}

// sameLeaves compares what bf16 lets two ways of computing yield.
func sameLeaves(got, want []compute.Leaf, levels int) error {
	const (
		off = 0.03 // of a logit, which are about 2: some roundings of operands to bf16
		few = 0.04 // of the paths may be others, beside the cut of one of the levels
	)
	limit := off * float64(levels)
	if len(got) != len(want) {
		return fmt.Errorf("%d leaves, want %d", len(got), len(want))
	}
	scores := map[uint32]float64{}
	for _, l := range want {
		scores[l.Node] = l.Score
	}
	others := 0
	for i, l := range got {
		if i > 0 && got[i-1].Node >= l.Node {
			return fmt.Errorf("leaf %d is node %d, after %d", i, l.Node, got[i-1].Node)
		}
		score, ok := scores[l.Node]
		if !ok {
			others++
		} else if !(math.Abs(score-l.Score) <= limit) {
			return fmt.Errorf("node %d has score %v, want %v", l.Node, l.Score, score)
		}
	}
	if float64(others) > few*float64(len(got)) {
		return fmt.Errorf("%d of %d leaves are others", others, len(got))
	}
	return nil
}

// searchRun is a case on a device.
type searchRun struct {
	searchCase
	d      compute.Device
	runner compute.Searcher
	model  *packed
	tree   compute.Tree
	heads  []compute.Linear
	blocks []compute.Block
	batch  compute.Batch
	spec   compute.Search
}

// open packs the case and runs its search once.
func (c searchCase) open(d compute.Device) (*searchRun, [][]compute.Leaf, error) {
	s := &searchRun{searchCase: c, d: d}
	var err error
	if s.model, err = newModel(c.config).pack(d); err != nil {
		return nil, nil, err
	}
	levels := c.levels()
	r := newRandom(c.config.seed + 1)
	for _, l := range levels {
		weights := r.tensor(compute.BF16, l.Size, c.config.shape.Hidden, 0, 2/math.Sqrt(float64(c.config.shape.Hidden)))
		for row := 2 * weights.Cols; c.twins && row < len(weights.Data); row += 4 * weights.Cols {
			copy(weights.Data[row:][:2*weights.Cols], weights.Data[row-2*weights.Cols:])
		}
		if c.flat {
			clear(weights.Data)
		}
		head, err := d.Linear(c.config.dt, weights)
		if err != nil {
			return nil, nil, err
		}
		s.heads = append(s.heads, head)
	}
	if s.tree, err = d.(compute.Trees).Tree(levels, c.items(levels)); err != nil {
		return nil, nil, err
	}
	run, err := d.Open(c.config.shape, 1024)
	if err != nil {
		return nil, nil, err
	}
	s.runner = run.(compute.Searcher)
	if err := s.lay(levels); err != nil {
		return s, nil, err
	}
	found, err := s.search(false)
	return s, found, err
}

func (s *searchRun) close() {
	_ = s.runner.Close() // a failure showed before
	for _, b := range s.blocks {
		s.d.Memory().Free(b)
	}
}

// levels draws valid paths.
func (c searchCase) levels() []compute.TreeLevel {
	r := rand.New(rand.NewPCG(c.config.seed, 3))
	var levels []compute.TreeLevel
	nodes, share := 1, math.Pow(float64(c.paths), 1/float64(len(c.sizes)))
	for l, size := range c.sizes {
		level := compute.TreeLevel{Size: size, Starts: []uint32{0}}
		for range nodes {
			n := max(1, min(size, int(share)+r.IntN(3)-1))
			codes := r.Perm(size)[:n]
			slices.Sort(codes)
			for _, code := range codes {
				level.Codes = append(level.Codes, uint32(code))
			}
			level.Starts = append(level.Starts, uint32(len(level.Codes)))
		}
		for i := range size {
			level.Tokens = append(level.Tokens, int32((3*i+l)%vocabulary))
		}
		levels, nodes = append(levels, level), len(level.Codes)
	}
	return levels
}

// items returns the first item of each leaf, nil if each has one.
func (c searchCase) items(levels []compute.TreeLevel) []uint32 {
	if !c.shared {
		return nil
	}
	first := []uint32{0}
	for i := range levels[len(levels)-1].Codes {
		first = append(first, first[i]+1+uint32(i%3))
	}
	return first
}

// lay makes the batch and what is searched for.
func (s *searchRun) lay(levels []compute.TreeLevel) error {
	r := rand.New(rand.NewPCG(s.config.seed, 4))
	s.spec = compute.Search{Tree: s.tree, Widths: s.widths}
	for i, lens := range s.prompts {
		var sees []int32
		for j, n := range lens {
			b, err := s.d.Memory().Alloc(s.config.shape.ChunkBytes(n, false))
			if err != nil {
				return err
			}
			s.blocks = append(s.blocks, b)
			s.batch.Segments = append(s.batch.Segments, compute.Segment{
				First: len(s.batch.Tokens), Len: n, Sees: slices.Clone(sees),
				Chunks: []compute.Chunk{b.Chunk(n, j == 1)}})
			for k := range n {
				s.batch.Tokens = append(s.batch.Tokens, int32(r.IntN(vocabulary)))
				s.batch.Positions = append(s.batch.Positions, int32(j*lens[0]+k))
			}
			sees = append(sees, int32(2*i+j))
		}
		p := compute.Prompt{Row: int32(len(s.batch.Tokens) - 1), Position: int32(lens[0] + lens[1]), Sees: sees}
		if s.dead > 0 {
			for _, l := range levels {
				dead := r.Perm(len(l.Codes))[:min(s.dead, len(l.Codes)-1)]
				slices.Sort(dead)
				p.Dead = append(p.Dead, make([]uint32, len(dead)))
				for k, node := range dead {
					p.Dead[len(p.Dead)-1][k] = uint32(node)
				}
			}
		}
		s.limit(i, &p.Limits)
		s.spec.Prompts = append(s.spec.Prompts, p)
	}
	return nil
}

// limit gives a prompt the limits of the case, beside its dead nodes.
func (s *searchRun) limit(prompt int, l *compute.Limits) {
	l.TopK = s.topK
	if s.every > 0 {
		l.Alive = make([]uint64, (s.tree.Items()+63)/64)
		for i := prompt; i < s.tree.Items(); i += s.every {
			l.Alive[i/64] |= 1 << (i % 64)
		}
	}
	if s.narrow && prompt%2 == 1 {
		for _, w := range s.widths {
			l.Widths = append(l.Widths, (w+1)/2)
		}
	}
}

// cache makes what a search before has computed of the prompts' first segments cached.
func (s *searchRun) cache() {
	was := s.batch
	s.batch = compute.Batch{}
	for i, g := range was.Segments {
		if i%2 == 0 {
			g.Cached = g.Len
		}
		from := g.First
		g.First = len(s.batch.Tokens)
		s.batch.Tokens = append(s.batch.Tokens, was.Tokens[from:][:g.Rows()]...)
		s.batch.Positions = append(s.batch.Positions, was.Positions[from:][:g.Rows()]...)
		s.batch.Segments = append(s.batch.Segments, g)
		if i%2 == 1 {
			s.spec.Prompts[i/2].Row = int32(len(s.batch.Tokens) - 1)
		}
	}
}

// search runs the search as a decoder does.
func (s *searchRun) search(cached bool) ([][]compute.Leaf, error) {
	if cached {
		s.cache()
	}
	r := s.runner
	if err := r.Begin(&s.batch); err != nil {
		return nil, err
	}
	if err := r.Search(&s.spec); err != nil {
		return nil, err
	}
	var keep []int32
	for i := range s.spec.Prompts {
		keep = append(keep, s.spec.Prompts[i].Row)
	}
	for l, head := range s.heads {
		if l > 0 {
			r.Round()
		}
		r.Embed(s.model.embed)
		for i := range s.model.attention {
			r.QKV(i, &s.model.attention[i])
			r.Attend(i)
			if l == 0 && i == len(s.model.attention)-1 {
				r.Keep(keep)
			}
			r.Output(&s.model.attention[i])
			r.FFN(&s.model.ffn[i])
		}
		r.Select(s.model.norm, head)
	}
	out := make([][]compute.Leaf, len(s.spec.Prompts))
	return out, r.Found(out)
}
