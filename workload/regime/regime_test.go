package regime

import (
	"math"
	"slices"
	"testing"
)

func stream(t *testing.T, name string, seed uint64) (*Stream, Spec) {
	t.Helper()
	s, err := Named(name, seed)
	if err != nil {
		t.Fatal(err)
	}
	st, err := NewStream(s)
	if err != nil {
		t.Fatal(err)
	}
	return st, s
}

func TestSharesAndRatesHold(t *testing.T) {
	for _, name := range Names() {
		st, s := stream(t, name, 1)
		n, hot := make([]float64, len(s.Hot)), make([]float64, len(s.Hot))
		last := 0.0
		for r, ok := st.Next(); ok; r, ok = st.Next() {
			if r.At < last {
				t.Fatalf("%s: a request at %v after one at %v", name, r.At, last)
			}
			last = r.At
			e := min(int(r.At/EpochSeconds), len(n)-1)
			n[e]++
			if r.Hot {
				hot[e]++
			}
		}
		total, want := 0.0, 0.0
		for e := 2; e < len(n); e++ {
			if s.Hot[e] == s.Hot[e-1] && s.Hot[e-1] == s.Hot[e-2] && math.Abs(hot[e]/n[e]-s.Hot[e]) > 0.06 {
				t.Errorf("%s, epoch %d: hot share %.3f, want %.3f", name, e, hot[e]/n[e], s.Hot[e])
			}
			total += n[e]
			want += s.rate(s.Hot[e]) * EpochSeconds
		}
		if math.Abs(total/want-1) > 0.02 {
			t.Errorf("%s: %.0f requests, want about %.0f", name, total, want)
		}
	}
}

func TestSameSpecSameStream(t *testing.T) {
	a, _ := stream(t, "burst", 5)
	b, _ := stream(t, "burst", 5)
	other, _ := stream(t, "burst", 6)
	same := true
	for range 5000 {
		x, _ := a.Next()
		y, _ := b.Next()
		z, _ := other.Next()
		if x != y || !slices.Equal(a.AppendRows(nil, &x, 0), b.AppendRows(nil, &y, 0)) {
			t.Fatalf("%+v and %+v from the same seed", x, y)
		}
		same = same && x.Events == z.Events
	}
	if same {
		t.Error("another seed gives the same requests")
	}
}

func TestHistoriesNameTheSameItems(t *testing.T) {
	st, s := stream(t, "steady", 3)
	r, _ := st.Next()
	later := r
	later.Events += 2000
	later.number += 9
	own := r.Events * s.Tables / s.Grain
	a, b := st.AppendRows(nil, &r, 0), st.AppendRows(nil, &later, 0)
	if !slices.Equal(a[:own], b[:own]) {
		t.Error("a longer history looks up other rows for its old events")
	}
	if rest := st.AppendRows(nil, &later, r.Events); !slices.Equal(rest, b[own:]) {
		t.Error("the rows of new events are not the rest of all rows")
	}
}

// The share of the most popular tenth is that of the law.
func TestPopularity(t *testing.T) {
	st, s := stream(t, "steady", 3)
	const draws = 200_000
	top := 0
	for i := range uint64(draws) {
		g := st.grain(mix(i, 99))
		if g < 0 || int(g) >= s.Grains {
			t.Fatalf("grain %d of %d", g, s.Grains)
		}
		if int(g) < s.Grains/10 {
			top++
		}
	}
	mass := func(n float64) float64 { return (math.Pow(n+1, 1-s.Skew) - 1) / (1 - s.Skew) }
	want := mass(float64(s.Grains)/10) / mass(float64(s.Grains))
	if got := float64(top) / draws; math.Abs(got-want) > 0.01 {
		t.Errorf("the most popular tenth has %.3f of the look-ups, want %.3f", got, want)
	}
}

func TestSpecsThatMakeNoSense(t *testing.T) {
	if _, err := Named("calm", 1); err == nil {
		t.Error("an unknown name gave no error")
	}
	s, _ := Named("steady", 1)
	s.Hot[3] = 1
	if _, err := NewStream(s); err == nil {
		t.Error("a hot share of 1 gave no error")
	}
}

// What nodes are tuned on is theirs alone: other seeds, and courses of every kind.
func TestTrainingNodes(t *testing.T) {
	for seed := range uint64(10) {
		s := TrainingNode(seed)
		if err := s.Validate(); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		if slices.Contains(VerdictSeeds(), s.Seed) || s.GPUs != 8 {
			t.Errorf("seed %d: drawn from seed %d, %d GPUs", seed, s.Seed, s.GPUs)
		}
		if level := slices.Max(s.Hot) == slices.Min(s.Hot); level != (seed%5 == 0) {
			t.Errorf("seed %d: the hot share is %v to %v", seed, slices.Min(s.Hot), slices.Max(s.Hot))
		}
	}
}
