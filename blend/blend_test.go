package blend

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"grebe/plan"
)

func TestChooseByHand(t *testing.T) {
	const own, block, proto = plan.Computed, plan.Block, plan.Prototype
	from := []plan.Source{own, block, block, block, block, proto, proto, own, block}
	score := []float32{0, 1, 4, 4, 2, 7, 9, 0, 3}
	var c Chooser
	for _, x := range []struct {
		b    Budget
		want []int32
	}{
		{Budget{}, []int32{10, 17}},
		{Budget{Items: 0.4, History: 0.5}, []int32{10, 12, 13, 16, 17}},
		{Budget{Items: 0.01}, []int32{10, 12, 17}},
		{Budget{Window: 3}, []int32{10, 16, 17, 18}},
		{Budget{Items: 0.25, Window: 1}, []int32{10, 12, 17, 18}},
		{Budget{Items: 1, History: 1}, []int32{10, 11, 12, 13, 14, 15, 16, 17, 18}},
	} {
		if got := c.Choose(nil, 10, from, score, x.b); !slices.Equal(got, x.want) {
			t.Errorf("%+v: rows %v, want %v", x.b, got, x.want)
		}
	}
}

// Choose against what it means, token by token.
func TestChooseAgainstDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 60).Draw(t, "tokens")
		from, score := make([]plan.Source, n), make([]float32, n)
		count := [plan.NumSources]int{}
		b := Budget{
			Items: rapid.Float64Range(0, 1).Draw(t, "items"), History: rapid.Float64Range(0, 1).Draw(t, "history"),
			Window: rapid.IntRange(0, 70).Draw(t, "window"),
		}
		for i := range from {
			from[i] = plan.Source(rapid.IntRange(0, int(plan.NumSources)-1).Draw(t, "source"))
			score[i] = float32(rapid.IntRange(0, 6).Draw(t, "score"))
			if score[i] == 6 {
				score[i] = float32(math.NaN())
			}
			if i < n-b.Window {
				count[from[i]]++
			}
		}
		var c Chooser
		got := c.Choose(nil, 0, from, score, b)
		if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Fatalf("rows %v are not ascending, each once", got)
		}
		for i := range from {
			higher := 0 // tokens of the same source that go before
			for j := range from {
				if j < n-b.Window && from[j] == from[i] && (rank(score[j]) > rank(score[i]) ||
					rank(score[j]) == rank(score[i]) && j < i) {
					higher++
				}
			}
			share := map[plan.Source]float64{plan.Block: b.Items, plan.Prototype: b.History}[from[i]]
			want := !from[i].Rotated() || i >= n-b.Window || float64(higher) < math.Ceil(share*float64(count[from[i]])-1e-9)
			if slices.Contains(got, int32(i)) != want {
				t.Fatalf("token %d of %v with scores %v and %+v: chosen %v, want %v", i, from, score, b, !want, want)
			}
		}
		rounded(t, from, score, b, got)
	})
}

// rounded checks what is added to all, or left out: the highest scores of the others, earlier tokens first, or the
// lowest, later ones first; never what has to be computed, nor of a source whose share is 0 or 1.
func rounded(t *rapid.T, from []plan.Source, score []float32, b Budget, all []int32) {
	between := func(i int) bool {
		n := 0
		for k, s := range from {
			if s == from[i] && k < len(from)-b.Window {
				n++
			}
		}
		share := map[plan.Source]float64{plan.Block: b.Items, plan.Prototype: b.History}[from[i]]
		chosen := int(math.Ceil(share*float64(n) - 1e-9))
		return from[i].Rotated() && i < len(from)-b.Window && chosen > 0 && chosen < n
	}
	var must, optional, spare []int32
	for i := range from {
		switch yes := slices.Contains(all, int32(i)); {
		case between(i) && yes:
			optional = append(optional, int32(i))
		case between(i):
			spare = append(spare, int32(i))
		case yes:
			must = append(must, int32(i))
		}
	}
	if a, o, s := Count(from, b); a != len(all) || o != len(optional) || s != len(spare) {
		t.Fatalf("counted %d with %d optional and %d to spare, there are %d, %d and %d", a, o, s, len(all), len(optional),
			len(spare))
	}
	for _, of := range [][]int32{optional, spare} {
		slices.SortStableFunc(of, func(i, j int32) int { return cmp.Compare(rank(score[j]), rank(score[i])) })
	}
	n := rapid.IntRange(-len(optional)-1, len(spare)+1).Draw(t, "more")
	want := append(must, optional[:max(0, len(optional)+min(0, n))]...)
	want = append(want, spare[:min(max(0, n), len(spare))]...)
	slices.Sort(want)
	var c Chooser
	if got := c.ChooseRounded(nil, 0, from, score, b, n); !slices.Equal(got, want) {
		t.Fatalf("%d more of %v with scores %v and %+v: %v, want %v", n, from, score, b, got, want)
	}
}

