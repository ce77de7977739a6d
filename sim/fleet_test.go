package sim

import (
	"testing"
	"time"
)

// fleetOf returns a small fleet that exchanges items.
func fleetOf(t testing.TB, kind string, change func(*Scenario)) *Scenario {
	return small(t, func(s *Scenario) {
		s.Fleet.Nodes, s.Load.Rate, s.Requests, s.Route.Routers = 4, 240, 2400, 2
		s.Fleet.Device, s.Fleet.Host = 2e8, 6e8
		s.Network.Bandwidth = 100e9
		s.Placement.Kind, s.Placement.Preload, s.Placement.Sample = kind, true, 500
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
			if r.Answered < 2300 {
				t.Errorf("%d of 2400 requests were answered", r.Answered)
			}
			if remote := r.RemoteBytes > 0; remote != (kind != "none" && kind != "replicate") {
				t.Errorf("%d bytes went from node to node", r.RemoteBytes)
			}
			// Routers give up some balance for hits, but no node may starve or get far more than its share.
			if least, most, _ := r.balance(); least < .6 || most > 1.4 {
				t.Errorf("nodes got %.2f to %.2f times the mean", least, most)
			}
			t.Logf("%d events left; hits %+v, P99 %.1f, %d snapshots", len(f.heap.events), r.Hits, r.Latency.P99, r.Snapshots)
		})
	}
}

// Without overlap a batch waits for the KV of its requests, so requests take longer.
func TestOverlap(t *testing.T) {
	mean := func(overlap bool) float64 {
		r, _ := play(t, fleetOf(t, "hash", func(s *Scenario) {
			s.Network.Overlap, s.Network.Bandwidth, s.Prompt.Policy, s.Cache.KeepPeer = overlap, 20e9, "item", false
		}), Options{})
		if r.Hits.Peer == 0 {
			t.Error("nothing came from peers")
		}
		return r.Latency.Mean
	}
	if with, without := mean(true), mean(false); without <= with {
		t.Errorf("%.2f ms with overlap, %.2f without", with, without)
	}
}

// With users first, items are computed: nobody waits for KV of items that other nodes have.
func TestUsersFirstFetchNoItems(t *testing.T) {
	for _, overlap := range []bool{true, false} {
		r, _ := play(t, fleetOf(t, "hash", func(s *Scenario) { s.Network.Overlap, s.Prompt.Policy = overlap, "user" }),
			Options{})
		if r.RemoteBytes != 0 || r.Hits.Peer != 0 || r.Orders.User != 1 {
			t.Errorf("with overlap %v %d bytes went from node to node; %+v", overlap, r.RemoteBytes, r.Hits)
		}
	}
}

// A node that fails loses its calls, which others answer; one that is slow gets fewer; restarts lose nothing.
func TestEventsOfNodes(t *testing.T) {
	at := func(seconds int) Duration { return Duration{time.Duration(seconds) * time.Second} }
	base := fleetOf(t, "hash", nil)
	for name, events := range map[string][]Event{
		"fail": { // one of them computes something then
			{At: at(1), Do: "fail", Node: 0, For: at(1)}, {At: at(3), Do: "fail", Node: 1, For: at(4)},
			{At: at(8), Do: "fail", Node: 2, For: at(1)},
		},
		"slow":    {{At: at(2), Do: "slow", Node: 1, Factor: 4}},
		"restart": {{At: at(2), Do: "restart", Node: -1}},
		"scale":   {{At: at(2), Do: "start", Node: 4}, {At: at(6), Do: "drain", Node: 0}},
	} {
		t.Run(name, func(t *testing.T) {
			r, f := play(t, fleetOf(t, "hash", func(s *Scenario) {
				s.Events, s.Fleet.Boot, s.Fleet.Spare = events, at(1), 1
			}), Options{})
			if r.Answered < base.Requests*97/100 {
				t.Errorf("%d of %d requests were answered, %d lost", r.Answered, r.Requests, r.Lost)
			}
			up := r.Series[len(r.Series)-1].Up
			switch name {
			case "fail":
				if r.Retries == 0 || up != 4 {
					t.Errorf("%d requests were sent again, %d nodes are up", r.Retries, up)
				}
			case "slow":
				if slow, other := r.Nodes[1].Requests, r.Nodes[2].Requests; slow > other*8/10 {
					t.Errorf("the slow node got %d requests, another %d", slow, other)
				}
			case "restart":
				if f.lives < 9 || r.Lost > 0 {
					t.Errorf("nodes started %d times, %d requests are lost", f.lives, r.Lost)
				}
			case "scale":
				if r.Maps != 2 || up != 4 || r.Nodes[4].Requests == 0 || r.FilledBytes == 0 {
					t.Errorf("%d maps, %d nodes up, %d bytes filled", r.Maps, up, r.FilledBytes)
				}
			}
		})
	}
}
