package beam

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"

	"grebe/beam"
)

// Selection is the choice of the next beams from their logits.
type Selection struct {
	Logits string `json:"logits"` // random or peaked
	Valid  string `json:"valid"`  // all; half of the codes; or half of the logits are -Inf
	Ways   []Way  `json:"ways"`   // grebe, sort, heap, merge, tuned heap
	// Differ counts beams that only one of Grebe and the sort chose, Off is the largest difference
	// between the scores of a beam.
	Differ int     `json:"differ"`
	Off    float64 `json:"off"`
}

// round is a round of wide beams, as Grebe sees it and as the rivals do.
type round struct {
	index  *beam.Index
	search beam.Search
	opts   beam.Options
	first  []float32   // logits of the round before, of which every code survives
	flat   []float32   // of all rows
	rows   [][]float32 // its parts
	valid  [][]uint16  // codes of each row; nil: all
	scores []float64   // of the beams
}

// newRound draws logits. Peaked ones have a few likely codes and a long tail, and so do the beams.
func newRound(o *Options, kind, valid string) (*round, error) {
	r := rand.New(rand.NewPCG(9, uint64(len(kind)+len(valid))))
	n := &round{opts: beam.Options{Width: o.beams, N: o.beams}, flat: make([]float32, o.beams*o.logits)}
	var codes []int32
	for b := range o.beams {
		x := n.flat[b*o.logits:][:o.logits]
		draw(x, kind, r)
		lead := -r.ExpFloat64()
		if kind == "peaked" {
			lead *= 5
		}
		n.first = append(n.first, float32(lead))
		var own []uint16
		for code := range x {
			out := valid != "all" && r.IntN(2) == 0 && code > 0
			if out && valid == "masked" {
				x[code] = float32(math.Inf(-1))
			}
			if !out || valid == "masked" {
				own = append(own, uint16(code))
				codes = append(codes, int32(b), int32(code))
			}
		}
		if valid != "half" {
			own = nil
		}
		n.rows, n.valid = append(n.rows, x), append(n.valid, own)
	}
	var err error
	n.index, err = beam.Build([]int{o.beams, o.logits}, codes)
	if err != nil {
		return nil, err
	}
	var norm beam.Normaliser
	sum := norm.LogSum(n.first)
	for _, x := range n.first {
		n.scores = append(n.scores, float64(x)-sum)
	}
	return n, nil
}

func draw(x []float32, kind string, r *rand.Rand) {
	scale := 1.0
	if kind == "peaked" {
		scale = 2
	}
	for i := range x {
		x[i] = float32(scale * r.NormFloat64())
	}
	for i := range 40 {
		if kind == "peaked" {
			x[r.IntN(len(x))] = 14 - 0.25*float32(i) + float32(r.NormFloat64())
		}
	}
}

// ready brings the search to the round.
func (n *round) ready() error {
	if err := n.search.Reset(n.index, nil, n.opts); err != nil {
		return err
	}
	return n.search.Advance(n.first, len(n.first))
}

// choose is what is measured of Grebe: from logits to the next beams. The last round keeps them by leaf;
// Results, which sorts them for the answer, is included.
func (n *round) choose(dst []beam.Result) ([]beam.Result, error) {
	if err := n.search.Advance(n.flat, len(n.rows[0])); err != nil {
		return nil, err
	}
	dst, _ = n.search.Results(dst[:0], n.opts.N)
	return dst, nil
}

func selection(ctx context.Context, o *Options, r *Report, p *printer) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.selectionHead(o)
	for _, kind := range []string{"random", "peaked"} {
		for _, valid := range []string{"all", "half", "masked"} {
			s, err := selectOnce(ctx, o, kind, valid)
			if err != nil {
				return fmt.Errorf("selection from %s logits, %s: %w", kind, valid, err)
			}
			r.Selection = append(r.Selection, s)
			p.selection(&s)
			r.Checks = append(r.Checks, s.checks()...)
			runtime.GC()
		}
	}
	return nil
}

