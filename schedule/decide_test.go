package schedule

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"grebe/plan"
)

// cpu is a made-up machine whose costs depend only on rows.
var cpu = DefaultCosts(PrefillModel{Row: 1})

func draw(rng *rand.Rand) (Request, Costs) {
	in := Request{
		Preamble: int32(rng.IntN(4)), LeadIn: int32(rng.IntN(4)), SharedCached: rng.IntN(2) == 0,
		Question: int32(rng.IntN(5)), PerItem: rng.IntN(3) == 0, User: int32(rng.IntN(60)),
		Frequency: 5 * rng.Float64(), Coldest: 5 * rng.Float64(), UserRoom: rng.IntN(3) == 0,
		Queue: 30 * rng.Float64(),
	}
	for t := plan.Device; t < plan.NumTiers; t++ {
		in.UserCached[t] = int32(rng.IntN(25))
	}
	for range rng.IntN(12) {
		in.Items = append(in.Items, int32(1+rng.IntN(8)))
		in.ItemTier = append(in.ItemTier, plan.Tier(rng.IntN(int(plan.NumTiers))))
		in.ItemFrequency = append(in.ItemFrequency, rng.Float32())
	}
	if rng.IntN(3) == 0 {
		in.Slack = 100 * rng.Float64()
	}
	c := DefaultCosts(PrefillModel{Fixed: 5 * rng.Float64(), Row: rng.Float64(), Square: .01 * rng.Float64(),
		Key: .01 * rng.Float64()})
	for t := plan.Host; t < plan.NumTiers; t++ {
		c.Transfer[t] = Transfer{Entry: rng.Float64(), Token: 1.5 * rng.Float64()}
	}
	c.RoomReturns = rng.Float64()
	return in, c
}

// written builds the plan of an order, as in DESIGN's first section, and says which segments are computed.
func written(in *Request, o plan.Order, load Tiers, reuse bool) (p plan.Plan, computed []bool) {
	segment := func(kind plan.Kind, n int, compute bool, sees ...int32) int32 {
		p.Segments = append(p.Segments, plan.Segment{Kind: kind, Tokens: make([]int32, n), Sees: sees})
		for range n {
			computed = append(computed, compute)
		}
		return int32(len(p.Segments) - 1)
	}
	lead := int(in.Preamble)
	if o == plan.ItemFirst {
		lead += int(in.LeadIn)
	}
	shared := segment(plan.Preamble, lead, !(in.SharedCached && reuse))
	var user int32
	var items []int32
	addItems := func(sees ...int32) {
		for i, n := range in.Items {
			items = append(items, segment(plan.Item, int(n), o == plan.UserFirst || !load.Has(in.ItemTier[i]), sees...))
		}
	}
	if o == plan.UserFirst {
		user = segment(plan.User, int(in.User), true, shared)
		cached := 0
		for t := plan.Device; t < plan.NumTiers; t++ {
			if load.Has(t) {
				cached += int(in.UserCached[t])
			}
		}
		for i := range min(cached, int(in.User)) {
			computed[lead+i] = false
		}
		addItems(shared, user)
	} else {
		addItems(shared)
		user = segment(plan.User, int(in.User), true, append([]int32{shared}, items...)...)
	}
	if in.PerItem {
		for _, i := range items {
			segment(plan.Discriminant, int(in.Question), true, shared, user, i)
		}
		return p, computed
	}
	segment(plan.Instruction, int(in.Question), true, append([]int32{shared, user}, items...)...)
	return p, computed
}

// Rows and keys agree with the mask of the order's plan.
func TestOptionsCountWhatThePlanComputes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for n := range 400 {
		in, c := draw(rng)
		policy := Policy(n % len(policyNames))
		d := Decide(&in, &c, policy)
		for o, option := range []Option{d.User, d.Item} {
			rows, keys := counted(&in, plan.Order(o), option.Load, d.Reuse)
			if option.Rows != rows || option.Keys != keys {
				t.Fatalf("%v, %v-first of %+v: %d rows and %d keys, the plan has %d and %d",
					policy, plan.Order(o), in, option.Rows, option.Keys, rows, keys)
			}
			want := max(in.Queue, option.Transfer) + c.Model.Predict(rows, keys, 1)
			if math.Abs(option.Ms-want) > 1e-9*want {
				t.Fatalf("%v ms, want %v", option.Ms, want)
			}
		}
	}
}

