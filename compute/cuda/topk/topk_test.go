package topk

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"grebe/beam"
	"grebe/compute/cuda/driver"
)

var negInf = float32(math.Inf(-1))

type machine struct {
	tb     testing.TB
	c      *driver.Context
	stream *driver.Stream
	args   *driver.Args
	set    *Set
	memory memory
}

func gpu(tb testing.TB) *machine {
	tb.Helper()
	c, err := driver.New(0)
	if err != nil {
		tb.Skipf("no GPU: %v", err)
	}
	m := &machine{tb: tb, c: c, set: New(c), memory: memory{c: c}}
	m.must(c.Enter())
	m.stream, err = c.NewStream()
	m.must(err)
	m.args, err = driver.NewArgs()
	m.must(err)
	tb.Cleanup(func() {
		m.must(m.memory.free())
		m.must(m.set.Close())
		c.Leave()
		_ = c.Close()
	})
	return m
}

// in returns the machine for a subtest, which is a goroutine of its own.
func (m *machine) in(t *testing.T) *machine {
	t.Helper()
	n := *m
	n.tb = t
	n.must(n.c.Enter())
	t.Cleanup(n.c.Leave)
	return &n
}

func (m *machine) must(err error) {
	m.tb.Helper()
	if err != nil {
		m.tb.Fatal(err)
	}
}

func (m *machine) upload(b []byte) driver.Ptr {
	m.tb.Helper()
	p := m.memory.upload(b)
	m.must(m.memory.err)
	return p
}

func read[T any](m *machine, p driver.Ptr, n int) []T {
	m.tb.Helper()
	v := make([]T, n)
	m.must(m.c.Sync())
	m.must(m.c.Download(bytesOf(v), p))
	return v
}

func bf16(v float32) uint16 {
	u := math.Float32bits(v)
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// round is one round with everything on the host.
type round struct {
	level  Level
	nodes  []uint32 // beams
	scores []float64
	logits []float32 // [beam][size]
	alive  []uint32  // nil: all
	dead   []uint32
	width  int
	topK   int // 0: no limit
	room   int // for more beams than width; 0: none
	bf16   bool
}

type chosen struct {
	score  float64
	node   uint32
	parent int32
	code   int32
}

// want sorts everything. The normalisers are those that the GPU used.
func (r *round) want(norms []float64) []chosen {
	var all []chosen
	best := func(a, b chosen) int { return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.node, b.node)) }
	for b, node := range r.nodes {
		first := len(all)
		for n := r.level.Starts[node]; n < r.level.Starts[node+1]; n++ {
			code := r.level.Codes[n]
			logit := r.logits[b*r.level.Size+int(code)]
			_, dead := slices.BinarySearch(r.dead, n)
			if logit == negInf || dead || r.alive != nil && r.alive[n/32]>>(n%32)&1 == 0 {
				continue
			}
			all = append(all, chosen{r.scores[b] + (float64(logit) - norms[b]), n, int32(b), int32(code)})
		}
		if own := all[first:]; r.topK > 0 && len(own) > r.topK {
			slices.SortFunc(own, best)
			all = all[:first+r.topK]
		}
	}
	slices.SortFunc(all, best)
	all = all[:min(r.width, len(all))]
	slices.SortFunc(all, func(a, b chosen) int { return cmp.Compare(a.node, b.node) })
	return all
}

// norm is a row's normaliser in float64.
func (r *round) norm(b int) float64 {
	node, top, sum := r.nodes[b], math.Inf(-1), 0.0
	codes := r.level.Codes[r.level.Starts[node]:r.level.Starts[node+1]]
	for _, c := range codes {
		top = max(top, float64(r.logits[b*r.level.Size+int(c)]))
	}
	if math.IsInf(top, -1) {
		return 0
	}
	for _, c := range codes {
		sum += math.Exp(float64(r.logits[b*r.level.Size+int(c)]) - top)
	}
	return top + math.Log(sum)
}

