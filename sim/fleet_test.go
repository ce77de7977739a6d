package sim

import (
	"testing"
)

// fleetOf returns a small fleet that exchanges items.
func fleetOf(t testing.TB, kind string, change func(*Scenario)) *Scenario {
	return small(t, func(s *Scenario) {
		s.Fleet.Nodes, s.Load.Rate, s.Requests, s.Route.Routers = 4, 240, 3000, 2
		s.Fleet.Device, s.Fleet.Host = 2e8, 6e8
		s.Network.Bandwidth = 100e9
		s.Placement.Kind, s.Placement.Preload = kind, true
		if change != nil {
			change(s)
		}
	})
}

// Every request ends once, no node has more than its memory, and bytes that are sent arrive: play checks that.
func TestFleets(t *testing.T) {
	for _, kind := range placements {
		t.Run(kind, func(t *testing.T) {
			r, f := play(t, fleetOf(t, kind, nil), Options{})
			if r.Answered < 2900 {
				t.Errorf("%d of 3000 requests were answered", r.Answered)
			}
			if remote := r.RemoteBytes > 0; remote != (kind != "none" && kind != "replicate") {
				t.Errorf("%d bytes went from node to node", r.RemoteBytes)
			}
			if least, most, _ := r.balance(); least < .7 || most > 1.3 {
				t.Errorf("nodes got %.2f to %.2f times the mean", least, most)
			}
			t.Logf("%d events left; hits %+v, P99 %.1f, %d snapshots", len(f.heap.events), r.Hits, r.Latency.P99, r.Snapshots)
		})
	}
}
