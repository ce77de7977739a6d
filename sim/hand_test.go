package sim

import (
	"testing"
	"time"

	"grebe/schedule"
)

// listed is a source of given requests.
type listed struct {
	all    []Request
	items  int
	tokens int32
}

func (l *listed) Next(r *Request) bool {
	if len(l.all) == 0 {
		return false
	}
	r.At, r.User, r.UserTokens = l.all[0].At, l.all[0].User, l.all[0].UserTokens
	r.Items, r.ItemTokens = append(r.Items[:0], l.all[0].Items...), append(r.ItemTokens[:0], l.all[0].ItemTokens...)
	l.all = l.all[1:]
	return true
}

func (l *listed) Items() int             { return l.items }
func (l *listed) ItemTokens(int32) int32 { return l.tokens }

// One node without batching takes requests one after the other, in the order of their deadlines.
func TestHandComputedSchedule(t *testing.T) {
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
	s.profiles = []*Profile{&p}
	at := func(at time.Duration, user uint64, tokens int32) Request {
		return Request{At: at * time.Millisecond, User: user, UserTokens: tokens, Items: []int32{0, 1},
			ItemTokens: []int32{5, 5}}
	}
	_, f := play(t, s, Options{Stream: &listed{items: 2, tokens: 5, all: []Request{
		at(0, 1, 180),   // 180+10+10 rows: 21 ms, from 1 to 22; answered at 23
		at(5, 2, 80),    // 100 rows: 11 ms, from 22 to 33; answered at 34
		at(10, 1, 180),  // its user is computed by the first while it waits: 20 rows, 3 ms, from 33 to 36
		at(100, 1, 200), // 180 tokens are cached: 20+20 rows: 5 ms; answered after 1+5+1
		at(200, 1, 200), // 200 are: 3 ms
	}}})
	want := []float32{5, 7, 23, 27, 29}
	if len(f.result.latency) != len(want) {
		t.Fatalf("%d requests were answered", len(f.result.latency))
	}
	for i, ms := range f.result.latency { // sorted
		if d := ms - want[i]; d < -.001 || d > .001 {
			t.Errorf("latencies %v, want %v", f.result.latency, want)
			break
		}
	}
	if got := f.result.tokens.at; got[1]+got[2] != 180+200 {
		t.Errorf("tokens by tier %v, want 380 reused", got)
	}
}