// place makes a search whose second level is the round; the first only makes room for its beams.
func (m *machine) place(r *round) *Search {
	m.tb.Helper()
	parents := len(r.level.Starts) - 1
	first := Level{Size: parents, Starts: []uint32{0, uint32(parents)}, Codes: make([]uint32, parents)}
	tree, err := NewTree(m.c, []Level{first, r.level}, nil)
	m.must(err)
	m.tb.Cleanup(func() { m.must(tree.Close()) })
	data := bytesOf(r.logits)
	if r.bf16 {
		data = make([]byte, 0, 2*len(r.logits))
		for i, v := range r.logits {
			h := bf16(v)
			data = binary.LittleEndian.AppendUint16(data, h)
			r.logits[i] = math.Float32frombits(uint32(h) << 16)
		}
	}
	q, err := m.set.NewSearch(tree, Options{Widths: []int{len(r.nodes), max(r.width, r.room)}, Requests: 1,
		Logits: []Logits{{Stride: parents}, {Ptr: m.upload(data), Stride: r.level.Size, BF16: r.bf16}}})
	m.must(err)
	m.tb.Cleanup(func() { m.must(q.Close()) })
	b := q.Beams(1, 0)
	m.must(m.c.Upload(b.Head, bytesOf([]int32{int32(len(r.nodes)), 0})))
	m.must(m.c.Upload(b.Nodes, bytesOf(r.nodes)))
	m.must(m.c.Upload(b.Scores, bytesOf(r.scores)))
	if r.alive != nil || len(r.dead) > 0 || r.topK > 0 || r.room > 0 {
		alive, dead := driver.Ptr(0), driver.Ptr(0)
		if r.alive != nil {
			alive = m.upload(bytesOf(r.alive))
		}
		if len(r.dead) > 0 {
			dead = m.upload(bytesOf(r.dead))
		}
		q.Limit(1, 0, Limits{Alive: alive, Dead: dead, Deads: len(r.dead), Width: r.width, TopK: r.topK})
		m.must(q.Send(m.stream))
	}
	return q
}

// result reads what a round chose.
func (m *machine) result(b Beams) (out []chosen, failed bool) {
	m.tb.Helper()
	head := read[int32](m, b.Head, 2)
	n := int(head[0])
	scores, nodes := read[float64](m, b.Scores, n), read[uint32](m, b.Nodes, n)
	parents, codes := read[int32](m, b.Parents, n), read[int32](m, b.Codes, n)
	for i := range n {
		out = append(out, chosen{scores[i], nodes[i], parents[i], codes[i]})
	}
	return out, head[1] != 0
}

// check runs the round three times: the scratch memory must be left as it was found.
func (m *machine) check(r *round) {
	m.tb.Helper()
	q := m.place(r)
	var want []chosen
	for try := range 3 {
		m.must(q.Round(m.stream, m.args, 1, false))
		got, failed := m.result(q.Beams(2, 0))
		if failed {
			m.tb.Errorf("try %d: the round failed", try)
			return
		}
		if try == 0 {
			want = r.want(m.norms(q, r))
		}
		if len(got) != len(want) {
			m.tb.Errorf("try %d: %d kept, want %d", try, len(got), len(want))
			return
		}
		for i := range got {
			if got[i] != want[i] {
				m.tb.Errorf("try %d: beam %d is %+v, want %+v", try, i, got[i], want[i])
				return
			}
		}
	}
}

// norms reads the normalisers and holds them against float64.
func (m *machine) norms(q *Search, r *round) []float64 {
	m.tb.Helper()
	found := read[[rowBytes / 8]float64](m, q.found[1][0], len(r.nodes))
	norms := make([]float64, len(found))
	for b := range norms {
		norms[b] = found[b][1]
		if w := r.norm(b); !(math.Abs(norms[b]-w) <= 2e-6*max(1, math.Abs(w))) {
			m.tb.Errorf("normaliser of beam %d is %v, want %v", b, norms[b], w)
			break
		}
	}
	return norms
}

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 99)) }