// Section 5 of the paper, BAT-5, to the letter.
func TestBATRule(t *testing.T) {
	for _, c := range []struct {
		name       string
		user, item int32
		f, coldest float64
		room       bool
		want       plan.Order
		reason     Reason
	}{
		{"long and hot", 2000, 1000, 3, 2, false, plan.UserFirst, UserHot},
		{"as long as the items", 1000, 1000, 3, 2, false, plan.UserFirst, UserHot},
		{"short", 999, 1000, 3, 2, false, plan.ItemFirst, UserShort},
		{"short, though there is room", 999, 1000, 3, 2, true, plan.ItemFirst, UserShort},
		{"cold", 2000, 1000, 1, 2, false, plan.ItemFirst, UserCold},
		{"no hotter than the coldest", 2000, 1000, 2, 2, false, plan.ItemFirst, UserCold},
		{"unknown, but there is room", 2000, 1000, 0, 0, true, plan.UserFirst, UserHot},
	} {
		in := Request{User: c.user, Items: []int32{c.item}, Frequency: c.f, Coldest: c.coldest, UserRoom: c.room}
		if d := Decide(&in, &cpu, BAT); d.Order != c.want || d.Reason != c.reason {
			t.Errorf("%s: %v-first because %v, want %v-first because %v", c.name, d.Order, d.Reason, c.want, c.reason)
		}
	}
}

// BAT-7.
func TestBaselines(t *testing.T) {
	long := Request{User: 50, UserCached: [plan.NumTiers]int32{plan.Host: 50}, Items: []int32{10, 20},
		ItemTier: []plan.Tier{plan.Host, plan.Host}}
	short := Request{User: 29, UserCached: [plan.NumTiers]int32{plan.Host: 29}, Items: []int32{10, 20},
		ItemTier: []plan.Tier{plan.Host, plan.Host}}
	for _, c := range []struct {
		policy Policy
		in     *Request
		want   plan.Order
		rows   int
	}{
		{Longer, &long, plan.UserFirst, 30}, {Longer, &short, plan.ItemFirst, 29},
		{User, &long, plan.UserFirst, 30}, {User, &short, plan.UserFirst, 30},
		{Item, &long, plan.ItemFirst, 50}, {Item, &short, plan.ItemFirst, 29},
		{None, &long, plan.UserFirst, 80}, {None, &short, plan.UserFirst, 59},
	} {
		d := Decide(c.in, &cpu, c.policy)
		if d.Order != c.want || d.Chosen().Rows != c.rows || d.Reuse == (c.policy == None) {
			t.Errorf("%v: %v-first computes %d rows (reuse %v), want %v-first and %d",
				c.policy, d.Order, d.Chosen().Rows, d.Reuse, c.want, c.rows)
		}
	}
}

