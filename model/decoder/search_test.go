package decoder_test

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/beam"
	"grebe/compute"
	"grebe/compute/ref"
	"grebe/model"
	"grebe/model/modeltest"
)

// searches is what a decoder can do on a Searcher.
type searches interface {
	Search(r compute.Searcher, b *compute.Batch, s *compute.Search, heads []compute.Linear, out [][]compute.Leaf) error
}

// TestSearchIsTheHostsLoop compares a search with package beam with the logits of whole sequences, each
// computed by itself.
func TestSearchIsTheHostsLoop(t *testing.T) {
	dir := t.TempDir()
	if err := modeltest.Write(dir, small(modeltest.Qwen3)); err != nil {
		t.Fatal(err)
	}
	dev := ref.Searching(ref.New())
	m, err := model.Open(dir, dev, model.Options{DType: "f32"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	run, err := dev.Open(m.Shape(), 512)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	for _, c := range []struct {
		items    int
		sizes    []int
		width, n int
		exclude  int
		topK     int // 0: as wide as all rounds
		every    int // every so many items are in the filter's set; 0: no filter
	}{
		{items: 60, sizes: []int{8, 8, 8}, width: 6, n: 6},
		{items: 60, sizes: []int{8, 8, 8}, width: 6, n: 9, exclude: 20},
		{items: 12, sizes: []int{9, 7}, width: 30, n: 5},
		{items: 9, sizes: []int{20}, width: 3, n: 3},
		{items: 100, sizes: []int{5, 6, 7, 8}, width: 12, n: 4, exclude: 3},
		{items: 100, sizes: []int{5, 6, 7, 8}, width: 12, n: 9, topK: 2},
		{items: 100, sizes: []int{5, 5, 5}, width: 12, n: 9, every: 3},
		{items: 100, sizes: []int{5, 5, 5}, width: 12, n: 9, every: 2, exclude: 20, topK: 1},
	} {
		s := newSearchCase(t, dev, m, c.items, c.sizes)
		eligible := &beam.Eligible{}
		var set *beam.Set
		if c.every > 0 {
			set = beam.NewSet(s.index)
			for i := 0; i < c.items; i += c.every {
				set.Add(uint32(i))
			}
		}
		eligible.Reset(s.index, set)
		for i := range c.exclude {
			eligible.Exclude(uint32(i))
		}
		opt := beam.Options{Width: c.width, TopK: cmp.Or(c.topK, max(c.width, c.n)), N: c.n}
		prompts := [][]int32{{3, 17, 42, 8, 0}, {1, 2, 30}}
		remote := s.remote(t, run.(compute.Searcher), prompts, eligible, opt)
		for i, p := range prompts {
			want := s.local(t, run, p, eligible, opt)
			if len(want) != len(remote[i]) {
				t.Fatalf("%+v, prompt %d: %d results, the host has %d", c, i, len(remote[i]), len(want))
			}
			for j := range want {
				if want[j].Item != remote[i][j].Item || math.Abs(want[j].Score-remote[i][j].Score) > 1e-4 {
					t.Errorf("%+v, prompt %d: result %d is item %d with %v, want %d with %v", c, i, j,
						remote[i][j].Item, remote[i][j].Score, want[j].Item, want[j].Score)
				}
			}
		}
	}
}

type searchCase struct {
	model  model.Model
	index  *beam.Index
	tree   compute.Tree
	heads  []compute.Linear
	tokens [][]int32
}

// newSearchCase makes a random catalog, some of whose items share their paths.
func newSearchCase(t *testing.T, dev compute.Device, m model.Model, items int, sizes []int) *searchCase {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(items), 5))
	var codes []int32
	for range items {
		for _, n := range sizes {
			codes = append(codes, int32(r.IntN(n)))
		}
	}
	s := &searchCase{model: m}
	var err error
	if s.index, err = beam.Build(sizes, codes); err != nil {
		t.Fatal(err)
	}
	var levels []compute.TreeLevel
	for l, n := range sizes {
		tokens := make([]int32, n)
		for i := range tokens {
			tokens[i] = int32((7*l + i) % m.Vocab())
		}
		head, err := m.Head(tokens)
		if err != nil {
			t.Fatal(err)
		}
		starts, codes := s.index.Tree(l)
		levels = append(levels, compute.TreeLevel{Size: n, Starts: starts, Codes: codes, Tokens: tokens})
		s.heads, s.tokens = append(s.heads, head), append(s.tokens, tokens)
	}
	if s.tree, err = dev.(compute.Trees).Tree(levels, s.index.Leaves()); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *searchCase) remote(t *testing.T, r compute.Searcher, prompts [][]int32, e *beam.Eligible,
	opt beam.Options) [][]beam.Result {
	t.Helper()
	var search beam.Search
	if err := search.Reset(s.index, e, opt); err != nil {
		t.Fatal(err)
	}
	var there beam.Elsewhere
	if !search.Remote(&there) {
		t.Fatal("a plain search cannot run elsewhere")
	}
	shape, b, spec := s.model.Shape(), &compute.Batch{}, &compute.Search{Tree: s.tree, Widths: there.Widths}
	for i, p := range prompts {
		b.Segments = append(b.Segments, compute.Segment{First: len(b.Tokens), Len: len(p),
			Chunks: []compute.Chunk{{Bytes: make([]byte, shape.ChunkBytes(len(p), true)), Tokens: len(p), Transient: true}}})
		for j := range p {
			b.Tokens, b.Positions = append(b.Tokens, p[j]), append(b.Positions, int32(j))
		}
		spec.Prompts = append(spec.Prompts, compute.Prompt{
			Row: int32(len(b.Tokens) - 1), Position: int32(len(p)), Sees: []int32{int32(i)},
			Limits: compute.Limits{TopK: there.TopK, Dead: there.Dead, Alive: there.Alive}})
	}
	found := make([][]compute.Leaf, len(prompts))
	if err := s.model.(searches).Search(r, b, spec, s.heads, found); err != nil {
		t.Fatal(err)
	}
	var all [][]beam.Result
	for _, leaves := range found {
		if err := search.Finish(len(leaves), func(i int) (uint32, float64) {
			return leaves[i].Node, leaves[i].Score
		}); err != nil {
			t.Fatal(err)
		}
		results, _ := search.Results(nil, opt.N)
		for i := range results {
			results[i].Codes = slices.Clone(results[i].Codes)
		}
		all = append(all, results)
	}
	return all
}

