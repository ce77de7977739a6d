package eval

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// Kendall's τ equals the plain count over all pairs, for random orders of all small lengths.
func TestKendallEqualsAllPairs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := 2; n < 40; n++ {
		from, to := make([]string, n), make([]string, n)
		a, b := rng.Perm(n), rng.Perm(n)
		for i := range n {
			from[a[i]], to[b[i]] = fmt.Sprint(i), fmt.Sprint(i) // item i is at a[i] and b[i]
		}
		sum := 0
		for i := range n {
			for j := range i {
				if (a[i] < a[j]) == (b[i] < b[j]) {
					sum++
				} else {
					sum--
				}
			}
		}
		want := float64(sum) / float64(n*(n-1)/2)
		if got, ok := kendall(from, to); !ok || math.Abs(got-want) > 1e-12 {
			t.Errorf("%d items: τ is %v (%v), want %v", n, got, ok, want)
		}
	}
}

func TestKendallRefusesOtherItems(t *testing.T) {
	for _, c := range [][2][]string{
		{{"a"}, {"a"}},
		{{"a", "b"}, {"a", "c"}},
		{{"a", "b"}, {"a", "b", "c"}},
		{{"a", "a"}, {"a", "a"}},
		{{"a", "b"}, {"a", "a"}},
	} {
		if got, ok := kendall(c[0], c[1]); ok {
			t.Errorf("%v and %v have τ %v", c[0], c[1], got)
		}
	}
}

// By hand: one list is the same (1), one has two of three pairs in the other order (−1/3), one has no answer.
func TestAgreement(t *testing.T) {
	from := [][]string{{"a", "b", "c"}, {"a", "b", "c"}, {"a", "b"}}
	to := [][]string{{"a", "b", "c"}, {"c", "a", "b"}, nil}
	got := agreement(from, to)
	if got == nil || got.Lists != 2 || math.Abs(got.Mean-1./3) > 1e-12 || math.Abs(got.Error-2./3) > 1e-12 {
		t.Errorf("agreement is %+v, want 1/3 ± 2/3 of two lists", got)
	}
	if got := agreement(from, nil); got != nil {
		t.Errorf("agreement without lists is %+v", got)
	}
	if got := agreement([][]string{{"a", "b"}}, [][]string{{"a", "c"}}); got != nil {
		t.Errorf("agreement of searches with other items is %+v", got)
	}
}