func (s *Selection) checks() (out []Check) {
	for i, want := range []float64{0, 10, 3, 1} {
		w := &s.Ways[i]
		if i > 0 {
			out = append(out, Check{
				What: fmt.Sprintf("selection, %s, %s: %s takes at least %.0f× the time", s.Logits, s.Valid, w.Name, want),
				Got:  fmt.Sprintf("%.1f× [%.1f, %.1f]", w.Over, w.Low, w.High), OK: w.Over >= want})
		}
	}
	return append(out, Check{What: fmt.Sprintf("selection, %s, %s: the same beams as by sorting", s.Logits, s.Valid),
		Got: fmt.Sprintf("%d differ, scores by %.1g", s.Differ, s.Off), OK: s.Differ == 0 && s.Off < 1e-5})
}

func selectOnce(ctx context.Context, o *Options, kind, valid string) (Selection, error) {
	s := Selection{Logits: kind, Valid: valid}
	n, err := newRound(o, kind, valid)
	if err != nil {
		return s, err
	}
	v := &rivals{round: n, width: n.opts.Width}
	if err := n.ready(); err != nil {
		return s, err
	}
	got, err := n.choose(nil)
	if err != nil {
		return s, err
	}
	s.Differ, s.Off = differences(got, v.sort(plainNorm))
	grebe := timed("grebe", func() error { got, err = n.choose(got); return err })
	s.Ways, err = compare(ctx, o.Blocks,
		grebe.after(n.ready),
		timed("sort", func() error { v.sort(v.norm.LogSum); return nil }),
		timed("plain heap", func() error { v.heap(plainNorm); return nil }),
		timed("merge", func() error { v.merge(v.norm.LogSum); return nil }),
		timed("tuned heap", func() error { v.heap(v.norm.LogSum); return nil }))
	return s, err
}

// differences compares what was chosen, by path.
func differences(got []beam.Result, want []chosen) (differ int, off float64) {
	scores := map[[2]int32]float64{}
	for _, w := range want {
		scores[[2]int32{w.row, w.code}] = w.score
	}
	for _, g := range got {
		score, ok := scores[[2]int32{g.Codes[0], g.Codes[1]}]
		if !ok {
			differ++
			continue
		}
		delete(scores, [2]int32{g.Codes[0], g.Codes[1]})
		off = max(off, math.Abs(score-g.Score))
	}
	return differ + len(scores), off
}

// chosen is a continuation that a rival keeps.
type chosen struct {
	score     float64
	row, code int32
}

// worse is the order of beams, the worst first.
func (c chosen) worse(d chosen) bool {
	if c.score != d.score {
		return c.score < d.score
	}
	return c.row > d.row || c.row == d.row && c.code > d.code
}

// rivals choose the beams of a round in other ways. Their memory is reused too.
type rivals struct {
	*round
	width  int
	norm   beam.Normaliser
	gather []float32
	all    []chosen
	kept   []chosen
	sorted [][]chosen
	heads  []int
}

// plainNorm is a row's normaliser as one would write it.
func plainNorm(x []float32) float64 {
	top, sum := float64(slices.Max(x)), 0.0
	for _, l := range x {
		sum += math.Exp(float64(l) - top)
	}
	return top + math.Log(sum)
}

// values returns the valid logits of a row.
func (v *rivals) values(row int) []float32 {
	codes := v.valid[row]
	if codes == nil {
		return v.rows[row]
	}
	v.gather = slices.Grow(v.gather[:0], len(codes))[:len(codes)]
	for i, c := range codes {
		v.gather[i] = v.rows[row][c]
	}
	return v.gather
}

// code returns the code of a valid logit of a row.
func (v *rivals) code(row, i int) int32 {
	if v.valid[row] != nil {
		return int32(v.valid[row][i])
	}
	return int32(i)
}

