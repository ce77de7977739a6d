package beam

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// oracle is constrained beam search written the obvious way, on maps of paths.
type oracle struct {
	c        catalog
	eligible map[int]bool
	logits   func(prefix []int32, code int32) float32
	opts     Options
}

type oracleBeam struct {
	path   []int32
	score  float64
	parent int
}

// continuations are the codes that follow a prefix in the catalog, and whether an eligible item is below.
func (o *oracle) continuations(prefix []int32) (codes []int32, alive map[int32]bool) {
	alive = map[int32]bool{}
	for i := range o.c.items() {
		if p := o.c.path(i); slices.Equal(p[:len(prefix)], prefix) {
			code := p[len(prefix)]
			alive[code] = alive[code] || o.eligible[i]
		}
	}
	for code := range alive {
		codes = append(codes, code)
	}
	slices.Sort(codes)
	return codes, alive
}

// extend returns the eligible continuations of a beam, best first.
func (o *oracle) extend(b oracleBeam, row int) []oracleBeam {
	codes, alive := o.continuations(b.path)
	sum := 0.0
	for _, c := range codes {
		sum += math.Exp(float64(o.logits(b.path, c)))
	}
	var out []oracleBeam
	for _, c := range codes {
		if alive[c] {
			p := float64(o.logits(b.path, c)) - math.Log(sum)
			out = append(out, oracleBeam{append(slices.Clone(b.path), c), b.score + p, row})
		}
	}
	slices.SortStableFunc(out, func(a, b oracleBeam) int { return cmp.Compare(b.score, a.score) })
	return out
}

func (o *oracle) exact() bool {
	leaves := map[string]bool{}
	for i := range o.c.items() {
		if o.eligible[i] {
			leaves[fmt.Sprint(o.c.path(i))] = true
		}
	}
	return len(leaves) <= o.opts.Width
}

func (o *oracle) search() []oracleBeam {
	exact := o.exact()
	beams := []oracleBeam{{}}
	for l := range o.c.sizes {
		var all []oracleBeam
		for row, b := range beams {
			next := o.extend(b, row)
			if o.opts.TopK > 0 && !exact {
				next = next[:min(len(next), o.opts.TopK)]
			} else if !exact {
				next = next[:min(len(next), o.opts.Width)]
			}
			all = append(all, next...)
		}
		slices.SortStableFunc(all, func(a, b oracleBeam) int { return cmp.Compare(b.score, a.score) })
		width := o.opts.Width
		if l < len(o.opts.Widths) {
			width = o.opts.Widths[l]
		}
		if l == len(o.c.sizes)-1 {
			width = max(width, o.opts.N)
		}
		if !exact {
			all = all[:min(len(all), width)]
		}
		beams = all
		if l < len(o.c.sizes)-1 { // by parent row, then code
			slices.SortFunc(beams, func(a, b oracleBeam) int { return slices.Compare(a.path, b.path) })
		}
	}
	return beams
}

func (o *oracle) results() []Result {
	var out []Result
	for _, b := range o.search() {
		for i := range o.c.items() {
			if o.eligible[i] && slices.Equal(o.c.path(i), b.path) {
				out = append(out, Result{Item: uint32(i), Codes: b.path, Score: b.score})
			}
		}
	}
	return out[:min(len(out), o.opts.N)]
}

// hashed is a model whose logits are a hash of the path.
func hashed(seed uint64) func([]int32, int32) float32 {
	return func(prefix []int32, code int32) float32 {
		h := fnv.New64a()
		fmt.Fprint(h, seed, prefix, code)
		return float32(rng(h.Sum64()).NormFloat64() * 3)
	}
}

// drive runs a search as an engine would, keeping the paths of the rows by Permute.
func drive(t *testing.T, s *Search, ix *Index, model func([]int32, int32) float32) {
	t.Helper()
	paths := [][]int32{nil}
	for !s.Done() {
		l := s.Level()
		if l > 0 {
			paths = slices.Grow(paths, s.Rows())[:max(len(paths), s.Rows())]
			if err := Permute(s.Parents(), func(dst, src int) { paths[dst] = paths[src] }); err != nil {
				t.Fatal(err)
			}
			paths = paths[:s.Rows()]
			for i, code := range s.Codes() {
				paths[i] = append(slices.Clone(paths[i]), code)
			}
		}
		stride := ix.Size(l) + 3
		logits := make([]float32, s.Rows()*stride)
		for i := range logits {
			logits[i] = float32(math.NaN()) // what is not asked for must not be read
		}
		for row, path := range paths {
			for _, code := range continuationsOf(t, ix, path) {
				logits[row*stride+int(code)] = model(path, code)
			}
		}
		if err := s.Advance(logits, stride); err != nil {
			t.Fatal(err)
		}
	}
}