// beams makes a round of beams whose parents have n(i) children of size codes.
func beams(r *rand.Rand, count, size, width int, n func(i int) int) *round {
	o := &round{level: Level{Size: size, Starts: []uint32{0}}, width: width}
	perm := make([]uint32, size)
	for i := range perm {
		perm[i] = uint32(i)
	}
	for b := range count {
		k := n(b)
		for i := range k {
			j := i + r.IntN(size-i)
			perm[i], perm[j] = perm[j], perm[i]
		}
		codes := slices.Clone(perm[:k])
		slices.Sort(codes)
		o.level.Codes = append(o.level.Codes, codes...)
		o.level.Starts = append(o.level.Starts, uint32(len(o.level.Codes)))
		o.nodes = append(o.nodes, uint32(b))
		o.scores = append(o.scores, -5-3*math.Abs(r.NormFloat64()))
	}
	o.logits = make([]float32, count*size)
	return o
}

func (r *round) fill(f func(b, code int) float32) *round {
	for i := range r.logits {
		r.logits[i] = f(i/r.level.Size, i%r.level.Size)
	}
	return r
}

func TestRounds(t *testing.T) {
	m := gpu(t)
	r := rng(1)
	all := func(size int) func(int) int { return func(int) int { return size } }
	some := func(most int) func(int) int { return func(int) int { return 1 + r.IntN(most) } }
	normal := func(sigma float64) func(b, c int) float32 {
		return func(b, c int) float32 { return float32(sigma * r.NormFloat64()) }
	}
	peaked := func(b, c int) float32 {
		if c == b*7%1024 {
			return 25
		}
		return float32(r.NormFloat64())
	}
	tests := map[string]func() *round{
		"normal":       func() *round { return beams(r, 512, 8192, 512, all(8192)).fill(normal(3)) },
		"flat":         func() *round { return beams(r, 512, 8192, 512, all(8192)).fill(normal(0.005)) },
		"peaked":       func() *round { return beams(r, 512, 8192, 512, all(8192)).fill(peaked) },
		"few peaked":   func() *round { return beams(r, 100, 4096, 512, all(4096)).fill(peaked) },
		"valid paths":  func() *round { return beams(r, 512, 8192, 512, some(8192)).fill(normal(3)) },
		"few children": func() *round { return beams(r, 512, 8192, 512, some(12)).fill(normal(3)) },
		"one child":    func() *round { return beams(r, 300, 8192, 512, some(1)).fill(normal(3)) },
		"one beam":     func() *round { return beams(r, 1, 8192, 512, all(8192)).fill(normal(3)) },
		"16 beams":     func() *round { return beams(r, 16, 8192, 512, some(8192)).fill(normal(3)) },
		"17 beams":     func() *round { return beams(r, 17, 8192, 512, some(8192)).fill(normal(3)) },
		"narrow":       func() *round { return beams(r, 64, 256, 64, some(256)).fill(normal(2)) },
		"wide":         func() *round { return beams(r, 40, 70000, 1024, some(70000)).fill(normal(2)) },
		"too few":      func() *round { return beams(r, 5, 64, 512, some(64)).fill(normal(2)) },
		"keep one":     func() *round { return beams(r, 5, 64, 1, some(64)).fill(normal(2)) },
		"all equal":    func() *round { return beams(r, 64, 8192, 512, all(8192)).fill(normal(0)) },
		"same beams": func() *round { // equal scores everywhere: the lower nodes win
			o := beams(r, 512, 1024, 512, all(1024)).fill(func(_, c int) float32 { return float32(c % 16) })
			clear(o.scores)
			return o
		},
		"coarse": func() *round {
			o := beams(r, 256, 8192, 512, some(8192)).fill(
				func(b, c int) float32 { return float32(math.Round(2 * r.NormFloat64())) })
			for i := range o.scores {
				o.scores[i] = math.Round(o.scores[i])
			}
			return o
		},
		"impossible": func() *round {
			return beams(r, 200, 512, 512, some(512)).fill(func(b, c int) float32 {
				if b%3 == 0 || r.IntN(10) > 0 {
					return negInf
				}
				return float32(r.NormFloat64())
			})
		},
		"nothing": func() *round { return beams(r, 20, 512, 512, some(512)).fill(func(b, c int) float32 { return negInf }) },
		"alive": func() *round {
			o := beams(r, 300, 2048, 512, some(2048)).fill(normal(3))
			o.alive = make([]uint32, len(o.level.Codes)/32+1)
			for i := range o.alive {
				o.alive[i] = r.Uint32() & r.Uint32() & r.Uint32()
			}
			return o
		},
		"dead": func() *round {
			o := beams(r, 300, 2048, 512, some(2048)).fill(normal(3))
			for n := range o.level.Codes { // the best die
				if r.IntN(300) == 0 {
					o.dead = append(o.dead, uint32(n))
				}
			}
			return o
		},
		"5,000 beams": func() *round { return beams(r, 5000, 512, 5000, some(512)).fill(normal(3)) },
		"8,192 beams": func() *round { return beams(r, 8192, 512, 8192, some(12)).fill(normal(3)) },
		"8,192 equal": func() *round { return beams(r, 300, 2048, 8192, all(2048)).fill(normal(0)) },
		"room for more": func() *round {
			o := beams(r, 300, 512, 100, some(512)).fill(normal(3))
			o.room = 512
			return o
		},
		"top 3": func() *round {
			o := beams(r, 300, 2048, 512, some(2048)).fill(normal(3))
			o.topK = 3
			return o
		},
		"top 7 of equals": func() *round {
			o := beams(r, 100, 2048, 512, some(2048)).fill(func(_, c int) float32 { return float32(c%3 - 1) })
			o.topK = 7
			return o
		},
		"top 200, one beam": func() *round {
			o := beams(r, 1, 8192, 512, all(8192)).fill(normal(3))
			o.topK = 200
			return o
		},
		"top 1 of zeros": func() *round {
			o := beams(r, 40, 512, 50, all(512)).fill(func(_, c int) float32 {
				return float32(math.Copysign(0, float64(c%2)-0.5))
			})
			o.topK = 1
			return o
		},
		"top 5, alive and dead": func() *round {
			o := beams(r, 300, 2048, 512, some(2048)).fill(normal(3))
			o.topK, o.alive = 5, make([]uint32, len(o.level.Codes)/32+1)
			for i := range o.alive {
				o.alive[i] = r.Uint32() & r.Uint32() & r.Uint32()
			}
			for n := range o.level.Codes {
				if r.IntN(100) == 0 {
					o.dead = append(o.dead, uint32(n))
				}
			}
			return o
		},
		"alive and dead, one beam": func() *round {
			o := beams(r, 1, 8192, 512, all(8192)).fill(normal(3))
			o.alive = make([]uint32, 256)
			for i := range o.alive {
				o.alive[i] = r.Uint32()
			}
			for n := 0; n < 8192; n += 5 {
				o.dead = append(o.dead, uint32(n))
			}
			return o
		},
	}
	names := make([]string, 0, len(tests))
	for name := range tests {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, half := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/bf16=%v", name, half), func(t *testing.T) {
				n := m.in(t)
				o := tests[name]()
				o.bf16 = half
				n.check(o)
			})
		}
	}
}

