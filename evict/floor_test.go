package evict

import (
	"math"
	"math/rand/v2"
	"testing"
)

// checkFloor fails if the stated bound does not hold at this moment.
func checkFloor(t *testing.T, what string, p *Floor, lruHits int64) {
	t.Helper()
	s := p.Stats()
	if s.LRUHits != lruHits {
		t.Fatalf("%s: the shadow hit %d bytes, LRU %d", what, s.LRUHits, lruHits)
	}
	if most := p.cfg.Lend * float64(p.capacity); float64(s.Lent) > max(most, 0) {
		t.Fatalf("%s: %d bytes were lent, at most %.0f may be", what, s.Lent, most)
	}
	if most := p.cfg.Credit * float64(p.capacity); p.given > most+1e-9 {
		t.Fatalf("%s: b is %.3f, at most %.3f", what, p.given, most)
	}
	b := p.given + float64(s.Lent)
	if limit := float64(s.LRUMisses) + p.cfg.Loss*float64(s.LRUHits) + b; float64(s.Misses+s.Away) > limit+1e-6 {
		t.Fatalf("%s: missed %d and away %d, the bound is %.2f", what, s.Misses, s.Away, limit)
	}
	if s.Forced != 0 {
		t.Fatalf("%s: %d bytes were evicted by force though nothing was pinned", what, s.Forced)
	}
}

// Whatever the predictions, hits ≥ (1−ε)·(LRU's hits) − b, and the shadow is LRU.
func TestFloorHoldsUnderAdversaries(t *testing.T) {
	for name, adversary := range adversaries {
		r := rand.New(rand.NewPCG(8, 8))
		for range 300 {
			keys, k := randomTrace(r, 100+r.IntN(600), 3+r.IntN(60)), 1+r.IntN(24)
			cfg := FloorConfig{Loss: []float64{0.001, 0.01, 0.1}[r.IntN(3)], Credit: []float64{0.05, 0.5, 2}[r.IntN(3)],
				Lend: []float64{-1, 0.2, 1}[r.IntN(3)]}
			p := NewFloor(Config{Slots: k, Bytes: int64(k)}, cfg)
			hits := replay(t, p, keys, k, adversary(r, NextUses(keys)))
			checkFloor(t, name, p, int64(replay(t, make1(t, "lru", k), keys, k, nil)))
			if int64(hits) != p.Stats().Hits {
				t.Fatalf("%s: counted %d hits, had %d", name, p.Stats().Hits, hits)
			}
		}
	}
}

// drifting draws a key from a popularity that moves on, so that a cache which keeps the entries it has gains nothing.
func drifting(r *rand.Rand, i int) uint64 { return uint64(i/16) + uint64(r.ExpFloat64()*400) }

// wholeCache reports whether the bytes lent and b together are the whole cache of 200, neither more nor less. b has
// grown to five entries: a thousandth of the first 5,000 requests.
func wholeCache(p *Floor) bool {
	const k, b = 200, startRequests / 1000
	return p.capacity == k && p.follower.lent == k-b && math.Abs(p.given-b) < 1e-9
}

// Predictions that gain nothing in the simulation are lent nothing: reversed ones cost ε of LRU's hits and b, not
// more. Good ones are lent the whole cache.
func TestLentOnlyToWhatEarns(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 15))
	keys, k := make([]uint64, 40000), 200
	for i := range keys {
		keys[i] = uint64(r.ExpFloat64() * 400)
	}
	next := NextUses(keys)
	lru := replay(t, make1(t, "lru", k), keys, k, nil)
	for name, ret := range map[string]func(int) int64{
		"reversed": adversaries["nearest first"](r, next), "random": adversaries["random"](r, next),
		"perfect": func(i int) int64 { return next[i] },
	} {
		p := NewFloor(Config{Slots: k, Bytes: int64(k)}, FloorConfig{})
		hits := replay(t, p, keys, k, ret)
		checkFloor(t, name, p, int64(lru))
		lent := p.Stats().Lent
		if name == "perfect" && !wholeCache(p) {
			t.Errorf("perfect predictions: %d lent and b is %v, want together the whole cache of %d", p.follower.lent, p.given,
				k)
		}
		if name != "perfect" && (lent > lendTimes*int64(k/10) || float64(hits) < .99*float64(lru)) {
			t.Errorf("%s predictions: %d lent, %d hits to LRU's %d", name, lent, hits, lru)
		}
	}
}