func continuationsOf(t *testing.T, ix *Index, path []int32) (out []int32) {
	t.Helper()
	node := uint32(0)
	for l, code := range path {
		codes, first := ix.Children(l, node)
		i, ok := codes.find(code)
		if !ok {
			t.Fatalf("row %v is no prefix of a path", path)
		}
		node = first + uint32(i)
	}
	codes, _ := ix.Children(len(path), node)
	for i := range codes.Len() {
		out = append(out, codes.At(i))
	}
	return out
}

// request draws what one request asks for.
func request(r *rand.Rand, c catalog, ix *Index) (Options, *Eligible, map[int]bool) {
	o := Options{Width: 1 + r.IntN(1+r.IntN(60)), N: 1 + r.IntN(1+r.IntN(80))}
	if r.IntN(3) == 0 {
		o.TopK = 1 + r.IntN(2*o.Width)
	}
	for r.IntN(4) == 0 && len(o.Widths) < len(c.sizes) {
		o.Widths = append(o.Widths, 1+r.IntN(o.Width))
	}
	var set *Set
	eligible := map[int]bool{}
	share := [...]float64{1, 1, 0.5, 0.1, 0.01}[r.IntN(5)]
	if share < 1 {
		set = NewSet(ix)
	}
	for i := range c.items() {
		if r.Float64() < share {
			eligible[i] = true
			if set != nil {
				set.Add(uint32(i))
			}
		}
	}
	e := &Eligible{}
	e.Reset(ix, set)
	for range r.IntN(2) * r.IntN(1+c.items()) {
		i := r.IntN(c.items())
		e.Exclude(uint32(i))
		eligible[i] = false
	}
	return o, e, eligible
}

func sameResults(got, want []Result) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d results, want %d", len(got), len(want))
	}
	for i, g := range got {
		w := want[i]
		if g.Item != w.Item || !slices.Equal(g.Codes, w.Codes) || !(math.Abs(g.Score-w.Score) <= 1e-5) {
			return fmt.Errorf("result %d is %v, want %v", i, g, w)
		}
	}
	return nil
}

func TestSearchIsThePlainBeamSearch(t *testing.T) {
	var s Search // one for all requests, as an engine keeps it
	exact, cut, empty := 0, 0, 0
	for seed := range uint64(1500) {
		r := rng(seed)
		c := randomCatalog(r, 1+int(seed)%5, 1+r.IntN(1+r.IntN(500)), 1+r.IntN(20), seed%100 == 4)
		if seed%10 == 0 { // many continuations of a beam, few of them eligible
			c = randomCatalog(r, 1+r.IntN(3), 2000, 500, false)
		}
		ix := c.build(t)
		opts, e, eligible := request(r, c, ix)
		o := &oracle{c, eligible, hashed(seed), opts}
		if err := s.Reset(ix, e, opts); err != nil {
			t.Fatal(err)
		}
		if s.Exact() != o.exact() {
			t.Fatalf("seed %d: exact = %v, want %v", seed, s.Exact(), o.exact())
		}
		drive(t, &s, ix, o.logits)
		got, short := s.Results(nil, opts.N)
		want := o.results()
		if err := sameResults(got, want); err != nil || short != (len(want) < opts.N) {
			t.Fatalf("seed %d, %+v, %d items, %d levels: short %v, %v\ngot  %v\nwant %v", seed, opts, c.items(), len(c.sizes),
				short, err, got, want)
		}
		switch {
		case len(want) == 0:
			empty++
		case s.Exact():
			exact++
		default:
			cut++
		}
	}
	if min(exact, cut) < 300 || empty < 20 {
		t.Errorf("%d exact, %d cut, %d empty searches: the draw tests too little of one", exact, cut, empty)
	}
}

// With TopK left at Width, a filtered search finds min(Width, eligible) paths: a beam is kept only if
// something eligible lies below it.
func TestFilteredSearchIsNeverShortOfWhatExists(t *testing.T) {
	for seed := range uint64(300) {
		r := rng(seed)
		c := randomCatalog(r, 1+int(seed)%5, 1+r.IntN(300), 8, false)
		ix := c.build(t)
		opts, e, eligible := request(r, c, ix)
		opts.TopK, opts.Widths, opts.N = 0, nil, opts.Width
		s, err := New(ix, e, opts)
		if err != nil {
			t.Fatal(err)
		}
		drive(t, s, ix, hashed(seed))
		got, short := s.Results(nil, opts.N)
		exist := 0
		for _, ok := range eligible {
			if ok {
				exist++
			}
		}
		if len(got) != min(exist, opts.N) || short != (exist < opts.N) {
			t.Fatalf("seed %d: %d results, short %v; %d eligible, %d wanted", seed, len(got), short, exist, opts.N)
		}
		seen := map[uint32]bool{}
		for _, g := range got {
			if seen[g.Item] || !eligible[int(g.Item)] || !slices.Equal(g.Codes, c.path(int(g.Item))) {
				t.Fatalf("seed %d: %v is twice there, not eligible or not real", seed, g)
			}
			seen[g.Item] = true
		}
	}
}

