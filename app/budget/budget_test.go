package budget

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"grebe/alloc"
	"grebe/compute"
	"grebe/kv"
	"grebe/plan"
	"grebe/schedule"
)

var shape = compute.Shape{Layers: 2, KVHeads: 2, HeadDim: 4, KV: compute.BF16}

const (
	page    = 256
	tokens  = 8   // of an entry, which takes two pages
	entry   = 512 // bytes
	entries = 1024
	minute  = int(60 / alloc.BudgetEpoch)
)

// cache is a model that keeps items.
type cache struct {
	*Tenant
	store *kv.Store
	owner byte
}

func newCache(t *testing.T, b *Budget, owner byte, limit int64, policy string) *cache {
	t.Helper()
	c := &cache{Tenant: b.Join(string('a'+owner), limit, 4*entry), owner: owner}
	c.store = kv.New(shape, c.Pool())
	if err := c.store.SetPolicy(policy); err != nil {
		t.Fatal(err)
	}
	c.store.Watch(c)
	c.Work(c.store)
	return c
}

func (c *cache) close(t *testing.T) {
	t.Helper()
	c.Stop()
	c.store.Close()
	if err := c.Leave(); err != nil {
		t.Error(err)
	}
}

// ask uses an item, or computes it.
func (c *cache) ask(item int) (hit bool) {
	key := plan.Key{byte(item), byte(item >> 8), byte(item >> 16), c.owner + 1}
	e, _ := c.store.Get(key)
	if hit = e != nil; !hit {
		var err error
		if e, err = c.store.Reserve(kv.Exact, tokens, nil); err != nil {
			return false
		}
		c.store.Publish(plan.Item, key, nil, e)
	}
	e.Release()
	return hit
}

// A model whose entries are larger than the least that it may own gets memory too when it wakes up beside one that has
// all of it, and all when that one falls idle.
func TestLargeEntriesOfAWakingModel(t *testing.T) {
	b, r := newBudget(t), rand.New(rand.NewPCG(3, 4))
	first, second := newCache(t, b, 0, entries*entry/2, "lru"), newCache(t, b, 1, entries*entry/2, "lru")
	defer first.close(t)
	defer second.close(t)
	const large = 50 * tokens // which takes more than the floor
	ask := func(c *cache) {
		key := plan.Key{byte(r.IntN(30)), 9, 9, c.owner + 1}
		e, _ := c.store.Get(key)
		if e == nil {
			var err error
			if e, err = c.store.Reserve(kv.Exact, large, nil); err != nil {
				return
			}
			c.store.Publish(plan.Item, key, nil, e)
		}
		e.Release()
	}
	for range minute {
		for range 20 {
			ask(first)
		}
		b.Step()
	}
	if share(first) < 0.9 {
		t.Errorf("the busy model may own %.2f", share(first))
	}
	for range minute {
		for range 20 {
			ask(first)
			ask(second)
		}
		b.Step()
	}
	if held(second) < 0.35 {
		t.Errorf("the model that woke up has %.2f, the other %.2f", held(second), held(first))
	}
	for range minute {
		for range 20 {
			ask(second)
		}
		b.Step()
	}
	if share(second) < 0.9 {
		t.Errorf("a minute after the first fell idle the second may own %.2f", share(second))
	}
}

