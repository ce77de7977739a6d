package beam

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// bySorting is the obvious selection: all continuations, sorted; of each beam its first topK.
func bySorting(rows []selectorRow, width, topK int) []candidate {
	var all []candidate
	for k := range rows {
		r := &rows[k]
		var own []candidate
		for i := range r.n {
			score := r.score
			if r.row >= 0 {
				score = r.continued(r.logit(i))
			}
			if score > negInf {
				own = append(own, candidate{score, r.first + uint32(i), r.row})
			}
		}
		slices.SortFunc(own, inOrder)
		all = append(all, own[:min(topK, len(own))]...)
	}
	slices.SortFunc(all, inOrder)
	return all[:min(width, len(all))]
}

func inOrder(a, b candidate) int {
	if a.better(b) {
		return -1
	}
	return 1
}

// randomRows fills a selector. kind says what the logits look like.
func randomRows(t testing.TB, r *rand.Rand, s *selector, kind string, rows, size int) {
	t.Helper()
	s.reset(0, nil)
	first := uint32(0)
	for row := range rows {
		x := make([]float32, size)
		for i := range x {
			x[i] = drawLogit(r, kind)
		}
		in := selectorRow{logits: x, first: first, row: int32(row), score: -5 * r.Float64()}
		if kind == "equal" || kind == "ties" || kind == "collapse" {
			in.score = -float64(r.IntN(3)) * r.Float64()
		}
		in.codes, in.n = randomCodes(r, size)
		if r.IntN(6) == 0 {
			in.n = 1
			s.addSettled(in.score, first)
		} else if err := s.add(in); err != nil {
			t.Fatal(err)
		}
		first += uint32(in.n)
	}
}

func drawLogit(r *rand.Rand, kind string) float32 {
	switch kind {
	case "equal":
		return 1
	case "ties":
		return float32(r.IntN(3))
	case "holes":
		if r.IntN(3) > 0 {
			return float32(negInf)
		}
	case "none":
		if r.IntN(200) > 0 {
			return float32(negInf)
		}
	case "collapse": // logits that differ where their scores do not
		return math.Float32frombits(r.Uint32N(1 << 20))
	case "huge":
		return float32(r.NormFloat64()) * 1e37
	case "peaked":
		return float32(6 * r.ExpFloat64())
	}
	return float32(3 * r.NormFloat64())
}

func randomCodes(r *rand.Rand, size int) (Codes, int) {
	keep := [...]float64{1, 0.5, 0.02}[r.IntN(3)]
	var c Codes
	for code := range size {
		if r.Float64() < keep || code == size-1 {
			c.short = append(c.short, uint16(code))
		}
	}
	if n := len(c.short); r.IntN(2) == 0 {
		return c, n
	}
	for _, code := range c.short {
		c.long = append(c.long, uint32(code))
	}
	c.short = nil
	return c, len(c.long)
}

var kinds = []string{"normal", "peaked", "equal", "ties", "holes", "none", "collapse", "huge"}

func TestSelectionNeverDiffersFromSorting(t *testing.T) {
	var s selector
	for seed := range uint64(1500) {
		r := rng(seed)
		kind := kinds[int(seed)%len(kinds)]
		randomRows(t, r, &s, kind, 1+r.IntN(20), 1+r.IntN(1+r.IntN(400)))
		width := 1 + r.IntN(1+r.IntN(2000))
		topK := 1 + r.IntN(1+r.IntN(2*width))
		want := bySorting(s.rows, width, topK)
		got := slices.Clone(s.choose(width, topK))
		if !slices.IsSortedFunc(got, func(a, b candidate) int { return int(a.node) - int(b.node) }) {
			t.Fatalf("seed %d: chosen are not in the order of their nodes", seed)
		}
		slices.SortFunc(got, inOrder)
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d, %s, width %d, top_k %d: got %d\n%v\nwant %d\n%v", seed, kind, width, topK, len(got), got, len(want), want)
		}
	}
}

// A row's probabilities add up to one, whatever codes are valid.
func TestNormalisedOverValidCodes(t *testing.T) {
	var s selector
	for seed := range uint64(200) {
		r := rng(seed)
		randomRows(t, r, &s, kinds[int(seed)%len(kinds)], 5, 1+r.IntN(300))
		for k := range s.rows {
			row := &s.rows[k]
			sum := 0.0
			for i := range row.n {
				if row.row >= 0 {
					sum += math.Exp(row.continued(row.logit(i)) - row.score)
				}
			}
			if row.row >= 0 && math.Abs(sum-1) > 2e-6 {
				t.Fatalf("seed %d: the probabilities of row %d add up to %.9f", seed, k, sum)
			}
		}
	}
}