// sort sorts all continuations of all beams.
func (v *rivals) sort(norm func([]float32) float64) []chosen {
	v.all = v.all[:0]
	for r := range v.rows {
		x := v.values(r)
		lead := v.scores[r] - norm(x)
		for i, l := range x {
			v.all = append(v.all, chosen{lead + float64(l), int32(r), v.code(r, i)})
		}
	}
	slices.SortFunc(v.all, best)
	return v.all[:v.width]
}

func best(a, b chosen) int {
	if b.worse(a) {
		return -1
	}
	return 1
}

// heap offers all continuations of all beams to one heap.
func (v *rivals) heap(norm func([]float32) float64) []chosen {
	v.kept = v.kept[:0]
	for r := range v.rows {
		x := v.values(r)
		v.offer(r, x, v.scores[r]-norm(x))
	}
	return v.kept
}

// offer puts a row's continuations into the heap if they are good enough. Rows and codes come in
// ascending order, so one that is no better than the worst loses the tie too.
func (v *rivals) offer(row int, x []float32, lead float64) {
	for i, l := range x {
		if score := lead + float64(l); len(v.kept) < v.width || score > v.kept[0].score {
			v.keep(chosen{score, int32(row), v.code(row, i)})
		}
	}
}

// keep puts a continuation into the binary heap, in place of the worst when it is full.
func (v *rivals) keep(c chosen) {
	h := v.kept
	if len(h) < v.width {
		h = append(h, c)
		v.kept = h
		for i := len(h) - 1; i > 0 && h[i].worse(h[(i-1)/2]); i = (i - 1) / 2 {
			h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
		}
		return
	}
	h[0] = c
	for i := 0; ; {
		k := 2*i + 1
		if k+1 < len(h) && h[k+1].worse(h[k]) {
			k++
		}
		if k >= len(h) || !h[k].worse(h[i]) {
			return
		}
		h[i], h[k] = h[k], h[i]
		i = k
	}
}

// merge takes the best of each beam by a heap, sorts them, and merges the sorted beams.
func (v *rivals) merge(norm func([]float32) float64) []chosen {
	v.sorted, v.all = v.sorted[:0], v.all[:0]
	for r := range v.rows {
		v.kept = v.kept[:0]
		x := v.values(r)
		v.offer(r, x, v.scores[r]-norm(x))
		slices.SortFunc(v.kept, best)
		from := len(v.all)
		v.all = append(v.all, v.kept...)
		v.sorted = append(v.sorted, v.all[from:len(v.all):len(v.all)])
	}
	v.heads = v.heads[:0]
	for r := range v.sorted {
		if len(v.sorted[r]) > 0 {
			v.heads = append(v.heads, r)
			v.up(len(v.heads) - 1)
		}
	}
	v.kept = v.kept[:0]
	for len(v.kept) < v.width && len(v.heads) > 0 {
		r := v.heads[0]
		v.kept = append(v.kept, v.sorted[r][0])
		if v.sorted[r] = v.sorted[r][1:]; len(v.sorted[r]) == 0 {
			v.heads[0] = v.heads[len(v.heads)-1]
			v.heads = v.heads[:len(v.heads)-1]
		}
		v.down()
	}
	return v.kept
}

// before orders the heads of beams in a heap whose first is the best.
func (v *rivals) before(i, j int) bool { return v.sorted[v.heads[j]][0].worse(v.sorted[v.heads[i]][0]) }

func (v *rivals) up(i int) {
	for ; i > 0 && v.before(i, (i-1)/2); i = (i - 1) / 2 {
		v.heads[i], v.heads[(i-1)/2] = v.heads[(i-1)/2], v.heads[i]
	}
}

func (v *rivals) down() {
	for i := 0; ; {
		k := 2*i + 1
		if k+1 < len(v.heads) && v.before(k+1, k) {
			k++
		}
		if k >= len(v.heads) || !v.before(k, i) {
			return
		}
		v.heads[i], v.heads[k] = v.heads[k], v.heads[i]
		i = k
	}
}
