package eval

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// Differences, their errors and how many users they need, by hand: the differences of four users are 0.1, −0.1, 0.2
// and 0.
func TestDifferByHand(t *testing.T) {
	d := differ("NDCG@10", []float64{0.5, 0.5, 0.2, 0.3}, []float64{0.6, 0.4, 0.4, 0.3})
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-12 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near("reference", d.Reference, 0.375)
	near("value", d.Value, 0.425)
	near("difference", d.Difference, 0.05)
	variance := (0.05*0.05 + 0.15*0.15 + 0.15*0.15 + 0.05*0.05) / 3
	near("error", d.Error, math.Sqrt(variance/4))
	near("lower end", *d.Lower, (0.05-1.96*math.Sqrt(variance/4))/0.375)
	if d := differ("NDCG@10", []float64{0, 0}, []float64{0, 1}); d.Lower != nil {
		t.Errorf("the lower end is %v of nothing", *d.Lower)
	}
	if want := int(math.Ceil(variance * 1.96 * 1.96 / (0.0005 * 0.0005))); d.Needed != want {
		t.Errorf("%d users are needed, want %d", d.Needed, want)
	}
}

// What all scores of a list have in common is no noise, and what is not finds its way into it.
func TestNoiseAndTies(t *testing.T) {
	from := [][]float64{{1, 2, 3}, {5, 5, 7}, nil}
	to := [][]float64{{11, 12, 13}, {6, 4, 7}, nil}
	got, ok := noise(from, to)
	if want := math.Sqrt(2. / 4); !ok || math.Abs(got-want) > 1e-12 {
		t.Errorf("noise %v (%v), want %v", got, ok, want)
	}
	if _, ok := noise(from, nil); ok {
		t.Error("there is noise without scores")
	}
	if got := ties(from); got != 1 {
		t.Errorf("%d ties, want 1", got)
	}
}

// swapped is the oracle with the first two of each list in the wrong order.
type swapped struct{ oracle }

func (s swapped) Rank(ctx context.Context, r *grebev1.RankRequest) (*grebev1.RankResponse, error) {
	resp, err := s.oracle.Rank(ctx, r)
	resp.Results[0], resp.Results[1] = resp.Results[1], resp.Results[0]
	return resp, err
}

// A setup with the same answers is the same, one with others is not; setups of other questions cannot be compared.
func TestCompare(t *testing.T) {
	d := Shop(small(t), 30)
	o := oracle{map[string]*Question{}}
	for i := range d.Questions {
		o.questions[d.Questions[i].User] = &d.Questions[i]
	}
	run := func(d *Data, a Asker) *Report {
		r, err := Run(t.Context(), d, a, Options{Ways: []Way{{Name: "rank"}, {Name: "search", Generate: true}}, Bare: true})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	reference := run(d, o)
	c, err := Compare([]Setup{{"f32", reference}, {"again", run(d, o)}, {"swapped", run(d, swapped{o})}})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Lines) != 4 || !c.Expected {
		t.Fatalf("%d lines, expected %v; want 2 ways of 2 setups, in expectation", len(c.Lines), c.Expected)
	}
	for i := range c.Lines {
		l := &c.Lines[i]
		if want := l.Setup == "again" || l.Way == "search"; l.Same() != want || (l.Changed == 0) != want {
			t.Errorf("%s with %s: same %v, %d users changed, %+v", l.Way, l.Setup, l.Same(), l.Changed, l.Metrics)
		}
	}
	// One of all pairs of a list is in the other order.
	pairs := float64(len(d.Questions[0].Candidates) * (len(d.Questions[0].Candidates) - 1) / 2)
	for i := range c.Lines {
		l, want := &c.Lines[i], 1.0
		if l.Setup == "swapped" && l.Way == "rank" {
			want = 1 - 2/pairs
		}
		if l.Tau == nil || l.Tau.Lists != 30 || math.Abs(l.Tau.Mean-want) > 1e-12 {
			t.Errorf("%s with %s: τ is %+v, want %v", l.Way, l.Setup, l.Tau, want)
		}
	}
	// By hand: what the first user loses when the first two change places.
	q := &d.Questions[0]
	total := 0.0
	for _, p := range q.Probabilities {
		total += p
	}
	best := slices.SortedFunc(slices.Values(q.Probabilities), func(a, b float64) int { return int(math.Copysign(1, b-a)) })
	want := (best[0] - best[1]) / total * (1 - discount(2))
	if got := reference.models()[0].Each[0] - c.Reports[2].models()[0].Each[0]; math.Abs(got-want) > 1e-12 {
		t.Errorf("the first user loses %v of NDCG@10, want %v", got, want)
	}
	// The optimum of the whole catalog finds what its likeliest items are likely to be.
	likely := 0.0
	for _, b := range q.Best[:headline] {
		likely += b.P
	}
	if got := reference.models()[1].EachRecall[0]; math.Abs(got-likely) > 1e-12 {
		t.Errorf("expected Recall@10 of the whole catalog is %v, want %v", got, likely)
	}
	var text strings.Builder
	if err := c.Text(&text); err != nil || strings.Count(text.String(), "DIFFERENT") != 1 {
		t.Errorf("%v:\n%s", err, text.String())
	}
	if _, err := Compare([]Setup{{"f32", reference}, {"few", run(Shop(small(t), 5), o)}}); err == nil {
		t.Error("other questions were compared")
	}
}
