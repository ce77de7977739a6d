package rivals

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"grebe/evict"
	"grebe/evict/evicttest"
	"grebe/internal/scripttest"
)

var all = []string{LARUCost, Filtered, Blind}

func TestPolicies(t *testing.T) {
	for _, name := range all {
		if !slices.Contains(evict.Names(), name) || !evict.Predicts(name) {
			t.Errorf("%s is not known as a policy that follows predictions", name)
		}
		t.Run(name, func(t *testing.T) { evicttest.Policy(t, name) })
	}
}

// The hits of every policy on drawn traces are those in testdata/replays.txt.
func TestReplays(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("sums of floats are rounded in other ways on ", runtime.GOARCH)
	}
	scripttest.Golden(t, "testdata/replays.txt", evicttest.Replays(t, all))
}

// cache serves requests for entries of one byte.
type cache struct {
	evict.Policy
	slots map[uint64]evict.Slot
	free  []evict.Slot
}

func newCache(t *testing.T, policy string, slots int) *cache {
	t.Helper()
	p, err := evict.New(policy, evict.Config{Slots: slots, Bytes: int64(slots)})
	if err != nil {
		t.Fatal(err)
	}
	c := &cache{Policy: p, slots: map[uint64]evict.Slot{}}
	for s := range slots {
		c.free = append(c.free, evict.Slot(s))
	}
	return c
}

// request reports a hit, and the key that it evicts, if any.
func (c *cache) request(now int64, key uint64, returns int64) (hit bool, evicted []uint64) {
	a := evict.Access{Key: key, Bytes: 1, Now: now, Return: returns}
	if s, ok := c.slots[key]; ok {
		c.Hit(s, a)
		return true, nil
	}
	c.Miss(a)
	if len(c.free) == 0 {
		s, _ := c.Victim(nil)
		for k, at := range c.slots {
			if at == s {
				evicted = append(evicted, k)
				delete(c.slots, k)
			}
		}
		c.free = append(c.free, s)
	}
	s := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.slots[key] = s
	c.Insert(s, a)
	return false, evicted
}

// With perfect predictions blind has the offline optimum's hits, and laru-cost too if all entries save the same.
func TestPerfectPredictions(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 23))
	for range 200 {
		keys, k := make([]uint64, 300), 1+r.IntN(16)
		distinct := 3 + r.IntN(40)
		for i := range keys {
			keys[i] = uint64(min(r.IntN(distinct), r.IntN(distinct)))
		}
		next := evict.NextUses(keys)
		for _, name := range []string{Blind, LARUCost} {
			c, hits := newCache(t, name, k), 0
			for i, key := range keys {
				if hit, _ := c.request(int64(i), key, next[i]); hit {
					hits++
				}
			}
			if want := evict.Optimal(keys, k); hits != want {
				t.Fatalf("%s, cache of %d: %d hits, the optimum has %d", name, k, hits, want)
			}
		}
	}
}

// filtered looks at the four least recently used entries only; blind looks at all.
func TestCandidates(t *testing.T) {
	for name, want := range map[string]uint64{Filtered: 2, Blind: 5} {
		c := newCache(t, name, 6)
		for key, returns := range []int64{100, 200, 300, 250, 400, 900} {
			c.request(int64(key), uint64(key), returns)
		}
		if _, evicted := c.request(6, 77, 50); !slices.Equal(evicted, []uint64{want}) {
			t.Errorf("%s evicts %d, want %d", name, evicted, want)
		}
	}
}

// Entries that return at once are predicted to stay away, and the others to return. blind follows and loses all hits.
func TestBlindFollowsWrongPredictions(t *testing.T) {
	c, now := newCache(t, Blind, 10), int64(0)
	use := func(first, last uint64, returns int64) (hits int) {
		for key := first; key <= last; key++ {
			now++
			if hit, _ := c.request(now, key, returns); hit {
				hits++
			}
		}
		return hits
	}
	use(1, 5, 100_000)
	use(11, 60, 1)
	if hits := use(1, 5, 100_000); hits != 0 {
		t.Errorf("%d of 5 hit", hits)
	}
}

// A prediction that arrives after the request has the same effect as one that came with it.
func TestPredictLater(t *testing.T) {
	for _, name := range all {
		c := newCache(t, name, 3)
		for key := range uint64(3) {
			c.request(int64(key), key, 0)
		}
		for key, returns := range map[uint64]int64{0: 10, 1: 500, 2: 20} {
			c.Predict(c.slots[key], returns)
		}
		if _, evicted := c.request(4, 7, 0); !slices.Equal(evicted, []uint64{1}) {
			t.Errorf("%s evicts %d; 1 returns last", name, evicted)
		}
	}
}

// Among equal returns laru-cost keeps the entries that save more.
func TestCostOfEqualReturns(t *testing.T) {
	p, err := newLARUCost(evict.Config{Slots: 2, Bytes: 2})
	if err != nil {
		t.Fatal(err)
	}
	for s, cost := range []float64{9, 1} {
		a := evict.Access{Key: uint64(s), Bytes: 1, Now: int64(s), Return: 100, Cost: cost}
		p.Miss(a)
		p.Insert(evict.Slot(s), a)
	}
	p.Miss(evict.Access{Key: 5, Bytes: 1, Now: 3})
	if s, _ := p.Victim(nil); s != 1 {
		t.Fatalf("evicted slot %d, which saves nine times as much", s)
	}
}

// An entry that saves twice the mean per byte counts as if it returned in half the time, however its prediction
// arrives.
func TestCostStretchesReturns(t *testing.T) {
	var asked []evict.Slot
	p, err := newLARUCost(evict.Config{Slots: 4, Bytes: 4, Refresh: func(slots []evict.Slot, returns []int64) {
		asked = append(asked, slots...)
		for i := range returns {
			returns[i] = 1100
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	p.mean, p.n, p.now = 2, 1<<20, 100
	for _, c := range []struct {
		ret     int64
		density float64
		want    int64
	}{
		{200, 2, 200}, {200, 4, 150}, {200, 1, 300}, {101, 1000, 101}, {100, 4, 100}, {50, 4, 50}, {0, 4, 0},
		{evict.Never, 4, evict.Never}, {200, 0, 200}, {1 << 61, 1e-9, evict.Never},
	} {
		if got := p.stretch(c.ret, c.density); got != c.want {
			t.Errorf("a return at %d of density %v counts as %d, want %d", c.ret, c.density, got, c.want)
		}
	}
	for s, cost := range []float64{8, 2, 1, 0} { // the cost of the last is unknown: the mean applies
		a := evict.Access{Key: uint64(s), Bytes: 1, Now: 100, Return: 50, Cost: cost}
		p.Miss(a)
		p.Insert(evict.Slot(s), a)
	}
	p.Miss(evict.Access{Key: 9, Bytes: 1, Now: 1000})
	if s, ok := p.Victim(nil); !ok || s != 2 { // with the new prediction it is the farthest, because it saves least
		t.Errorf("slot %d goes, %v, want the one that saves least; asked for %v", s, ok, asked)
	}
	if len(asked) == 0 {
		t.Error("nothing was asked again, though all predictions had passed")
	}
	if d := p.density[3]; math.Abs(d-p.mean) > 0.1 {
		t.Errorf("what has no cost counts as %v, the mean is %v", d, p.mean)
	}
}