// The order in which items are given changes their numbers and the order of items of one path only.
func TestOrderOfItemsDoesNotMatter(t *testing.T) {
	for seed := range uint64(100) {
		r := rng(seed)
		c := randomCatalog(r, 1+int(seed)%4, 1+r.IntN(200), 6, false)
		perm := r.Perm(c.items())
		shuffled := catalog{sizes: c.sizes}
		for _, i := range perm {
			shuffled.codes = append(shuffled.codes, c.path(i)...)
		}
		opts := Options{Width: 1 + r.IntN(40), N: c.items()}
		find := func(c catalog) []Result {
			ix := c.build(t)
			s, err := New(ix, nil, opts)
			if err != nil {
				t.Fatal(err)
			}
			drive(t, s, ix, hashed(seed))
			out, _ := s.Results(nil, opts.N)
			return out
		}
		want, got := find(c), find(shuffled)
		for i := range got {
			got[i].Item = uint32(perm[got[i].Item])
		}
		slices.SortStableFunc(got, func(a, b Result) int { // undo the catalog order inside a path
			return cmp.Or(cmp.Compare(b.Score, a.Score), slices.Compare(a.Codes, b.Codes), cmp.Compare(a.Item, b.Item))
		})
		if err := sameResults(got, want); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// Every path is equally likely: ties go to the lower parent row, then the lower code.
func TestTiesOnACompleteTree(t *testing.T) {
	c := catalog{sizes: []int{3, 3, 3}}
	for i := range int32(27) {
		c.codes = append(c.codes, i/9, i/3%3, i%3)
	}
	ix := c.build(t)
	for width := 1; width <= 30; width++ {
		s, err := New(ix, nil, Options{Width: width, N: width})
		if err != nil {
			t.Fatal(err)
		}
		drive(t, s, ix, func([]int32, int32) float32 { return 2 })
		got, _ := s.Results(nil, width)
		for i, g := range got {
			if int(g.Item) != i {
				t.Fatalf("width %d: result %d is item %d", width, i, g.Item)
			}
		}
		if len(got) != min(width, 27) {
			t.Fatalf("width %d: %d results", width, len(got))
		}
	}
}

// A beam with one path below asks for no logits; if all are such, the search ends there.
func TestSettledBeamsNeedNoLogits(t *testing.T) {
	c := catalog{sizes: []int{4, 4, 4}, codes: []int32{0, 1, 2, 1, 3, 3, 2, 0, 0, 2, 0, 1}}
	ix := c.build(t)
	s, err := New(ix, nil, Options{Width: 8})
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]float32, 64)
	for round, want := range []int{1, 1, 1} {
		if s.Done() || s.Rows() != want || s.Level() != round {
			t.Fatalf("round %d at level %d has %d rows, want %d", round, s.Level(), s.Rows(), want)
		}
		if err := s.Advance(zeros, 4); err != nil {
			t.Fatal(err)
		}
	}
	if got, short := s.Results(nil, 4); !s.Done() || len(got) != 4 || short ||
		math.Abs(got[3].Score-math.Log(1.0/6)) > 1e-6 {
		t.Errorf("done %v, %v, short %v", s.Done(), got, short)
	}
	e := &Eligible{}
	e.Reset(ix, nil)
	e.Exclude(2)
	e.Exclude(3)
	if err := s.Reset(ix, e, Options{Width: 8}); err != nil {
		t.Fatal(err)
	}
	if err := s.Advance(zeros, 4); err != nil || !s.Done() {
		t.Errorf("the beams left are settled, and the search is not done: %v", err)
	}
	if got, short := s.Results(nil, 4); len(got) != 2 || !short || math.Abs(got[0].Score-math.Log(1.0/3)) > 1e-6 {
		t.Errorf("%v, short %v: exclusions must not re-normalise", got, short)
	}
}