func TestLogitsThatAreRefused(t *testing.T) {
	var s selector
	for _, n := range []int{1, 5, 64, 200} {
		for at := range n {
			for _, bad := range []float64{math.NaN(), math.Inf(1)} {
				x := make([]float32, n)
				x[at] = float32(bad)
				s.reset(0, nil)
				codes := newCodes(n, uint32(n))
				for i := range n {
					codes.set(uint32(i), int32(i))
				}
				err := s.add(selectorRow{logits: x, codes: codes, n: n, row: 3})
				if want := fmt.Sprintf("row 3: the logit of code %d is %v", at, bad); err == nil || err.Error() != want {
					t.Fatalf("%v at %d of %d: %v, want %q", bad, at, n, err, want)
				}
			}
		}
	}
	// What is not valid is not read.
	if err := s.add(selectorRow{logits: []float32{float32(math.NaN()), 1}, codes: Codes{short: []uint16{1}}, n: 1}); err != nil {
		t.Error(err)
	}
}

// wideRows are 512 beams of 8,192 logits, all valid: peaked ones have a few likely codes and a long tail.
func wideRows(kind string, valid float64) []selectorRow {
	r := rng(9)
	rows := make([]selectorRow, 512)
	first := uint32(0)
	for k := range rows {
		x := make([]float32, 8192)
		for i := range x {
			x[i] = float32(r.NormFloat64())
			if kind == "peaked" {
				x[i] *= 2
			}
		}
		if kind == "peaked" {
			for i := range 40 {
				x[r.IntN(len(x))] = 14 - 0.25*float32(i) + float32(r.NormFloat64())
			}
		}
		var codes Codes
		for code := range x {
			if r.Float64() < valid {
				codes.short = append(codes.short, uint16(code))
			}
		}
		rows[k] = selectorRow{logits: x, codes: codes, n: len(codes.short), first: first, row: int32(k)}
		if rows[k].score = -2 - r.ExpFloat64(); kind == "peaked" {
			rows[k].score -= 4 * r.ExpFloat64()
		}
		first += uint32(len(codes.short))
	}
	return rows
}

func ways(valid float64) []string {
	w := []string{"grebe", "merge", "heap", "sort"}
	if valid < 1 {
		return w[:3]
	}
	return w
}

// BenchmarkSelect times 512 × 8,192 logits → 512 beams from logits, normalisers included, against the
// plain ways, which are given the same fast normalisers. Run it with -count so that the ways alternate.
func BenchmarkSelect(b *testing.B) {
	for _, valid := range []float64{1, 0.5} {
		for _, kind := range []string{"random", "peaked"} {
			rows := wideRows(kind, valid)
			for _, topK := range []int{512, 64} {
				for _, way := range ways(valid) {
					name := strings.Join([]string{kind, fmt.Sprint("valid=", valid), fmt.Sprint("topk=", topK), way}, "/")
					b.Run(name, func(b *testing.B) { benchWay(b, way, rows, topK) })
				}
			}
		}
	}
}

func benchWay(b *testing.B, way string, rows []selectorRow, topK int) {
	var s selector
	rivals := &rivals{width: 512, topK: topK}
	for b.Loop() {
		s.reset(0, nil)
		for _, r := range rows {
			if err := s.add(r); err != nil {
				b.Fatal(err)
			}
		}
		switch way {
		case "grebe":
			s.choose(512, topK)
		case "heap":
			rivals.heap(s.rows)
		case "merge":
			rivals.merge(s.rows)
		case "sort":
			rivals.sort(s.rows)
		}
	}
}

// rivals are the plain ways with all memory reused.
type rivals struct {
	width, topK int
	all         []candidate
	kept, heads best
	sorted      [][]candidate // of each row
	at          []int         // its head
}

func (v *rivals) candidates(dst []candidate, r *selectorRow) []candidate {
	for i := range r.n {
		dst = append(dst, candidate{r.continued(r.logit(i)), r.first + uint32(i), r.row})
	}
	return dst
}

