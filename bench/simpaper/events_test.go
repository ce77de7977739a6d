package simpaper

import (
	"math"
	"testing"

	"grebe/sim"
)

// Rankings have the rate and the histories that are asked for, and read the same rows whenever they are looked up.
func TestRankings(t *testing.T) {
	s := &Stream{Regime: "node-steady", Part: 0.25, Hot: 0.3, Skip: 2}
	source, err := s.source(500, 1)
	if err != nil {
		t.Fatal(err)
	}
	events := source.(sim.Events)
	count, _ := events.Grains()
	if count != 78_125/4 {
		t.Errorf("%d grains", count)
	}
	var r sim.Request
	seen, again, n, sum := map[uint64]bool{}, 0, 0, 0.0
	for source.Next(&r) && r.At.Seconds() < 100 {
		if n++; seen[r.User] {
			again++
		}
		seen[r.User] = true
		sum += float64(r.UserTokens)
		a, b := events.AppendGrains(nil, &r, 0), events.AppendGrains(nil, &r, int(r.UserTokens))
		if len(a) < len(b) || len(r.Items) != 1 || r.ItemTokens[0] != 100 {
			t.Fatalf("%d grains, %d with a cached history: %+v", len(a), len(b), r)
		}
		for _, g := range a {
			if int(g) >= count {
				t.Fatalf("grain %d of %d", g, count)
			}
		}
	}
	if math.Abs(float64(n)-50_000) > 2500 || math.Abs(sum/float64(n)-10_000) > 500 {
		t.Errorf("%d requests in 100 s, %.0f events on average", n, sum/float64(n))
	}
	if share := float64(again) / float64(n); share < 0.22 || share > 0.31 {
		t.Errorf("%.2f of the requests are of users who came before", share)
	}
	if _, err := (&Stream{Regime: "none"}).source(1, 1); err == nil {
		t.Error("an unknown regime is found")
	}
	if _, err := (&Stream{Regime: "node-steady", Skip: 1000}).source(1, 1); err == nil {
		t.Error("all epochs are left out")
	}
}

// The weights of HLEM's router are worth what the profile says.
func TestMissCosts(t *testing.T) {
	source, err := (&Stream{Regime: "node-steady"}).rankings(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	s := sim.Default()
	s.Fleet.Profile = "h200-hstu-6"
	if err := missCosts(s, source); err != nil {
		t.Fatal(err)
	}
	// 10,000 rows and 50 million keys; 30 rows of 1,024 bytes for each event at 49 GB/s.
	if kv := 0.2214 + 1.053 + 0.7465; math.Abs(s.Route.MissKV-kv) > 1e-3 || math.Abs(s.Route.MissEMB-6.269) > 1e-3 ||
		s.Route.MissLoad != 200 {
		t.Errorf("%v %v %v", s.Route.MissKV, s.Route.MissEMB, s.Route.MissLoad)
	}
}