func TestSearchOfNothing(t *testing.T) {
	empty := catalog{sizes: []int{3, 3}}.build(t)
	one := catalog{sizes: []int{3, 3}, codes: []int32{1, 2}}.build(t)
	e := &Eligible{}
	e.Reset(one, NewSet(one))
	for name, test := range map[string]struct {
		ix   *Index
		e    *Eligible
		want int
	}{"empty catalog": {empty, nil, 0}, "nothing eligible": {one, e, 0}, "one item": {one, nil, 1}} {
		s, err := New(test.ix, test.e, Options{Width: 4})
		if err != nil {
			t.Fatal(err)
		}
		if got, short := s.Results(nil, 2); !s.Done() || len(got) != test.want || !short {
			t.Errorf("%s: done %v, %v, short %v", name, s.Done(), got, short)
		}
		if err := s.Advance(nil, 3); err == nil {
			t.Errorf("%s: advanced beyond the end", name)
		}
	}
}

func TestSearchRefuses(t *testing.T) {
	c := catalog{sizes: []int{3, 3}, codes: []int32{0, 0, 0, 1, 1, 1, 1, 2}}
	ix, other := c.build(t), c.build(t)
	e := &Eligible{}
	e.Reset(other, nil)
	for name, test := range map[string]struct {
		e *Eligible
		o Options
	}{
		"no width":          {nil, Options{}},
		"negative top_k":    {nil, Options{Width: 1, TopK: -1}},
		"a round too wide":  {nil, Options{Width: 2, Widths: []int{3}}},
		"an empty round":    {nil, Options{Width: 2, Widths: []int{0}}},
		"another catalog's": {e, Options{Width: 2}},
	} {
		if _, err := New(ix, test.e, test.o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	s, err := New(ix, nil, Options{Width: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct {
		logits []float32
		stride int
		want   string
	}{
		{[]float32{1, 2}, 3, "want 1 rows of 3"},
		{[]float32{1, 2, 3}, 2, "want 1 rows of 3"},
		{[]float32{1, float32(math.NaN()), 3}, 3, "the logit of code 1 is NaN"},
	} {
		if err := s.Advance(bad.logits, bad.stride); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%v: %v, want %q", bad.logits, err, bad.want)
		}
	}
	if err := s.Advance([]float32{1, 2, 3}, 3); err != nil {
		t.Fatal(err)
	}
	if err := s.Advance(make([]float32, 8), 5); err != nil || s.Rows() != 0 {
		t.Errorf("two rows of three, five apart: %v", err)
	}
	if err := s.Reset(ix, nil, Options{Width: 2}); err != nil {
		t.Fatal(err)
	}
	if err := s.Advance([]float32{1, 2, 3}, 3); err != nil {
		t.Fatal(err)
	}
	if err := s.Advance(make([]float32, 7), 5); err == nil || !strings.Contains(err.Error(), "want 2 rows of 3") {
		t.Errorf("a logit less than two rows have: %v", err)
	}
	if err := s.Reset(ix, nil, Options{Width: 2}); err != nil {
		t.Fatal(err)
	}
	if err := s.Advance([]float32{1, 2}, 3); err == nil {
		t.Error("two logits of three were taken")
	}
	drive(t, s, ix, hashed(1)) // an error leaves the search where it was
	if got, short := s.Results(nil, 2); len(got) != 2 || short {
		t.Errorf("after errors: %v, short %v", got, short)
	}
}

func TestRoundsAllocateNothing(t *testing.T) {
	r := rng(4)
	c := catalog{sizes: []int{200, 300, 300}}
	for range 20000 {
		c.codes = append(c.codes, int32(r.IntN(200)), int32(r.IntN(300)), int32(r.IntN(300)))
	}
	ix := c.build(t)
	set := NewSet(ix)
	for i := range uint32(5000) {
		set.Add(i)
	}
	logits := make([]float32, 128*300)
	for i := range logits {
		logits[i] = float32(r.NormFloat64())
	}
	results := make([]Result, 0, 128)
	e := &Eligible{}
	for name, opts := range map[string]Options{"plain": {Width: 128, N: 50}, "top_k": {Width: 128, TopK: 9, N: 50}} {
		for _, set := range []*Set{nil, set} {
			s, err := New(ix, nil, opts)
			if err != nil {
				t.Fatal(err)
			}
			request := func() {
				e.Reset(ix, set)
				for i := range uint32(100) {
					e.Exclude(i * 7)
				}
				if err := s.Reset(ix, e, opts); err != nil {
					t.Fatal(err)
				}
				for !s.Done() {
					if err := s.Advance(logits, 300); err != nil {
						t.Fatal(err)
					}
				}
				results, _ = s.Results(results[:0], opts.N)
			}
			if n := testing.AllocsPerRun(20, request); n != 0 {
				t.Errorf("%s: a request allocates %v times", name, n)
			}
			if len(results) != 50 {
				t.Errorf("%s: %d results", name, len(results))
			}
		}
	}
}