// local runs the rounds one by one, and every row as a sequence from its beginning.
func (s *searchCase) local(t *testing.T, r compute.Runner, prompt []int32, e *beam.Eligible,
	opt beam.Options) []beam.Result {
	t.Helper()
	var search beam.Search
	if err := search.Reset(s.index, e, opt); err != nil {
		t.Fatal(err)
	}
	paths := [][]int32{prompt}
	for !search.Done() {
		level := search.Level()
		if level > 0 {
			var next [][]int32
			for i, parent := range search.Parents() {
				next = append(next, append(slices.Clone(paths[parent]), s.tokens[level-1][search.Codes()[i]]))
			}
			paths = next
		}
		var logits []float32
		for _, p := range paths {
			logits = append(logits, s.logits(t, r, p, s.heads[level])...)
		}
		if err := search.Advance(logits, s.index.Size(level)); err != nil {
			t.Fatal(err)
		}
	}
	results, _ := search.Results(nil, opt.N)
	return results
}

func (s *searchCase) logits(t *testing.T, r compute.Runner, tokens []int32, head compute.Linear) []float32 {
	t.Helper()
	n, shape := len(tokens), s.model.Shape()
	b := &compute.Batch{Tokens: tokens, Segments: []compute.Segment{
		{Len: n, Chunks: []compute.Chunk{{Bytes: make([]byte, shape.ChunkBytes(n, true)), Tokens: n, Transient: true}}}}}
	for i := range n {
		b.Positions = append(b.Positions, int32(i))
	}
	last := []int32{int32(n - 1)}
	if err := s.model.Forward(r, b, last); err != nil {
		t.Fatal(err)
	}
	out := make([]float32, head.Out())
	if err := s.model.Project(r, head, last, out); err != nil {
		t.Fatal(err)
	}
	return out
}
