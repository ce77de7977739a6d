package cluster

import (
	"math"
	"time"
)

// tripSpan is the time in which the shortest round trip counts.
const tripSpan = 5 * time.Second

// trips is what was measured of the round trips to a node. The shortest one of the last seconds counts: longer ones
// waited for something else.
type trips struct {
	shortest [2]float64 // milliseconds, in this span and in the one before it
	count    [2]int     // of round trips
	since    time.Duration
}

// enough is the number of round trips that show the shortest one. Of fewer, even the shortest may have waited for
// something else, and a node that seemed far away would get no requests that show that it is near.
const (
	enough = 8
	far    = 5 // milliseconds, which few round trips show, too
)

// add takes a round trip and returns the one that counts.
func (t *trips) add(ms float64, now time.Duration) float64 {
	if t.since == 0 || now-t.since >= tripSpan {
		last, count := t.shortest[0], t.count[0]
		if t.since == 0 || now-t.since >= 2*tripSpan {
			last, count = math.Inf(1), 0
		}
		t.shortest, t.count, t.since = [2]float64{math.Inf(1), last}, [2]int{0, count}, now
	}
	t.shortest[0] = min(t.shortest[0], ms)
	t.count[0]++
	return min(t.shortest[0], t.shortest[1])
}

// sure reports whether so long a round trip shows how far away a node is, where the nearest one is near.
func (t *trips) sure(ms, near float64) bool { return t.count[0]+t.count[1] >= enough || ms >= near+far }

// old reports whether nothing was measured for long. A node that seemed to be far away gets no requests that could show
// that it is near again.
func (t *trips) old(now time.Duration) bool { return now-t.since >= 2*tripSpan }

// nearest returns the shortest round trip to another node. The caller holds the lock.
func (f *fleet) nearest() float64 {
	near := math.Inf(1)
	for id, s := range f.slots {
		if id != f.c.cfg.Node {
			near = min(near, s.costs.RTT)
		}
	}
	if math.IsInf(near, 1) {
		return firstTrip
	}
	return near
}

// learnTrip takes the round trip of an answer. The caller holds the lock.
func (f *fleet) learnTrip(s *slot, trip, now time.Duration) {
	s.costs.RTT = s.trips.add(ms(trip), now)
	near := f.nearest()
	if !s.trips.sure(s.costs.RTT, near) {
		s.costs.RTT = near
	}
	for id, o := range f.slots {
		switch {
		case o == s:
		case id == f.c.cfg.Node:
			o.costs.RTT = near // see firstTrip
		case !o.trips.old(now):
			continue
		default:
			o.costs.RTT = near
		}
		_ = f.router.SetNode(o.number, o.costs) // valid before
	}
}
