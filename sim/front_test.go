package sim

import (
	"testing"
	"time"

	"grebe/schedule"
)

// Work outside of batches comes before the queue. On shared cores it delays the batch that runs.
func TestFront(t *testing.T) {
	s := small(t, func(s *Scenario) {
		s.Batch = 1
		s.Prompt.Question, s.Prompt.Policy = 10, "user"
		s.Network.Latency = ms(1)
		s.Deadline = Duration{10 * time.Second}
		s.SLO = s.Deadline
	})
	p := *s.profiles[0]
	p.Noise = 0
	p.Prefill = schedule.PrefillModel{Fixed: 1, Row: .1}
	p.Prefill.Quality.Largest = schedule.Sample{Rows: 1000, Keys: 1000, Requests: 1}
	p.Front = Front{Request: 1, Token: .002, Item: .3} // 2 ms for 200 tokens and 2 items, 1.8 for 100
	at := func(at time.Duration, user uint64, tokens int32) Request {
		return Request{At: at * time.Millisecond, User: user, UserTokens: tokens, Items: []int32{0, 1},
			ItemTokens: []int32{5, 5}}
	}
	for _, c := range []struct {
		shared bool
		slow   float64
		busy   float64
		delay  float64
		want   [3]Ended // by arrival; times in microseconds
	}{
		{false, 0, 0, 0, [3]Ended{
			{Took: 25_000, Queue: 0, Compute: 21_000, Tokens: 200, Computed: 200}, // from 3 to 24; answered at 25
			{Took: 31_000, Queue: 16_200, Compute: 11_000, Tokens: 100, Computed: 100},
			{Took: 7_000, Queue: 0, Compute: 3_000, Tokens: 200, Computed: 20},
		}},
		{true, 0, 0, 0, [3]Ended{
			{Took: 26_800, Queue: 0, Compute: 22_800, Tokens: 200, Computed: 200}, // the second one delays it by 1.8 ms
			{Took: 32_800, Queue: 18_000, Compute: 11_000, Tokens: 100, Computed: 100},
			{Took: 7_000, Queue: 0, Compute: 3_000, Tokens: 200, Computed: 20},
		}},
		{false, 2, 0, 0, [3]Ended{ // batches take twice as long as predicted
			{Took: 46_000, Queue: 0, Compute: 42_000, Tokens: 200, Computed: 200},
			{Took: 63_000, Queue: 37_200, Compute: 22_000, Tokens: 100, Computed: 100},
			{Took: 10_000, Queue: 0, Compute: 6_000, Tokens: 200, Computed: 20},
		}},
		{true, 0, 3, .5, [3]Ended{ // the second one delays the first by 0.5 ms, and takes 3 ms more itself
			{Took: 25_500, Queue: 0, Compute: 21_500, Tokens: 200, Computed: 200},
			{Took: 31_500, Queue: 13_700, Compute: 11_000, Tokens: 100, Computed: 100},
			{Took: 7_000, Queue: 0, Compute: 3_000, Tokens: 200, Computed: 20},
		}},
	} {
		p.Front.Shared, p.Slowdown, p.Front.Busy, p.Front.Delay = c.shared, c.slow, c.busy, c.delay
		s.profiles = []*Profile{&p}
		var got []Ended
		play(t, s, Options{
			Stream: &listed{items: 2, tokens: 5, all: []Request{at(0, 1, 180), at(5, 2, 80), at(100, 1, 180)}},
			Ended:  func(e *Ended) { got = append(got, *e) },
		})
		for i, want := range c.want {
			want.At, want.Answered = []time.Duration{0, 5, 100}[i]*time.Millisecond, true
			want.Took, want.Queue, want.Compute = want.Took*time.Microsecond, want.Queue*time.Microsecond,
				want.Compute*time.Microsecond
			if len(got) != 3 || !near(&got[i], &want) {
				t.Errorf("shared %v, busy %v, request %d: %+v, want %+v", c.shared, c.busy, i, got, want)
			}
		}
	}
}

