package alloc

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Of misses of an LRU cache, the ghost tells how much larger it would have had to be: as a larger LRU cache does.
func TestGhostSaysWhatALargerCacheWouldHaveHad(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	const small, extra, n = 50, 30, 40000
	var cache []uint64 // oldest first
	g := NewGhost(200)
	larger, said, wrong := map[uint64]int{}, 0, 0
	for i := range n {
		key := uint64(1 + int(math.Pow(r.Float64(), 3)*400))
		last, seen := larger[key]
		distinct := 0 // keys since then
		if seen {
			for _, at := range larger {
				if at > last {
					distinct++
				}
			}
		}
		larger[key] = i
		at := -1
		for j, k := range cache {
			if k == key {
				at = j
			}
		}
		if at >= 0 {
			cache = append(append(cache[:at:at], cache[at+1:]...), key)
			continue
		}
		depth, ok := g.Missed(key)
		would := seen && distinct < small+extra
		if ok && depth <= extra {
			said++
		}
		if would != (ok && depth <= extra) {
			wrong++
		}
		if len(cache) == small {
			g.Evicted(cache[0], 1)
			cache = cache[1:]
		}
		cache = append(cache, key)
	}
	if said < 1000 || float64(wrong) > 0.25*float64(said) {
		t.Errorf("of %d misses that a larger cache would not have had %d were told wrong", said, wrong)
	}
}

func TestGhostForgets(t *testing.T) {
	g := NewGhost(4)
	for k := uint64(1); k <= 6; k++ {
		g.Evicted(k, 10)
	}
	if _, ok := g.Missed(1); ok {
		t.Error("the first of six evictions is still known to a ghost of four")
	}
	if k, ok := g.Recent(0); !ok || k != 6 {
		t.Errorf("the last eviction was %d, %v", k, ok)
	}
	if d, ok := g.Missed(6); !ok || d != 10 {
		t.Errorf("the last eviction lies %d deep, %v", d, ok)
	}
	if _, ok := g.Recent(0); ok {
		t.Error("what is cached again is still to be brought back")
	}
}

// Background traffic never gets more than its share of what demand leaves, and nothing when demand takes all.
func TestGovernorYieldsToDemand(t *testing.T) {
	const link = 1e9
	moved := func(demand float64) float64 {
		g := Governor{Link: link, Share: 0.5}
		sum := 0.0
		for i := range 4000 {
			now := float64(i) / 1000
			g.Demand(now, int64(demand/1000))
			n := g.Grant(now, 1<<40)
			g.Spend(n)
			if now >= 1 {
				sum += float64(n)
			}
		}
		return sum / 3 // per second
	}
	for _, c := range []struct{ demand, least, most float64 }{
		{0, 0.49 * link, 0.5 * link}, {0.5 * link, 0.2 * link, 0.26 * link}, {0.9 * link, 0, 0.06 * link}, {1.2 * link, 0, 0},
	} {
		if got := moved(c.demand); got < c.least || got > c.most {
			t.Errorf("with %.1f of the link in demand background moved %.3f of it, want %.2f to %.2f", c.demand/link, got/link,
				c.least/link, c.most/link)
		}
	}
}

func TestGovernorSavesLittle(t *testing.T) {
	g := Governor{Link: 1e9, Share: 1}
	g.Grant(0, 0)
	if got := g.Grant(3600, 1<<40); got > 2e7 {
		t.Errorf("%d bytes at once after an idle hour, want at most what the link moves in 20 ms", got)
	}
}

func TestClimbGoesWhereMemorySavesMore(t *testing.T) {
	o := Observation{State: State{Alpha: 0.5, EmbHit: 0.5}, LinkLoad: 0.5, GPULoad: 0.5}
	o.Gains.KV[0] = 10
	if d := new(Climb).Decide(&o); d.To >= 0.5 {
		t.Errorf("KV would save and embeddings nothing, and the share went from 0.5 to %v", d.To)
	}
	o.Gains = Gains{}
	o.Gains.Emb[6] = 10 // seven GiB further on
	if d := new(Climb).Decide(&o); d.To <= 0.5 {
		t.Errorf("embeddings would save and KV nothing, and the share went from 0.5 to %v", d.To)
	}
	o.Gains.KV[6] = 10
	if d := new(Climb).Decide(&o); d.To != 0.5 {
		t.Errorf("both would save as much, and the share went from 0.5 to %v", d.To)
	}
	o.GPULoad = 0.9
	if d := new(Climb).Decide(&o); d.To >= 0.5 {
		t.Errorf("the GPU is busier, and the share went from 0.5 to %v", d.To)
	}
	o.Alpha = MinShare
	if d := new(Climb).Decide(&o); d.To != MinShare {
		t.Errorf("the share went below its least, to %v", d.To)
	}
}

func TestDecisionsAllocateNothing(t *testing.T) {
	o := Observation{State: State{Hot: 0.3, Alpha: 0.5, P99: 20}, Requests: 1000}
	o.Gains.KV[3] = 1
	for name, c := range map[string]Controller{
		"climb": &Climb{SLO: 30}, "pid": &PID{P: 0.1},
	} {
		if a := testing.AllocsPerRun(2000, func() { c.Decide(&o) }); a != 0 {
			t.Errorf("%s: %v allocations", name, a)
		}
	}
}

// A working set far beyond a cache counts as well, for less.
func TestCurveReachesHalfOfThePool(t *testing.T) {
	const pool = 120 << 30
	var near, far, beyond Curve
	near.Add(1<<30, pool, 1)
	far.Add(40<<30, pool, 1)
	beyond.Add(70<<30, pool, 1)
	if n, f, b := near.steepest(), far.steepest(), beyond.steepest(); n <= f || f <= 0 || b != 0 {
		t.Errorf("a saving of 1 a step away is worth %v, at a third of the pool %v, beyond half of it %v", n, f, b)
	}
}
