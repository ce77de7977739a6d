package sim

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"grebe/plan"
	"grebe/schedule"
)

// small returns a scenario of one node that ends soon.
func small(t testing.TB, change func(*Scenario)) *Scenario {
	t.Helper()
	s := Default()
	s.Requests = 2000
	s.Load.Rate = 60
	s.Users.Count, s.Users.Zipf, s.Users.Tokens = 500, 1, Lengths{Mean: 1500, Sigma: .5, Min: 64, Max: 8000}
	s.Items.Count, s.Items.Zipf, s.Items.Tokens, s.Items.Candidates = 2000, 1,
		Lengths{Mean: 10, Sigma: .3, Min: 4, Max: 40}, 100
	s.Fleet.Profile = "h200-qwen2-1.5b"
	s.Fleet.Device, s.Fleet.Host = 2e9, 6e9
	if change != nil {
		change(s)
	}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	return s
}

// play runs a scenario with its invariants checked.
func play(t testing.TB, s *Scenario, opt Options) (*Result, *fleet) {
	t.Helper()
	opt.Check = true
	f, err := newFleet(s, opt)
	if err != nil {
		t.Fatal(err)
	}
	f.begin()
	r, err := f.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.settled(); err != nil {
		t.Error(err)
	}
	if r.Sent != r.Ended {
		t.Errorf("%d requests were sent and %d ended", r.Sent, r.Ended)
	}
	return r, f
}

func TestOneNode(t *testing.T) {
	r, _ := play(t, small(t, nil), Options{})
	if r.Answered < 1900 || r.Hits.Total < .3 || r.Latency.P50 <= 0 {
		t.Errorf("%d answered, hits %v", r.Answered, r.Hits)
	}
}

// The same scenario and seed give the same bytes.
func TestSameSeedSameBytes(t *testing.T) {
	run := func(seed uint64) []byte {
		r, err := Play(t.Context(), fleetOf(t, "hot-cold", func(s *Scenario) {
			s.Seed, s.Requests = seed, 800
			s.Placement.Refresh = ms(700)
			s.Events = []Event{{At: ms(1000), Do: "fail", Node: 1, For: ms(500)}, {At: ms(1800), Do: "restart", Node: 2}}
		}), Options{})
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	first := run(7)
	if !bytes.Equal(first, run(7)) {
		t.Error("two runs with the same seed differ")
	}
	if bytes.Equal(first, run(8)) {
		t.Error("two runs with different seeds are equal")
	}
}

func TestUnscramble(t *testing.T) {
	r := newRand(1, 2)
	for range 1000 {
		if x := r.Uint64(); unscramble(scramble(x)) != x {
			t.Fatalf("unscramble(scramble(%d)) is %d", x, unscramble(scramble(x)))
		}
	}
}

// The rows and keys of a call are those that Decide priced when everything is where it was expected.
func TestCostIsThatOfDecide(t *testing.T) {
	r := newRand(1, 1)
	for range 200 {
		p := prompt{r.IntN(50), r.IntN(20), r.IntN(30), r.IntN(2) == 0, Blend{}}
		c := &call{shared: [2]bool{p.preamble == 0, p.leadIn == 0}}
		c.UserTokens = int32(1 + r.IntN(2000))
		c.cached = r.IntN(int(c.UserTokens))
		shared := r.IntN(2) == 0
		if shared {
			c.shared = [2]bool{true, true}
		} else {
			c.shared = [2]bool{}
		}
		for range 1 + r.IntN(50) {
			c.Items, c.ItemTokens = append(c.Items, int32(len(c.Items))), append(c.ItemTokens, int32(1+r.IntN(30)))
			c.tiers = append(c.tiers, []plan.Tier{plan.Missing, plan.Device, plan.Host}[r.IntN(3)])
		}
		in := schedule.Request{
			Preamble: int32(p.preamble), LeadIn: int32(p.leadIn), Question: int32(p.question), PerItem: p.perItem,
			SharedCached: shared,
			User:         c.UserTokens, Items: c.ItemTokens, ItemTier: c.tiers,
		}
		in.UserCached[plan.Device] = int32(c.cached)
		costs := schedule.DefaultCosts(schedule.PrefillModel{Row: 1})
		d := schedule.Decide(&in, &costs, schedule.User)
		for _, order := range []plan.Order{plan.UserFirst, plan.ItemFirst} {
			c.order = order
			want := &d.User
			if order == plan.ItemFirst {
				want = &d.Item
			}
			if w := p.cost(c, 0); w.Rows != want.Rows || w.Keys != want.Keys {
				t.Fatalf("%v: %d rows and %d keys, Decide has %d and %d", order, w.Rows, w.Keys, want.Rows, want.Keys)
			}
		}
	}
}

// M/D/1: the mean wait is ρ/(2(1−ρ)) service times.
func TestQueueOfOneServer(t *testing.T) {
	for _, load := range []float64{.4, .7} {
		s := small(t, func(s *Scenario) {
			s.Batch, s.Requests, s.Queue = 1, 40000, 1<<15
			s.SLO, s.Deadline = Duration{time.Hour}, Duration{100 * time.Hour}
			s.Prompt.Policy = "none"
			s.Users.Tokens, s.Items.Tokens = Lengths{Mean: 1000, Min: 1, Max: 8000}, Lengths{Mean: 10, Min: 1, Max: 40}
			s.Network.Latency = Duration{}
		})
		s.profiles[0].Noise = 0
		p := s.profiles[0].Prefill
		rows := 1000 + 1000 + 16
		keys := causal(0, 1000, 0) + 100*causal(0, 10, 1000) + causal(0, 16, 2000)
		service := p.Predict(rows, keys, 1)
		s.Load.Rate = load * 1e3 / service
		f, err := newFleet(s, Options{})
		if err != nil {
			t.Fatal(err)
		}
		f.begin()
		r, err := f.run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := service * (1 + load/(2*(1-load)))
		if r.Latency.Mean < .97*want || r.Latency.Mean > 1.03*want || r.Answered != s.Requests {
			t.Errorf("at a load of %v: %.3f ms on average, want %.3f (%d answered)", load, r.Latency.Mean, want, r.Answered)
		}
		if r.Nodes[0].Busy < load*.98 || r.Nodes[0].Busy > load*1.02 {
			t.Errorf("busy %.3f of the time, want %v", r.Nodes[0].Busy, load)
		}
	}
}