// Batches and work outside of them take as many times as long as the profile's ratios say, each as often as the others.
func TestRatios(t *testing.T) {
	s := small(t, func(s *Scenario) {
		s.Batch, s.Network.Latency = 1, Duration{}
		s.Prompt.Question, s.Prompt.Policy = 10, "none"
		s.Deadline = Duration{10 * time.Second}
		s.SLO = s.Deadline
	})
	p := *s.profiles[0]
	p.Noise = .5 // is not used beside ratios
	p.Prefill = schedule.PrefillModel{Fixed: 1, Row: .1}
	p.Prefill.Quality.Largest = schedule.Sample{Rows: 1000, Keys: 1000, Requests: 1}
	p.Slowdown, p.Added, p.Ratios = 1.5, 2, Ratios{.5, 3} // 100 rows: 11 ms alone, 18.5 in a server
	p.Front = Front{Request: 4, Idle: Ratios{.5, 1}, Beside: Ratios{2}}
	s.profiles = []*Profile{&p}
	var all []Request
	for i := range 400 { // every other one comes while a batch runs
		at := time.Duration(i/2)*time.Second + time.Duration(i%2)*6*time.Millisecond
		all = append(all, Request{At: at, User: uint64(i), UserTokens: 80, Items: []int32{0, 1}, ItemTokens: []int32{5, 5}})
	}
	computes, fronts := map[time.Duration]int{}, map[time.Duration]int{}
	play(t, s, Options{Stream: &listed{items: 2, tokens: 5, all: all}, Ended: func(e *Ended) {
		computes[e.Compute.Round(10*time.Microsecond)]++
		fronts[(e.Took-e.Queue-e.Compute).Round(10*time.Microsecond)]++
	}})
	for _, c := range []struct {
		got   map[time.Duration]int
		ms    float64
		least int
	}{{computes, 9.25, 150}, {computes, 55.5, 150}, {fronts, 2, 70}, {fronts, 4, 70}, {fronts, 8, 200}} {
		if n := c.got[inMs(c.ms)]; n < c.least {
			t.Errorf("%d requests took %v ms, want at least %d: %v", n, c.ms, c.least, c.got)
		}
	}
	if len(computes) != 2 || len(fronts) != 3 {
		t.Errorf("batches took %v, work outside of them %v", computes, fronts)
	}
}

// near compares two ends, whose times are rounded.
func near(a, b *Ended) bool {
	off := max((a.Took - b.Took).Abs(), (a.Queue - b.Queue).Abs(), (a.Compute - b.Compute).Abs())
	return a.At == b.At && a.Answered && a.Tokens == b.Tokens && a.Computed == b.Computed && off < 2*time.Microsecond
}

// A server's memory has gaps: entries need adjacent pages.
func TestPages(t *testing.T) {
	hits := func(page Bytes) float64 {
		r, _ := play(t, small(t, func(s *Scenario) {
			s.Fleet.Device, s.Fleet.Host = 0, 1e9
			s.Fleet.Profile = "testdata/cpu.json"
			s.Cache.Page = page
			s.Requests = 600
		}), Options{})
		return r.Hits.Total
	}
	if whole, gaps := hits(0), hits(4096); gaps >= whole {
		t.Errorf("%.4f of the tokens are reused with gaps, %.4f without", gaps, whole)
	}
	s := Default()
	s.Requests, s.Load.Rate, s.Fleet.Profile, s.Cache.Page = 1, 1, "h200-qwen2-1.5b", 4095
	s.Users.Count, s.Users.Tokens.Mean, s.Items.Count, s.Items.Candidates, s.Items.Tokens.Mean = 1, 1, 1, 1, 1
	if err := s.Validate(); err == nil {
		t.Error("a page of 4095 bytes does not divide the KV of a token")
	}
}
