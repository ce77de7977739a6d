package generate

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/model/modeltest"
)

type plainBeam struct {
	codes []int32
	score float64
}

// beams is constrained beam search written in the obvious way, with a width for each round.
func (s *site) beams(t *testing.T, widths []int) []plainBeam {
	beams := []plainBeam{{}}
	for l, width := range widths {
		var found []plainBeam
		for _, b := range beams {
			valid := map[int32]bool{}
			for _, it := range s.items {
				if slices.Equal(it.Codes[:l], b.codes) {
					valid[it.Codes[l]] = true
				}
			}
			logits, sum := s.logits(t, l, b.codes), 0.0
			for c := range valid {
				sum += math.Exp(float64(logits[c]))
			}
			for c := range valid {
				found = append(found, plainBeam{append(slices.Clone(b.codes), c), b.score + float64(logits[c]) - math.Log(sum)})
			}
		}
		slices.SortFunc(found, func(a, b plainBeam) int {
			return cmp.Or(cmp.Compare(b.score, a.score), slices.Compare(a.codes, b.codes))
		})
		beams = found[:min(width, len(found))]
	}
	return beams
}

// A round keeps the configured number of beams, or the request's if that is smaller.
func TestWidthsOfRounds(t *testing.T) {
	s := newSite(t, rand.New(rand.NewPCG(12, 12)), modeltest.Qwen3, 3, 150, true)
	for _, c := range []struct {
		config []int
		width  int
		rounds []int // what that means
	}{
		{nil, 6, []int{6, 6, 6}},
		{[]int{3, 7}, 12, []int{3, 7, 12}},
		{[]int{20, 4, 9}, 12, []int{12, 4, 9}},
		{[]int{1, 1, 5}, 5, []int{1, 1, 5}},
	} {
		s.Widths = c.config
		n := c.rounds[2]
		got := must(s.Recommend(t.Context(), &Request{UserID: "u", User: s.user, N: n, Width: c.width}))
		want := s.beams(t, c.rounds)
		if got.Paths != len(want) {
			t.Errorf("%v, width %d: %d paths, want %d", c.config, c.width, got.Paths, len(want))
			continue
		}
		at := map[string]float64{}
		for _, b := range want {
			at[key(b.codes)] = b.score
		}
		for i, it := range got.Items {
			if score, ok := at[key(it.Codes)]; !ok || math.Abs(score-it.Score) > 1e-4 ||
				i > 0 && it.Score > got.Items[i-1].Score {
				t.Errorf("%v, width %d: place %d is %v with %.6f, which the plain search has with %.6f (%v)", c.config, c.width, i,
					it.Codes, it.Score, score, ok)
			}
		}
	}
}

// If a search comes back short although more items are eligible, it is widened, if the request allows it.
func TestAShortSearchIsMadeWider(t *testing.T) {
	s := newSite(t, rand.New(rand.NewPCG(12, 12)), modeltest.Qwen3, 3, 150, true)
	s.Widths = []int{1, 1, 5}
	narrow := must(s.Recommend(t.Context(), &Request{UserID: "u", User: s.user, N: 60, Width: 5}))
	if !narrow.Short || !narrow.Beam {
		t.Fatalf("%d items, short %v, by the beam %v: the test tests nothing", len(narrow.Items), narrow.Short, narrow.Beam)
	}
	wide := must(s.Recommend(t.Context(), &Request{UserID: "u", User: s.user, N: 60, Width: 5, Widen: true}))
	if len(wide.Items) != 60 || wide.Short || wide.Beam || wide.Rows <= narrow.Rows {
		t.Errorf("made wider: %d items, short %v, %d rows", len(wide.Items), wide.Short, wide.Rows)
	}
	all := must(s.Recommend(t.Context(), &Request{UserID: "u", User: s.user, N: 10000, Width: 5, Widen: true}))
	if !all.Short || all.Beam || len(all.Items) != s.Snapshot().Len() {
		t.Errorf("all items: %d of %d, short %v, by the beam %v", len(all.Items), s.Snapshot().Len(), all.Short, all.Beam)
	}
}