// TestLift compares the nodes that sets of items keep with those that a plain loop finds.
func TestLift(t *testing.T) {
	m := gpu(t)
	r := rng(7)
	for depth := 1; depth <= 4; depth++ {
		for _, shared := range []bool{false, true} { // leaves with several items
			paths := make([]int32, 9000*depth)
			for i := range paths {
				paths[i] = int32(r.IntN(40))
			}
			ix, err := beam.Build(slices.Repeat([]int{40}, depth), paths)
			m.must(err)
			first := ix.Leaves()
			if !shared {
				for i := range first {
					first[i] = uint32(i)
				}
			}
			tree, err := NewTree(m.c, levelsOf(ix), first)
			m.must(err)
			const requests = 3
			sets, err := NewSets(m.c, tree, requests)
			m.must(err)
			bits := make([][]uint64, requests)
			for i := range bits {
				bits[i] = make([]uint64, (tree.Items()+63)/64)
				for range tree.Items() / (1 + 50*i) {
					n := r.IntN(tree.Items())
					bits[i][n/64] |= 1 << (n % 64)
				}
				m.must(m.c.Upload(sets.Items(i), bytesOf(bits[i])))
			}
			m.must(sets.Lift(m.stream, m.args, requests))
			for i := range bits {
				below := func(n uint32) bool { return bits[i][n/64]>>(n%64)&1 != 0 }
				starts := first
				for l := depth - 1; l >= 0; l-- {
					got := read[uint32](m, sets.Alive(i, l), words(ix.Nodes(l)))
					want := make([]bool, ix.Nodes(l))
					for n := range want {
						for c := starts[n]; c < starts[n+1]; c++ {
							want[n] = want[n] || below(c)
						}
						if alive := got[n/32]>>(n%32)&1 != 0; alive != want[n] {
							t.Fatalf("%d levels, items shared %v, request %d: node %d of level %d is alive: %v", depth, shared, i, n, l,
								alive)
						}
					}
					below = func(n uint32) bool { return want[n] }
					if l > 0 {
						starts, _ = ix.Tree(l)
					}
				}
			}
			m.must(sets.Close())
			m.must(tree.Close())
		}
	}
}

