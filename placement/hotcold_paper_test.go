package placement

import (
	"math"
	"math/rand/v2"
	"sort"
	"testing"
)

// bat4 follows the lines of BAT's Algorithm 1 and returns the replication ratio r. Frequencies sum to 1.
func bat4(B float64, F []float64, alpha, t float64, tauI float64, c, N int) float64 {
	Tmax := alpha * t                                                   // line 5
	Sitem := tauI                                                       // line 6
	Rmax := Tmax * B * float64(N-1) / (float64(c) * Sitem * float64(N)) // line 7
	F = append([]float64(nil), F...)                                    //
	sort.Sort(sort.Reverse(sort.Float64Slice(F)))                       // line 8
	cdf := 0.0                                                          // line 9
	for i := 1; i <= len(F); i++ {                                      // line 10
		cdf += F[i-1]      // line 11
		if cdf >= 1-Rmax { // line 12
			return float64(i) / float64(len(F)) // line 13
		}
	}
	return 1
}

// BAT-4: the hot set is that of Algorithm 1, it has the hottest items, and the rest is placed as by hash.
func TestHotColdFollowsAlgorithm1(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		n := 1 + r.IntN(2000)
		uses := make([]float64, n)
		skew := 0.2 + 1.5*r.Float64()
		var total float64
		for k, i := range r.Perm(n) {
			uses[i] = math.Round(1e6 * math.Pow(float64(k+1), -skew)) // integers: ties, and zeros at the end
			total += uses[i]
		}
		F := make([]float64, n)
		for i := range F {
			F[i] = uses[i] / total
		}
		tr := Traffic{Alpha: r.Float64(), Prefill: 0.2 * r.Float64(), Bandwidth: 1e5 * r.Float64(),
			Candidates: 1 + r.IntN(100),
			ItemTokens: 1 + 30*r.Float64(), Nodes: 1 + r.IntN(32)}
		if err := tr.Validate(); err != nil {
			t.Fatal(err)
		}
		c := Config{Members: Members(tr.Nodes), Items: n}
		m, err := HotCold(c, uses, tr.Printed())
		if err != nil {
			t.Fatal(err)
		}
		ratio := bat4(tr.Bandwidth, F, tr.Alpha, tr.Prefill, tr.ItemTokens, tr.Candidates, tr.Nodes)
		hot := 0
		least, most := math.Inf(1), 0.0 // uses of hot and of cold items
		plain := hash(t, c)
		for i := range int32(n) {
			owner, second, all := m.Place(i)
			if all {
				hot++
				least = min(least, uses[i])
			} else {
				most = max(most, uses[i])
			}
			if o, s, _ := plain.Place(i); o != owner || s != second {
				t.Fatalf("item %d is at %d and %d, by hash %d and %d", i, owner, second, o, s)
			}
		}
		if hot != int(math.Round(ratio*float64(n))) {
			t.Fatalf("%d of %d items are hot, Algorithm 1 says %v (%+v)", hot, n, ratio*float64(n), tr)
		}
		if most > least {
			t.Fatalf("an item with %v uses is cold, one with %v is hot", most, least)
		}
	}
}

// With the corrected R, remote traffic is what the network may carry: R·c·S·(N−1)/N tokens in α·t seconds.
func TestCorrectedTrafficFillsTheNetwork(t *testing.T) {
	tr := Traffic{Alpha: 0.5, Prefill: 0.02, Bandwidth: 1e4, Candidates: 100, ItemTokens: 10, Nodes: 4}
	for _, c := range []struct{ r, want float64 }{{tr.Corrected(), 1}, {tr.Printed(), 9. / 16}} {
		sent := c.r * 100 * 10 * 3 / 4
		if got := sent / (tr.Alpha * tr.Prefill * tr.Bandwidth); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("R = %v uses %v of the network, want %v", c.r, got, c.want)
		}
	}
	tr.Bandwidth = 1e9
	if tr.Printed() != 1 || tr.Corrected() != 1 {
		t.Errorf("R = %v and %v on a fast network, want 1", tr.Printed(), tr.Corrected())
	}
	tr.Nodes = 1
	if tr.Corrected() != 1 || tr.Printed() != 0 {
		t.Errorf("one node: %v and %v", tr.Corrected(), tr.Printed())
	}
}

// The hot set is published again only when more than 2 % of its mass changed.
func TestRefresh(t *testing.T) {
	uses := make([]float64, 1000)
	for i := range uses {
		uses[i] = 1
		if i < 100 {
			uses[i] = 1000
		}
	}
	m, err := HotCold(Config{Epoch: 4, Members: Members(4), Items: 1000}, uses, 0.01)
	if err != nil {
		t.Fatal(err)
	}
	swap := func(n int) []float64 {
		out := append([]float64(nil), uses...)
		for i := range n {
			out[i], out[500+i] = out[500+i], out[i]
		}
		return out
	}
	for n, want := range map[int]bool{0: false, 2: false, 3: true, 50: true} {
		next, is, err := m.Refresh(swap(n), 0.01)
		if err != nil || is != want || is != (next != m) || is && next.Epoch != 5 {
			t.Errorf("%d of 100 hot items changed: published %v as epoch %d, error %v", n, is, next.Epoch, err)
		}
		if _, _, hot := next.Place(500); hot != (n >= 3) {
			t.Errorf("%d changed: item 500 hot is %v", n, hot)
		}
	}
	// A smaller set is published too: its items would take memory for nothing.
	if _, is, _ := m.Refresh(uses, 0.5); !is {
		t.Error("half of the hot set left, and it was not published")
	}
	if next, is, err := m.Refresh(append(swap(50), 5000), 0.01); err != nil || !is || next.Items() != 1001 {
		t.Errorf("a larger catalog: %v, published %v", err, is)
	}
	if _, _, err := m.Refresh(uses[:10], 0.01); err == nil {
		t.Error("a smaller catalog was accepted")
	}
}

func TestHotColdRefuses(t *testing.T) {
	c := Config{Members: Members(2), Items: 2}
	for _, remote := range []float64{-0.1, 1.1, math.NaN()} {
		if _, err := HotCold(c, []float64{1, 2}, remote); err == nil {
			t.Errorf("remote share %v was accepted", remote)
		}
	}
	for _, uses := range [][]float64{{1}, {1, -1}, {1, math.NaN()}, {1, math.Inf(1)}} {
		if _, err := HotCold(c, uses, 0.5); err == nil {
			t.Errorf("uses %v were accepted", uses)
		}
	}
	if m, err := HotCold(c, []float64{0, 0}, 0.5); err != nil || m.everywhere(0) {
		t.Errorf("without uses nothing is hot: %v", err)
	}
}
