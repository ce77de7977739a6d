package sim

import (
	"testing"
	"time"
)

// Without a map, nodes find KV by the feeds of others: less is computed than without exchange, and no more than with
// all memory in one place. Every call ends once, also if the node that it asked fails: play checks that.
func TestHolders(t *testing.T) {
	for name, change := range map[string]func(*Scenario){
		"predicted":   func(*Scenario) {},
		"round robin": func(s *Scenario) { s.Route.Policy = "round-robin" },
		"users":       func(s *Scenario) { s.Route.Policy, s.Prompt.Policy = "round-robin", "user" },
		"items":       func(s *Scenario) { s.Route.Policy, s.Prompt.Policy = "round-robin", "item" },
		"inside":      func(s *Scenario) { s.Route.Inside = true },
		"failures": func(s *Scenario) {
			s.Route.Policy, s.Route.Inside = "round-robin", true
			for i := range 8 {
				at := Duration{time.Duration(i+1) * time.Second}
				s.Events = append(s.Events, Event{At: at, Do: "fail", Node: i % 4, For: Duration{time.Second / 2}})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(holders bool) *Result {
				r, _ := play(t, fleetOf(t, "none", func(s *Scenario) {
					s.Network.Holders = holders
					change(s)
				}), Options{})
				return r
			}
			alone, with := run(false), run(true)
			if alone.RemoteBytes != 0 || with.RemoteBytes == 0 || with.Hits.Peer == 0 {
				t.Errorf("%d bytes moved without exchange and %d with it, %.4f of the tokens came from others",
					alone.RemoteBytes, with.RemoteBytes, with.Hits.Peer)
			}
			if with.Hits.Total < alone.Hits.Total-.005 || with.Answered+with.Lost < 2300 {
				t.Errorf("hits %.4f without exchange and %.4f with it, %d answered", alone.Hits.Total, with.Hits.Total,
					with.Answered)
			}
			t.Logf("hits %.4f and %.4f, of these %.4f from others; P50 %.1f and %.1f ms", alone.Hits.Total, with.Hits.Total,
				with.Hits.Peer,
				alone.Latency.P50, with.Latency.P50)
		})
	}
}

// A slow network is not asked: computing is faster.
func TestHoldersBehindASlowNetwork(t *testing.T) {
	r, _ := play(t, fleetOf(t, "none", func(s *Scenario) {
		s.Network.Holders, s.Network.Bandwidth, s.Route.Policy = true, 10e6, "round-robin"
	}), Options{})
	if r.RemoteBytes != 0 {
		t.Errorf("%d bytes went over a network of 10 Mb/s", r.RemoteBytes)
	}
}

func TestHoldersNeedFeeds(t *testing.T) {
	s := fleetOf(t, "hash", nil)
	s.Network.Holders = true
	if err := s.Validate(); err == nil {
		t.Error("a map and feeds both say who holds KV")
	}
}