// sort sorts everything.
func (v *rivals) sort(rows []selectorRow) []candidate {
	v.all = v.all[:0]
	for i := range rows {
		from := len(v.all)
		v.all = v.candidates(v.all, &rows[i])
		if v.topK < v.width {
			slices.SortFunc(v.all[from:], inOrder)
			v.all = v.all[:from+min(v.topK, len(v.all)-from)]
		}
	}
	slices.SortFunc(v.all, inOrder)
	return v.all[:v.width]
}

// heap offers everything to a heap, and where one beam's share is limited first to a heap of its own.
func (v *rivals) heap(rows []selectorRow) []candidate {
	v.kept.reset(v.width)
	for i := range rows {
		r := &rows[i]
		into := &v.kept
		if v.topK < v.width {
			into = &v.heads
			into.reset(v.topK)
		}
		offerAll(into, r)
		if into == &v.heads {
			for _, c := range into.heap {
				v.kept.offer(c)
			}
		}
	}
	return v.kept.heap
}

// offerAll compares with the heap's worst in the loop itself, as a heap that wants to be fast would.
func offerAll(h *best, r *selectorRow) {
	worst := negInf
	offer := func(i int, x float32) {
		h.offer(candidate{r.continued(x), r.first + uint32(i), r.row})
		if h.full() {
			worst = h.heap[0].score
		}
	}
	if r.codes.short == nil {
		for i, x := range r.logits {
			if r.score+(float64(x)-r.norm) >= worst {
				offer(i, x)
			}
		}
		return
	}
	for i, c := range r.codes.short {
		if x := r.logits[c]; r.score+(float64(x)-r.norm) >= worst {
			offer(i, x)
		}
	}
}

// merge takes each beam's best topK, sorted, and merges the beams by a heap of their heads.
func (v *rivals) merge(rows []selectorRow) []candidate {
	if v.sorted == nil {
		v.sorted = make([][]candidate, len(rows))
	}
	for i := range rows {
		r := &rows[i]
		v.kept.reset(min(v.topK, v.width))
		offerAll(&v.kept, r)
		v.sorted[i] = append(v.sorted[i][:0], v.kept.heap...)
		slices.SortFunc(v.sorted[i], inOrder)
	}
	return v.mergeSorted()
}

func (v *rivals) mergeSorted() []candidate {
	v.at = append(v.at[:0], make([]int, len(v.sorted))...)
	v.heads.reset(len(v.sorted))
	head := func(row int32) candidate { // upside down: the heap has the best head first
		c := v.sorted[row][v.at[row]]
		return candidate{-c.score, ^c.node, c.row}
	}
	for row := range v.sorted {
		v.heads.offer(head(int32(row)))
	}
	v.all = v.all[:0]
	for h := &v.heads.heap; len(v.all) < v.width && len(*h) > 0; v.heads.down() {
		row := (*h)[0].row
		v.all = append(v.all, v.sorted[row][v.at[row]])
		if v.at[row]++; v.at[row] < len(v.sorted[row]) {
			(*h)[0] = head(row)
		} else if n := len(*h) - 1; n > 0 {
			(*h)[0], *h = (*h)[n], (*h)[:n]
		} else {
			break
		}
	}
	return v.all
}

// The rivals are timed only because they agree.
func TestRivalsAgree(t *testing.T) {
	var s selector
	for seed := range uint64(50) {
		r := rng(seed)
		s.reset(0, nil)
		first := uint32(0)
		for row := range 30 {
			x := make([]float32, 100)
			for i := range x {
				x[i] = drawLogit(r, kinds[seed%4])
			}
			codes, n := randomCodes(r, len(x))
			for codes.short == nil {
				codes, n = randomCodes(r, len(x))
			}
			if err := s.add(selectorRow{logits: x, codes: codes, n: n, first: first, row: int32(row)}); err != nil {
				t.Fatal(err)
			}
			first += uint32(n)
		}
		width := 1 + r.IntN(25)
		v := &rivals{width: width, topK: 1 + r.IntN(2*width)}
		want := bySorting(s.rows, v.width, v.topK)
		for name, way := range map[string]func([]selectorRow) []candidate{"sort": v.sort, "heap": v.heap, "merge": v.merge} {
			got := slices.Clone(way(s.rows))
			slices.SortFunc(got, inOrder)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: %s differs from sorting", seed, name)
			}
		}
	}
}