func TestLogitsThatAreNoNumbersFail(t *testing.T) {
	m := gpu(t)
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		o := beams(rng(2), 20, 512, 100, func(int) int { return 512 }).fill(func(b, c int) float32 { return float32(c % 7) })
		o.logits[7*512+33] = bad
		q := m.place(o)
		m.must(q.Round(m.stream, m.args, 1, false))
		if got, failed := m.result(q.Beams(2, 0)); !failed || len(got) != 0 {
			t.Errorf("with a logit of %v: failed %v, %d beams", bad, failed, len(got))
		}
	}
}

// TestRequestsInOneGraph runs whole searches of two requests in one graph, beside a plain search.
func TestRequestsInOneGraph(t *testing.T) {
	m := gpu(t)
	r := rng(3)
	const items, depth, size, width = 20000, 3, 300, 128
	paths := make([]int32, items*depth)
	for i := range paths {
		paths[i] = int32(r.IntN(size))
		if i%depth == 0 {
			paths[i] %= 40
		}
	}
	ix, err := beam.Build([]int{size, size, size}, paths)
	m.must(err)
	tree, err := NewTree(m.c, levelsOf(ix), nil)
	m.must(err)
	defer tree.Close()
	const requests = 2
	logits := make([][]float32, depth)
	o := Options{Requests: requests}
	for l := range logits {
		rows := width
		if l == 0 {
			rows = 1
		}
		logits[l] = make([]float32, requests*rows*size)
		for i := range logits[l] {
			logits[l][i] = float32(3 * r.NormFloat64())
		}
		o.Logits = append(o.Logits, Logits{Ptr: m.upload(bytesOf(logits[l])), Stride: size})
		o.Widths = append(o.Widths, width)
	}
	q, err := m.set.NewSearch(tree, o)
	m.must(err)
	defer q.Close()
	g, err := m.stream.Capture(func() error {
		if err := q.Begin(m.stream); err != nil {
			return err
		}
		for l := range depth {
			if err := q.Round(m.stream, m.args, l, true); err != nil {
				return err
			}
		}
		return nil
	})
	m.must(err)
	defer g.Close()
	for range 2 {
		m.must(g.Launch(m.stream))
	}
	for i := range requests {
		got, failed := m.result(q.Beams(depth, i))
		if failed {
			t.Fatalf("request %d failed", i)
		}
		slices.SortFunc(got, func(a, b chosen) int {
			return cmp.Or(cmp.Compare(b.score, a.score),
				cmp.Compare(a.node, b.node))
		})
		want := plainSearch(ix, width, func(level, row int) []float32 {
			rows := width
			if level == 0 {
				rows = 1
			}
			return logits[level][(i*rows+row)*size:][:size]
		})
		if len(got) != len(want) {
			t.Fatalf("request %d: %d paths, want %d", i, len(got), len(want))
		}
		for k := range got {
			if got[k].node != want[k].node || math.Abs(got[k].score-want[k].score) > 1e-5 {
				t.Fatalf("request %d: path %d is %+v, want %+v", i, k, got[k], want[k])
			}
		}
	}
}