func newBudget(t *testing.T) *Budget {
	t.Helper()
	b, err := New(compute.NewHostMemory(), entries*entry, page)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// epochs has some models ask for random items, 100 each in an epoch, and checks that limits and pages stay within the
// budget.
func epochs(t *testing.T, b *Budget, r *rand.Rand, n, items int, busy, all []*cache) {
	t.Helper()
	for range n {
		for range 100 {
			for _, c := range busy {
				c.ask(r.IntN(items))
			}
		}
		b.Step()
		var limits, used int64
		for _, c := range all {
			s := c.Pool().Stats()
			limits, used = limits+s.Total, used+s.Used
			if s.Used > s.Total {
				t.Fatalf("%s owns %d bytes of %d", c.name, s.Used, s.Total)
			}
		}
		if limits > entries*entry || used > limits {
			t.Fatalf("%d bytes used, %d allowed, of %d", used, limits, entries*entry)
		}
	}
}

func share(c *cache) float64 { return float64(c.Pool().Stats().Total) / (entries * entry) }
func held(c *cache) float64  { return float64(c.Pool().Stats().Used) / (entries * entry) }

// Of three models that have filled their memory one stays busy: within a minute it has 90 % of the budget. When another
// wakes up, it gives way until both have about as much; when it falls idle itself, the other gets all.
func TestTheBusyModelGetsTheBudget(t *testing.T) {
	for _, policy := range []string{"lru", "default"} {
		t.Run(policy, func(t *testing.T) {
			b, r := newBudget(t), rand.New(rand.NewPCG(1, 2))
			var all []*cache
			for i := range 3 {
				c := newCache(t, b, byte(i), entries*entry/3, policy)
				defer c.close(t)
				all = append(all, c)
			}
			epochs(t, b, r, minute/4, 1500, all, all)
			for _, c := range all {
				if held(c) < 0.2 {
					t.Errorf("of three busy models %s has %.2f", c.name, held(c))
				}
			}
			epochs(t, b, r, minute, 1500, all[:1], all)
			if held(all[0]) < 0.9 {
				t.Errorf("after a minute as the only busy model a has %.2f of the budget and may have %.2f", held(all[0]),
					share(all[0]))
			}
			epochs(t, b, r, minute, 1500, all[:2], all)
			if held(all[1]) < 0.4 || held(all[0]) < 0.4 {
				t.Errorf("a minute after b woke up a has %.2f, b %.2f", held(all[0]), held(all[1]))
			}
			epochs(t, b, r, minute, 1500, all[1:2], all)
			if held(all[1]) < 0.9 {
				t.Errorf("a minute after a fell idle b has %.2f", held(all[1]))
			}
		})
	}
}

// A busy model takes free memory at once, whoever might have had it.
func TestFreeMemoryIsTakenAtOnce(t *testing.T) {
	b, r := newBudget(t), rand.New(rand.NewPCG(3, 4))
	var all []*cache
	for i := range 3 {
		c := newCache(t, b, byte(i), entries*entry/3, "lru")
		defer c.close(t)
		all = append(all, c)
	}
	epochs(t, b, r, 1, 1500, all[:1], all)
	if share(all[0]) < 0.9 {
		t.Errorf("after an epoch the only busy model may have %.2f", share(all[0]))
	}
	evicted := all[0].store.Stats(plan.Item).Evicted
	epochs(t, b, r, 40, 900, all[:1], all)
	if now := all[0].store.Stats(plan.Item).Evicted; now != evicted {
		t.Errorf("%d entries evicted with two thirds of the budget free", now-evicted)
	}
}

// A model that reads much and comes back to nothing takes no memory from one that hits.
func TestAScanTakesNothing(t *testing.T) {
	b, r := newBudget(t), rand.New(rand.NewPCG(5, 6))
	user, scan := newCache(t, b, 0, entries*entry/2, "lru"), newCache(t, b, 1, entries*entry/2, "lru")
	defer user.close(t)
	defer scan.close(t)
	all := []*cache{user, scan}
	epochs(t, b, r, minute/2, 750, all[:1], all)
	had := held(user)
	for i := range minute * 50 {
		scan.ask(i)
		if i%50 == 49 {
			epochs(t, b, r, 1, 750, all[:1], all)
		}
	}
	if held(user) < had*0.95 {
		t.Errorf("a scan took memory: %.2f of the budget before, %.2f after", had, held(user))
	}
}

// What a token takes to compute is part of its value: of two models that ask alike, the slow one gets more.
func TestTheSlowModelGetsMore(t *testing.T) {
	b, r := newBudget(t), rand.New(rand.NewPCG(7, 8))
	fast, slow := newCache(t, b, 0, entries*entry/2, "lru"), newCache(t, b, 1, entries*entry/2, "lru")
	defer fast.close(t)
	defer slow.close(t)
	fast.SetLoad(times(0.001))
	slow.SetLoad(times(0.01))
	all := []*cache{fast, slow}
	epochs(t, b, r, minute, 1500, all, all)
	if held(slow) < 0.75 {
		t.Errorf("the slow model has %.2f, the fast one %.2f", held(slow), held(fast))
	}
}

type times float64

func (m times) Model() schedule.PrefillModel { return schedule.PrefillModel{Row: float64(m)} }

// Requests, decisions, metrics and tenants that come and go do not disturb each other.
func TestBesideRequests(t *testing.T) {
	b := newBudget(t)
	var all []*cache
	for i := range 3 {
		all = append(all, newCache(t, b, byte(i), entries*entry/3, "default"))
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(b); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(200 * time.Millisecond)
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 9))
			for time.Now().Before(end) {
				c.ask(r.IntN(2000))
			}
		})
	}
	wg.Go(func() {
		for time.Now().Before(end) {
			b.Step()
		}
	})
	wg.Go(func() {
		for time.Now().Before(end) {
			c := newCache(t, b, 3, 0, "lru")
			b.Step()
			for i := range 40 {
				c.ask(i)
			}
			c.close(t)
		}
	})
	wg.Wait()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	var f *dto.MetricFamily
	for _, f = range families {
		for _, m := range f.GetMetric() {
			sum += m.GetGauge().GetValue()
		}
	}
	if len(families) != 1 || f.GetName() != "grebe_pool_limit_bytes" || len(f.GetMetric()) != 3 || sum > entries*entry {
		t.Errorf("limits of %.0f bytes together: %v", sum, families)
	}
	for _, c := range all {
		c.close(t)
	}
	b.Step()
}