// Losses of bad predictions do not prevent loans to later good ones: nine tenths of the trace are reversed, then
// perfect.
func TestLentToWhatHasBecomeGood(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 17))
	keys, k := make([]uint64, 40000), 200
	for i := range keys {
		keys[i] = uint64(r.ExpFloat64() * 400)
	}
	next := NextUses(keys)
	bad := adversaries["nearest first"](r, next)
	p := NewFloor(Config{Slots: k, Bytes: int64(k)}, FloorConfig{})
	replay(t, p, keys, k, func(i int) int64 {
		if i < len(keys)*9/10 {
			return bad(i)
		}
		return next[i]
	})
	checkFloor(t, "bad, then perfect", p, int64(replay(t, make1(t, "lru", k), keys, k, nil)))
	lead, lent := p.follower.was.predicted-p.follower.was.lru, p.follower.lent
	if lead >= 0 || !wholeCache(p) {
		t.Errorf("a follower that is %d ahead in all is lent %d beside b of %v, want one behind and the whole cache of %d",
			lead, lent, p.given, k)
	}
}

// Credit that good predictions earned is not spent when they turn bad: of the credit for two caches, less than half a
// cache is lost.
func TestWrongPredictionsAreLeft(t *testing.T) {
	r := rand.New(rand.NewPCG(16, 16))
	keys, k := make([]uint64, 60000), 200
	for i := range keys {
		keys[i] = uint64(r.ExpFloat64() * 400)
	}
	next := NextUses(keys)
	bad := adversaries["nearest first"](r, next)
	p := NewFloor(Config{Slots: k, Bytes: int64(k)}, FloorConfig{})
	lead := int64(0)
	replay(t, p, keys, k, func(i int) int64 {
		s := p.Stats()
		if i < len(keys)*9/10 {
			lead = s.Hits - s.LRUHits
			return next[i]
		}
		return bad(i)
	})
	s := p.Stats()
	if lead < int64(2*k) || s.Hits-s.LRUHits < lead-int64(k/2) {
		t.Errorf("good predictions were %d hits ahead of LRU, and after as many bad ones %d, of a cache of %d", lead,
			s.Hits-s.LRUHits, k)
	}
}

// With enough credit perfect predictions give the optimum.
func TestFloorConsistency(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	for range 2000 {
		keys, k := randomTrace(r, 50+r.IntN(400), 3+r.IntN(40)), 1+r.IntN(16)
		next := NextUses(keys)
		p := NewFloor(Config{Slots: k, Bytes: int64(k)}, FloorConfig{Loss: 1e-9, Credit: 2, Cap: 2})
		if got, want := replay(t, p, keys, k, func(i int) int64 { return next[i] }), Optimal(keys, k); got != want {
			t.Fatalf("cache of %d, %d requests: %d hits with perfect predictions, the optimum has %d", k, len(keys), got, want)
		}
	}
}

// sized is a cache of entries of different sizes. It returns hit and missed bytes.
type sized struct {
	p        Policy
	capacity int64
	slotOf   map[uint64]Slot
	keyOf    []uint64
	free     []Slot
	used     int64
}

func newSized(p Policy, slots int, capacity int64) *sized {
	c := &sized{p: p, capacity: capacity, slotOf: map[uint64]Slot{}, keyOf: make([]uint64, slots)}
	for s := range Slot(slots) {
		c.free = append(c.free, s)
	}
	return c
}

func (c *sized) request(t *testing.T, a Access, size func(uint64) int64) (hit bool) {
	t.Helper()
	if s, ok := c.slotOf[a.Key]; ok {
		c.p.Hit(s, a)
		return true
	}
	c.p.Miss(a)
	for c.used+a.Bytes > c.capacity || len(c.free) == 0 {
		s, ok := c.p.Victim(nil)
		if !ok {
			t.Fatalf("no victim with %d of %d bytes used", c.used, c.capacity)
		}
		c.used -= size(c.keyOf[s])
		delete(c.slotOf, c.keyOf[s])
		c.free = append(c.free, s)
	}
	s := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.slotOf[a.Key], c.keyOf[s] = s, a.Key
	c.used += a.Bytes
	c.p.Insert(s, a)
	return false
}

// Entries of different sizes: the default's bound holds in bytes, at every moment.
func TestFloorHoldsInBytes(t *testing.T) {
	for name, adversary := range adversaries {
		r := rand.New(rand.NewPCG(10, 10))
		for range 100 {
			keys, capacity, slots := randomTrace(r, 500, 5+r.IntN(60)), 20+r.Int64N(200), 4+r.IntN(40)
			size := func(k uint64) int64 { return 1 + int64(k*2654435761%19) }
			ret := adversary(r, NextUses(keys))
			c := Config{Slots: slots, Bytes: capacity}
			p := NewFloor(c, FloorConfig{})
			ours, plain := newSized(p, slots, capacity), newSized(newLRU(c), slots, capacity)
			lruHits := int64(0)
			for i, k := range keys {
				a := Access{Key: k, Bytes: size(k), Now: int64(i), Return: ret(i)}
				ours.request(t, a, size)
				if plain.request(t, a, size) {
					lruHits += a.Bytes
				}
				checkFloor(t, name, p, lruHits)
			}
		}
	}
}

