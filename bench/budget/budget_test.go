package budget

import (
	"testing"
	"time"
)

// run sums up a phase in which model two had these shares, one a second.
func run(p Phase, shares ...float64) Phase {
	for i, s := range shares {
		p.Samples = append(p.Samples, Sample{Second: float64(i), Shares: []float64{1 - s - leastFloor, s, leastFloor}})
	}
	t := &timed{site: &site{o: &Options{}}, phase: &p, length: time.Duration(len(shares)) * time.Second}
	t.sum()
	return p
}

func TestBars(t *testing.T) {
	woken := Phase{Busy: names[:2], Model: "two", Bar: leastWoken}
	alone := Phase{Busy: names[1:2], Model: "two", Bar: leastBusy}
	for _, c := range []struct {
		name    string
		phase   Phase
		floor   float64
		reached float64
		passed  bool
	}{
		{"woken", run(woken, .02, .2, .4, .45, .5, .48), leastFloor, 2, true},
		{"woken, too little", run(woken, .02, .2, .25, .25, .25, .25), leastFloor, -1, false},
		{"woken, not for long", run(woken, .02, .2, .4, .4, .3, .29), leastFloor, 2, false},
		{"woken, up and down", run(woken, .3, .5, .3, .5, .3, .5), leastFloor, 0, false},
		{"alone", run(alone, .5, .7, .9, .95, .95, .95), leastFloor, 2, true},
		{"alone, too little", run(alone, .5, .7, .8, .89, .89, .89), leastFloor, -1, false},
		{"less than the floor", run(alone, .5, .7, .9, .95, .95, .95), leastFloor / 2, 2, false},
	} {
		s := Shares{Phases: []Phase{c.phase}, Floor: c.floor}
		if got := s.passed(); got != c.passed || c.phase.Reached != c.reached {
			t.Errorf("%s: passed %v, reached after %v s; want %v, %v s", c.name, got, c.phase.Reached, c.passed, c.reached)
		}
	}
}

func TestFolderBars(t *testing.T) {
	one := Taken{OffHeap: 100, KV: 10}
	copies := Taken{OffHeap: 180, KV: 20}
	for _, c := range []struct {
		name   string
		folder Folder
		passed bool
	}{
		{"shared", Folder{one, Taken{OffHeap: 101, KV: 10, Reused: 0.95}, copies}, true},
		{"weights twice", Folder{one, Taken{OffHeap: 140, KV: 10, Reused: 0.95}, copies}, false},
		{"KV twice", Folder{one, Taken{OffHeap: 101, KV: 20, Reused: 0.95}, copies}, false},
		{"nothing found", Folder{one, Taken{OffHeap: 101, KV: 10}, copies}, false},
		{"copies share", Folder{one, one, one}, false},
	} {
		if c.folder.passed() != c.passed {
			t.Errorf("%s: passed is %v", c.name, !c.passed)
		}
	}
}
