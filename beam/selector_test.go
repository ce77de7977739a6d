package beam

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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
			t.Fatalf("seed %d, %s, width %d, top_k %d: got %d\n%v\nwant %d\n%v", seed, kind, width, topK, len(got), got,
				len(want), want)
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
	if err := s.add(selectorRow{logits: []float32{float32(math.NaN()), 1}, codes: Codes{short: []uint16{1}},
		n: 1}); err != nil {
		t.Error(err)
	}
}
