package placement

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func hash(t testing.TB, c Config) *Map {
	t.Helper()
	m, err := Hash(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// weighted returns n members with random weights; some are 0.
func weighted(r *rand.Rand, n int) []Member {
	out := Members(n)
	for i := range out {
		out[i].Weight = float64(r.IntN(4))
	}
	out[r.IntN(n)].Weight = 1
	return out
}

// Owners by rendezvous are those of a plain sort of all scores.
func TestRendezvousAgainstSort(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		c := Config{Members: weighted(r, 1+r.IntN(12))}
		m := hash(t, c)
		for p, got := range m.parts {
			scores := map[int]float64{}
			best := func() int {
				at := -1
				for i := range c.Members {
					if s, ok := scores[i]; ok && (at < 0 || s > scores[at]) {
						at = i
					}
				}
				return at
			}
			for i, x := range c.Members {
				if x.Weight > 0 {
					scores[i] = score(p, named(x.Name), x.Weight)
				}
			}
			owner := best()
			delete(scores, owner)
			second := best()
			if second < 0 {
				second = owner
			}
			if want := (part{uint16(owner), uint16(second)}); got != want {
				t.Fatalf("micro-part %d of %+v is at %v, want %v", p, c.Members, got, want)
			}
		}
	}
}

// Shares of the items follow the weights: 64 micro-parts per node give each its share to a quarter or so.
func TestHashBalance(t *testing.T) {
	c := Config{Members: Members(16), Items: 200_000}
	c.Members[3].Weight, c.Members[5].Weight = 3, 0
	m := hash(t, c)
	owned := make([]float64, m.Nodes())
	for i := range int32(c.Items) {
		owner, second, all := m.Place(i)
		if all || owner == second || owner == 5 || second == 5 {
			t.Fatalf("item %d: owner %d, second %d, everywhere %v", i, owner, second, all)
		}
		owned[owner]++
	}
	for i, n := range owned {
		want := c.Members[i].Weight / 17 * float64(c.Items)
		if d := math.Abs(n - want); d > 0.5*want {
			t.Errorf("node %d has %.0f items, want about %.0f", i, n, want)
		}
	}
}

// One member more or less moves about 1/N, and only what that member gets or had. Second owners take over.
func TestMembershipMovesLittle(t *testing.T) {
	const n, items = 16, 100_000
	c := Config{Epoch: 7, Members: Members(n), Items: items}
	m := hash(t, c)
	gone := append([]Member(nil), c.Members...)
	gone[4].Weight = 0
	more := append(append([]Member(nil), c.Members...), Member{Name: "new", Weight: 1})
	for name, members := range map[string][]Member{"less": gone, "more": more} {
		next, err := m.Change(members)
		if err != nil {
			t.Fatal(err)
		}
		if next.Epoch != 8 || next.Parts() != m.Parts() {
			t.Errorf("%s: epoch %d and %d micro-parts, want 8 and %d", name, next.Epoch, next.Parts(), m.Parts())
		}
		moves, bytes := Moves(m, next, func(int32) int64 { return 10 })
		moved := 0
		for _, x := range moves {
			moved += x.Items
			if name == "less" && x.From != 4 || name == "more" && x.To != n {
				t.Errorf("%s: %+v", name, x)
			}
		}
		if share := float64(moved) / items; share < 0.5/n || share > 1.6/n {
			t.Errorf("%s: %.3f of the items moved, want about %.3f", name, share, 1./n)
		}
		if bytes != int64(moved)*10 {
			t.Errorf("%s: %d bytes for %d items", name, bytes, moved)
		}
		for i := range int32(items) {
			was, second, _ := m.Place(i)
			if is, _, _ := next.Place(i); name == "less" && was == 4 && is != second {
				t.Fatalf("item %d went to %d, its second owner is %d", i, is, second)
			}
		}
	}
}

func TestReplicate(t *testing.T) {
	c := Config{Members: Members(5), Items: 100}
	full, err := Replicate(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int32{0, 99, 100, math.MaxInt32} {
		if _, _, all := full.Place(i); !all {
			t.Errorf("item %d is not everywhere", i)
		}
	}
	if _, bytes := Moves(hash(t, c), full, func(int32) int64 { return 1 }); bytes != 4*100 {
		t.Errorf("%d copies, want 400", bytes)
	}
	if moves, bytes := Moves(full, hash(t, c), func(int32) int64 { return 1 }); len(moves) != 0 || bytes != 0 {
		t.Errorf("dropping copies moves %v", moves)
	}
}

func TestPlaceDoesNotAllocate(t *testing.T) {
	m := hash(t, Config{Members: Members(16)})
	item := int32(0)
	if n := testing.AllocsPerRun(1000, func() { item++; m.Place(item) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestBadConfig(t *testing.T) {
	for want, c := range map[string]Config{
		"no members":       {},
		"at most":          {Members: Members(2000)},
		"weight above 0":   {Members: []Member{{Name: "a"}}},
		"weight NaN":       {Members: []Member{{Name: "a", Weight: math.NaN()}}},
		"weight -1":        {Members: []Member{{Name: "a", Weight: -1}}},
		"name of 0 bytes":  {Members: []Member{{Weight: 1}}},
		"two members":      {Members: []Member{{"a", 1}, {"a", 1}}},
		"-1 items":         {Members: Members(1), Items: -1},
		"70000 micro-part": {Members: Members(1), Parts: 70000},
	} {
		if _, err := Hash(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func BenchmarkPlace(b *testing.B) {
	m := hash(b, Config{Members: Members(16)})
	for i := range b.N {
		m.Place(int32(i))
	}
}