func TestPredicted(t *testing.T) {
	base := func() Request {
		return Request{User: 2000, Items: []int32{500, 500}, ItemTier: []plan.Tier{plan.Host, plan.Host}}
	}
	for _, c := range []struct {
		name   string
		change func(*Request, *Costs)
		want   plan.Order
		reason Reason
	}{
		{"items cached, user unknown", func(*Request, *Costs) {}, plan.ItemFirst, Cheaper},
		{"user cached", func(in *Request, _ *Costs) { in.UserCached[plan.Host] = 2000 }, plan.UserFirst, Cheaper},
		{"most of the user cached", func(in *Request, _ *Costs) { in.UserCached[plan.Host] = 1100 }, plan.UserFirst, Cheaper},
		{"less of the user cached", func(in *Request, _ *Costs) { in.UserCached[plan.Host] = 900 }, plan.ItemFirst, Cheaper},
		// User-first costs a thousand tokens more now and saves a thousand per return; three quarters of the returns
		// hit.
		{"comes back once", func(in *Request, _ *Costs) { in.Frequency = 1 }, plan.ItemFirst, Cheaper},
		{"comes back twice", func(in *Request, _ *Costs) { in.Frequency = 2 }, plan.UserFirst, Invest},
		{"comes back twice, but so do those displaced", func(in *Request, _ *Costs) {
			in.Frequency, in.Coldest = 2, 1
		}, plan.ItemFirst, Cheaper},
		{"unknown, but there is room", func(in *Request, _ *Costs) { in.UserRoom = true }, plan.UserFirst, Invest},
		{"there is room, but little to gain", func(in *Request, _ *Costs) { in.UserRoom, in.User = true, 1200 },
			plan.ItemFirst, Cheaper},
		{"comes back twice, deadline near", func(in *Request, _ *Costs) { in.Frequency, in.Slack = 2, 2500 }, plan.ItemFirst,
			Deadline},
		{"comes back twice, lost either way", func(in *Request, _ *Costs) { in.Frequency, in.Slack = 2, 1500 },
			plan.UserFirst, Invest},
		{"short user, hot", func(in *Request, _ *Costs) { in.User, in.Frequency = 900, 50 }, plan.ItemFirst, Cheaper},
		{"user on a slow disk", func(in *Request, c *Costs) {
			in.UserCached[plan.Disk] = 2000
			c.Transfer[plan.Disk] = Transfer{Token: .6}
		}, plan.ItemFirst, Cheaper},
		{"user on a slow disk behind a queue", func(in *Request, c *Costs) {
			in.UserCached[plan.Disk], in.Queue = 2000, 1000
			c.Transfer[plan.Disk] = Transfer{Token: .6}
		}, plan.UserFirst, Cheaper},
		{"missing items that many want", func(in *Request, _ *Costs) {
			in.User = 900
			in.UserCached[plan.Host] = 50 // user-first is 50 tokens cheaper
			in.ItemTier = []plan.Tier{plan.Missing, plan.Missing}
			in.ItemFrequency = []float32{1, 1}
		}, plan.ItemFirst, Invest},
	} {
		in, costs := base(), cpu
		c.change(&in, &costs)
		if err := costs.Validate(); err != nil {
			t.Fatal(err)
		}
		if d := Decide(&in, &costs, Predicted); d.Order != c.want || d.Reason != c.reason {
			t.Errorf("%s: %v-first because %v, want %v-first because %v (user %+v, item %+v)",
				c.name, d.Order, d.Reason, c.want, c.reason, d.User, d.Item)
		}
	}
}

// Observed returns replace those estimated from frequencies.
func TestObservedReturnsDecide(t *testing.T) {
	// Item-first costs 100. User-first costs 120 now, and 20 once the user is kept. It is worth it from 1/4 return on,
	// or from 1/3 if others must be evicted.
	in := Request{User: 100, Items: []int32{20}, ItemTier: []plan.Tier{plan.Host}, Frequency: 9, ReturnsKnown: true}
	for _, c := range []struct {
		returns float64
		room    bool
		want    plan.Order
	}{
		{0, true, plan.ItemFirst}, {.24, true, plan.ItemFirst}, {.26, true, plan.UserFirst}, {9, true, plan.UserFirst},
		{0, false, plan.ItemFirst}, {.3, false, plan.ItemFirst}, {.4, false, plan.UserFirst},
	} {
		in.Returns, in.UserRoom = c.returns, c.room
		if d := Decide(&in, &cpu, Predicted); d.Order != c.want {
			t.Errorf("%v returns expected, room %v: %v first (%v), want %v", c.returns, c.room, d.Order, d.Reason, c.want)
		}
	}
}

// Predicted does not load from a tier that is slower than computing; the other policies do.
func TestSlowTiersAreNotLoaded(t *testing.T) {
	costs := cpu
	costs.Transfer[plan.Peer] = Transfer{Token: 2}
	in := Request{User: 10, Items: []int32{5, 6, 7}, ItemTier: []plan.Tier{plan.Host, plan.Peer, plan.Missing}}
	d := Decide(&in, &costs, Predicted)
	if d.Item.Load.Has(plan.Peer) || !d.Item.Load.Has(plan.Host) || d.Item.Rows != 10+6+7 {
		t.Errorf("predicted loads %b and computes %d rows", d.Item.Load, d.Item.Rows)
	}
	d = Decide(&in, &costs, Item)
	if !d.Item.Load.Has(plan.Peer) || d.Item.Rows != 10+7 || d.Item.Transfer != 12 {
		t.Errorf("item loads %b, computes %d rows and transfers for %v ms", d.Item.Load, d.Item.Rows, d.Item.Transfer)
	}
}