// Entries of different sizes: the part of Theorem 1 that LARU's doc comment states.
func TestLARUInBytes(t *testing.T) {
	size := func(k uint64) int64 { return 1 + int64(k*2654435761%19) }
	const largest = 19
	for name, adversary := range adversaries {
		r := rand.New(rand.NewPCG(11, 11))
		for range 200 {
			keys, capacity := randomTrace(r, 400, 5+r.IntN(60)), 20+r.Int64N(200)
			ret := adversary(r, NextUses(keys))
			c := newSized(newLARU(Config{Slots: 256, Bytes: capacity}), 256, capacity)
			seen, distinctBytes, missed := map[uint64]bool{}, int64(0), int64(0)
			check := func() {
				if bound := 2*capacity + int64(len(seen))*largest; missed >= bound {
					t.Fatalf("%s: a phase of %d entries missed %d bytes, the bound is %d", name, len(seen), missed, bound)
				}
			}
			for i, k := range keys {
				if !seen[k] && distinctBytes+size(k) > capacity {
					check()
					clear(seen)
					distinctBytes, missed = 0, 0
				}
				if !seen[k] {
					seen[k] = true
					distinctBytes += size(k)
				}
				if !c.request(t, Access{Key: k, Bytes: size(k), Now: int64(i), Return: ret(i)}, size) {
					missed += size(k)
				}
			}
			check()
		}
	}
}

// farthest evicts the farthest predicted return.
type farthest struct{ Predicted }

func (p *farthest) Victim(evictable func(Slot) bool) (Slot, bool) {
	return p.TakeFarthest(math.MaxInt, evictable)
}

// With perfect predictions byte-weighted LARU never finds one wrong, so it evicts the farthest return.
func TestLARUInBytesFollowsPerfectPredictions(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 12))
	size := func(k uint64) int64 { return 1 + int64(k*2654435761%19) }
	for range 300 {
		keys, capacity := randomTrace(r, 400, 5+r.IntN(60)), 20+r.Int64N(200)
		next := NextUses(keys)
		cfg := Config{Slots: 256, Bytes: capacity}
		a, b := newSized(newLARU(cfg), 256, capacity), newSized(&farthest{NewPredicted(cfg)}, 256, capacity)
		for i, k := range keys {
			req := Access{Key: k, Bytes: size(k), Now: int64(i), Return: next[i]}
			if a.request(t, req, size) != b.request(t, req, size) {
				t.Fatalf("request %d: LARU and the farthest return differ under perfect predictions", i)
			}
		}
	}
}

// Real traces: wrong predictions lose little to LRU, nearly right ones close most of the gap.
func TestFloorOnRealTraces(t *testing.T) {
	for _, tr := range []*trace{mooncake(t, "synthetic"), mooncake(t, "conversation")} {
		k := tr.share(.1)
		next := NextUses(tr.keys)
		lru := replay(t, make1(t, "lru", k), tr.keys, k, nil)
		best := Optimal(tr.keys, k)
		for _, name := range []string{"negated", "random", "nearest first"} {
			ret := adversaries[name](rand.New(rand.NewPCG(13, 13)), next)
			got := replay(t, make1(t, "default", k), tr.keys, k, ret)
			if float64(got) < 0.95*float64(lru) {
				t.Errorf("%s at 10 %%, %s predictions: %d hits, LRU %d: lost more than 5 %%", tr.name, name, got, lru)
			}
		}
		r := rand.New(rand.NewPCG(14, 14))
		noisy := func(i int) int64 { // 5 % random
			if r.IntN(20) == 0 {
				return int64(i) + r.Int64N(int64(len(tr.keys)))
			}
			return next[i]
		}
		closed := func(name string) float64 {
			return float64(replay(t, make1(t, name, k), tr.keys, k, noisy)-lru) / float64(best-lru)
		}
		if d, l := closed("default"), closed("laru"); d < 0.6 || d < l-0.05 {
			t.Errorf("%s at 10 %%, 95 %% right: the default closes %.2f of the gap, LARU %.2f", tr.name, d, l)
		} else {
			t.Logf("%s at 10 %%, 95 %% right: the default closes %.2f of the gap, LARU %.2f", tr.name, d, l)
		}
	}
}