type leaf struct {
	node  uint32
	score float64
}

// plainSearch sorts all continuations in each round.
func plainSearch(ix *beam.Index, width int, logits func(level, row int) []float32) []leaf {
	now := []leaf{{}}
	for l := range ix.Depth() {
		var all []leaf
		for row, p := range now {
			codes, first := ix.Children(l, p.node)
			x := logits(l, row)
			sum := 0.0
			for i := range codes.Len() {
				sum += math.Exp(float64(x[codes.At(i)]))
			}
			for i := range codes.Len() {
				all = append(all, leaf{first + uint32(i), p.score + float64(x[codes.At(i)]) - math.Log(sum)})
			}
		}
		slices.SortFunc(all, func(a, b leaf) int {
			return cmp.Or(cmp.Compare(b.score, a.score),
				cmp.Compare(a.node, b.node))
		})
		now = all[:min(width, len(all))]
		if l+1 < ix.Depth() {
			slices.SortFunc(now, func(a, b leaf) int { return cmp.Compare(a.node, b.node) })
		}
	}
	return now
}

// TestSearchAgreesWithPackageBeam feeds a search here and one of package beam, which gives settled beams no
// rows, the same logits for the same paths.
func TestSearchAgreesWithPackageBeam(t *testing.T) {
	m := gpu(t)
	r := rng(4)
	const items, depth, size, width = 6000, 4, 200, 256
	paths := make([]int32, items*depth)
	for i := range paths {
		paths[i] = int32(r.IntN(size) * r.IntN(size) / size)
	}
	ix, err := beam.Build([]int{size, size, size, size}, paths)
	m.must(err)
	logits := func(path []int32) []float32 {
		seed := uint64(len(path))
		for _, c := range path {
			seed = seed*1000003 + uint64(c) + 1
		}
		r := rng(seed)
		out := make([]float32, size)
		for i := range out {
			out[i] = float32(2 * r.NormFloat64())
		}
		return out
	}
	want := resultsOfBeam(t, ix, width, logits)

	tree, err := NewTree(m.c, levelsOf(ix), nil)
	m.must(err)
	defer tree.Close()
	room := m.upload(make([]byte, 4*width*size))
	o := Options{Requests: 1}
	for range depth {
		o.Widths = append(o.Widths, width)
		o.Logits = append(o.Logits, Logits{Ptr: room, Stride: size})
	}
	q, err := m.set.NewSearch(tree, o)
	m.must(err)
	defer q.Close()
	m.must(q.Begin(m.stream))
	now := [][]int32{nil}
	var got []chosen
	for l := range depth {
		for row, path := range now {
			m.must(m.c.Upload(room.At(4*size*row), bytesOf(logits(path))))
		}
		m.must(q.Round(m.stream, m.args, l, false))
		got, _ = m.result(q.Beams(l+1, 0))
		var next [][]int32
		for _, c := range got {
			next = append(next, append(slices.Clone(now[c.parent]), c.code))
		}
		now = next
	}
	order := make([]int, len(got))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(got[b].score, got[a].score), cmp.Compare(got[a].node, got[b].node))
	})
	k := 0
	for _, i := range order {
		for _, item := range ix.Items(got[i].node) {
			if k == len(want) {
				return
			}
			w := want[k]
			if item != w.Item || !slices.Equal(now[i], w.Codes) || math.Abs(got[i].score-w.Score) > 1e-5 {
				t.Fatalf("result %d is item %d, path %v, score %v; package beam has %+v", k, item, now[i], got[i].score, w)
			}
			k++
		}
	}
	t.Errorf("%d results, package beam has %d", k, len(want))
}