// Rows become the nearest multiple where that changes few.
func TestRound(t *testing.T) {
	for _, x := range []struct{ all, optional, spare, multiple, want int }{
		{688, 668, 1000, 128, -48}, {619, 599, 1000, 128, 21}, {640, 620, 1000, 128, 0}, {688, 668, 1000, 1, 0},
		{688, 668, 1000, 0, 0},
		{100, 90, 1000, 128, 0},
		{688, 479, 1000, 128, 0}, {688, 480, 1000, 128, -48}, {619, 599, 20, 128, 0}, {122, 90, 1000, 128, 6},
		{713, 713, 10, 128, 0},
		{713, 730, 10, 128, -73}, {713, 730, 55, 128, 55},
	} {
		if got := Round(x.all, x.optional, x.spare, x.multiple); got != x.want {
			t.Errorf("of %d rows, %d of them optional, %d to spare, in multiples of %d: %+d, want %+d", x.all, x.optional,
				x.spare, x.multiple,
				got, x.want)
		}
	}
}

// A long list is selected from as a sort would.
func TestLowest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		keys := make([]uint64, 1+r.IntN(3000))
		for i := range keys {
			keys[i] = key(float32(r.IntN(500)), i)
		}
		n := r.IntN(len(keys) + 1)
		want := slices.Sorted(slices.Values(keys))[:n]
		lowest(keys, n)
		got := keys[:n]
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Fatalf("the %d lowest of %d keys are others", n, len(keys))
		}
	}
}

func TestScores(t *testing.T) {
	score := make([]float32, 4)
	ByAttention(score, []float32{4, 3, 2, 1}, nil, 1)
	if !slices.Equal(score, []float32{1, 1, 1, 1}) {
		t.Errorf("attention that every row gives alike is scored %v", score)
	}
	ByAttention(score, []float32{4, 3, 2, 1}, []float32{0, 0.5, 0, 0}, 2)
	if !slices.Equal(score, []float32{1, 2, 1, 1}) {
		t.Errorf("with drift %v", score)
	}
	from := []plan.Source{plan.Computed, plan.Block, plan.Block, plan.Block}
	score = []float32{8, 1, 2, 1}
	AddDeviation(score, []float32{0, 3, 0, 1}, from)
	if !slices.Equal(score, []float32{2, 1, 0.5, 0.5}) {
		t.Errorf("with deviation %v", score)
	}
	score = []float32{8, 1, 2, 1}
	if AddDeviation(score, make([]float32, 4), from); !slices.Equal(score, []float32{8, 1, 2, 1}) {
		t.Errorf("where nothing deviates, attention alone is scored %v", score)
	}
	ByPlace(score, []plan.Source{plan.Computed, plan.Block, plan.Block, plan.Block}, []bool{false, true, false, true})
	if !slices.Equal(score, []float32{0, 0, -1, 0}) {
		t.Errorf("by place %v", score)
	}
	for _, b := range []Budget{{Items: -0.1}, {History: 1.1}, {Items: math.NaN()}, {Window: -1}} {
		if b.Check() == nil {
			t.Errorf("%+v is taken", b)
		}
	}
}