// The guarantees of Predicted, on random requests.
func TestPredictedNeverOverpays(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	var seen [NumReasons]int
	for range 20_000 {
		in, c := draw(rng)
		d := Decide(&in, &c, Predicted)
		other := &d.User
		if d.Order == plan.UserFirst {
			other = &d.Item
		}
		chosen := d.Chosen()
		if chosen.Value < 0 || chosen.Ms > other.Ms+chosen.Value+1e-9 {
			t.Fatalf("%v-first costs %v ms, saves %v later, the other costs %v: %+v", d.Order, chosen.Ms, chosen.Value, other.Ms,
				in)
		}
		if in.Slack > 0 && chosen.Ms > in.Slack && other.Ms <= in.Slack {
			t.Fatalf("%v-first misses the deadline, the other would not: %+v", d.Order, in)
		}
		seen[d.Reason]++
		if again := Decide(&in, &c, Predicted); again != d {
			t.Fatalf("the same request got %+v and %+v", d, again)
		}
	}
	for _, r := range []Reason{Cheaper, Invest, Deadline} {
		if seen[r] == 0 {
			t.Errorf("no request was decided because of %v", r)
		}
	}
}

func TestNames(t *testing.T) {
	for _, n := range policyNames {
		if p, err := ParsePolicy(n); err != nil || p.String() != n {
			t.Errorf("%s reads as %v: %v", n, p, err)
		}
	}
	if _, err := ParsePolicy("auto"); err == nil || !strings.Contains(err.Error(), `"auto"`) {
		t.Errorf("auto is the server's word, got %v", err)
	}
	for r := range NumReasons {
		if r.String() == "" {
			t.Errorf("reason %d has no name", r)
		}
	}
	bad := cpu
	bad.Discount = 2
	if bad.Validate() == nil {
		t.Error("a discount of 2 was accepted")
	}
	bad = cpu
	bad.Transfer[plan.Disk].Token = math.NaN()
	if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), "disk") {
		t.Errorf("a transfer of NaN: %v", err)
	}
}

func candidates(n int) Request {
	in := Request{User: 2000, UserCached: [plan.NumTiers]int32{plan.Device: 640, plan.Host: 640}, Frequency: 2, Coldest: 1,
		Question: 20}
	for i := range n {
		in.Items = append(in.Items, int32(8+i%7))
		in.ItemTier = append(in.ItemTier, plan.Tier(i%int(plan.NumTiers)))
		in.ItemFrequency = append(in.ItemFrequency, 1)
	}
	return in
}

func TestDecideDoesNotAllocate(t *testing.T) {
	in := candidates(100)
	costs := DefaultCosts(gpu)
	for p := range policyNames {
		if n := testing.AllocsPerRun(100, func() { Decide(&in, &costs, Policy(p)) }); n != 0 {
			t.Errorf("%v: %v allocations", Policy(p), n)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	costs := DefaultCosts(gpu)
	for _, n := range []int{1, 100, 10_000} {
		in := candidates(n)
		b.Run("candidates="+strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Decide(&in, &costs, Predicted)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/candidate")
		})
	}
}

// A policy that chooses does so among the allowed orders, but prices both. A policy that names an order uses it.
func TestOnlyAllowedOrdersAreChosen(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for range 2000 {
		in, c := draw(rng)
		for p := range policyNames {
			policy := Policy(p)
			free := Decide(&in, &c, policy)
			for _, allowed := range []plan.Order{plan.UserFirst, plan.ItemFirst} {
				one := in
				one.Orders = Of(allowed)
				got := Decide(&one, &c, policy)
				want := free
				if policy == Predicted || policy == BAT || policy == Longer {
					want.Order, want.Reason = allowed, Only
				}
				if got != want {
					t.Fatalf("%v with %v alone: %+v, want %+v", policy, allowed, got, want)
				}
			}
			both := in
			both.Orders = Of(plan.UserFirst, plan.ItemFirst)
			if got := Decide(&both, &c, policy); got != free {
				t.Fatalf("%v with both orders: %+v, want %+v", policy, got, free)
			}
		}
	}
}