func resultsOfBeam(t *testing.T, ix *beam.Index, width int, logits func(path []int32) []float32) []beam.Result {
	t.Helper()
	s, err := beam.New(ix, nil, beam.Options{Width: width, N: width / 2})
	if err != nil {
		t.Fatal(err)
	}
	now := [][]int32{nil}
	for !s.Done() {
		var x []float32
		for _, path := range now {
			x = append(x, logits(path)...)
		}
		if err := s.Advance(x, ix.Size(s.Level())); err != nil {
			t.Fatal(err)
		}
		var next [][]int32
		for i, p := range s.Parents() {
			next = append(next, append(slices.Clone(now[p]), s.Codes()[i]))
		}
		now = next
	}
	results, short := s.Results(nil, width/2)
	if short {
		t.Fatalf("only %d results", len(results))
	}
	return results
}

// levelsOf returns package beam's tree in the form that this package takes.
func levelsOf(ix *beam.Index) []Level {
	out := make([]Level, ix.Depth())
	parents := 1
	for l := range out {
		out[l] = Level{Size: ix.Size(l), Starts: []uint32{0}}
		for p := range parents {
			codes, _ := ix.Children(l, uint32(p))
			for i := range codes.Len() {
				out[l].Codes = append(out[l].Codes, uint32(codes.At(i)))
			}
			out[l].Starts = append(out[l].Starts, uint32(len(out[l].Codes)))
		}
		parents = ix.Nodes(l)
	}
	return out
}

func TestLayoutsAreThoseOfTheKernels(t *testing.T) {
	if n := unsafe.Sizeof(search{}); n != 176 {
		t.Errorf("a search has %d bytes, want 176", n)
	}
	for most, want := range map[int]int{1024: 32 + 9216 + 16384 + 262144, 8192: 32 + 9216 + 131072 + 1048576} {
		if n := scratchBytes(most); n != want {
			t.Errorf("scratch for %d beams has %d bytes, want %d", most, n, want)
		}
	}
}

func TestWrongSizesAreRefused(t *testing.T) {
	tree := &Tree{levels: []level{{size: 10}}}
	good := Options{Widths: []int{5}, Requests: 1, Logits: []Logits{{Stride: 10}}}
	if err := good.validate(tree); err != nil {
		t.Error(err)
	}
	for i, o := range []Options{{}, {Widths: []int{0}, Requests: 1, Logits: good.Logits},
		{Widths: []int{MaxWidth + 1}, Requests: 1, Logits: good.Logits},
		{Widths: []int{5}, Logits: good.Logits}, {Widths: []int{5}, Requests: 1, Logits: []Logits{{Stride: 9}}}} {
		if o.validate(tree) == nil {
			t.Errorf("options %d were accepted: %+v", i, o)
		}
	}
	for i, l := range []Level{{}, {Size: 3, Starts: []uint32{0}}, {Size: 3, Starts: []uint32{0, 2}, Codes: []uint32{1}}} {
		if l.validate() == nil {
			t.Errorf("level %d was accepted: %+v", i, l)
		}
	}
}
