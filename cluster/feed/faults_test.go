package feed

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"grebe/plan"
)

// heapBytes returns the memory in use.
func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Messages are lost, doubled, overtaken and held up, nodes restart and stop, and connections break. The index never
// claims what a node has not held for three heartbeats. Whenever the faults end, the index has what the nodes hold
// within two seconds. Memory does not grow. FEED_FAULTS sets the number of faults, of which every 50,000 happen to
// another world.
func TestFaults(t *testing.T) {
	total := 5_000
	if s := os.Getenv("FEED_FAULTS"); s != "" {
		var err error
		if total, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for seed := uint64(1); total > 0; seed++ {
		faults := min(total, 50_000)
		total -= faults
		t.Run(fmt.Sprint("world=", seed), func(t *testing.T) { survive(t, seed, faults) })
	}
}

// survive lets faults happen to three nodes and a router.
func survive(t *testing.T, seed uint64, total int) {
	keys := []int{100, 700, 60} // the second one's snapshots have several pieces
	w := newWorld(t, seed, 256, keys...)
	defer w.stop()
	size, start, most := w.router.Index().Bytes(), uint64(0), uint64(0)
	shares := []float64{.01, .05, .2, .5}
	rounds := 0
	for ; w.total() < total; rounds++ {
		w.share, w.changes = shares[rounds%len(shares)], 40
		struck := w.now
		until := w.total() + 200
		for w.total() < min(until, total) {
			if w.now-struck > 500*ms {
				struck = w.now
				w.strike()
			}
			w.run(w.now+50*ms, func() bool { return w.total() < until })
		}
		for _, n := range w.nodes {
			if n.up && w.rng.IntN(4) == 0 {
				n.audit(nil)
			}
		}
		if w.rng.IntN(20) == 0 { // the router restarts
			w.routes(keys...)
			for _, n := range w.nodes {
				n.disconnect()
				n.follows()
			}
		}
		w.share = 0
		w.run(w.now+3500*ms, always) // until all that was held up has arrived, and all nodes are up
		w.changes = .5
		w.run(w.now+2*time.Second, always)
		w.compare()
		if rounds%20 == 0 {
			used := heapBytes()
			if start == 0 {
				start = used
			}
			most = max(most, used)
		}
	}
	var stats Stats
	for _, n := range w.nodes {
		s := &n.follower.Stats
		if s.Differed != 0 || s.Repaired != 0 {
			t.Errorf("node %d: %d buckets differed, though every change was published", n.number, s.Differed)
		}
		stats.Snapshots += s.Snapshots
		stats.Resumes += s.Resumes
		stats.Gaps += s.Gaps
		stats.Boots += s.Boots
		stats.Silences += s.Silences
		if cap(n.follower.events) > 2*maxPiece || n.conn != nil && n.conn.session != nil &&
			cap(n.conn.session.events) > 2*maxPiece {
			t.Errorf("node %d: a buffer grew", n.number)
		}
	}
	if got := w.router.Index().Bytes(); got != size || most > start+4<<20 {
		t.Errorf("the index grew from %d to %d bytes, all memory from %d to %d", size, got, start, most)
	}
	t.Logf("%d faults %v in %d rounds, %.0f virtual seconds; parts were known in %d of %d checks, with %d entries",
		w.total(), w.faults, rounds, w.now.Seconds(), w.known, w.checks, w.entries)
	t.Logf("of the last routers: %+v; memory from %d to %d KB", stats, start>>10, most>>10)
	if w.known < w.checks/5 || w.checks-w.known < w.checks/50 {
		t.Errorf("parts were known in %d of %d checks: the draw tests too little", w.known, w.checks)
	}
	for _, kind := range []string{"drop", "duplicate", "reorder", "stall", "reboot", "pause", "cut"} {
		if w.faults[kind] < total/2000 {
			t.Errorf("%d times %s: the draw tests too little", w.faults[kind], kind)
		}
	}
}

// Changes that a node does not publish leave no gap. Sums find them: a few are repaired, and many take a snapshot.
func TestSumsRepairDrift(t *testing.T) {
	for _, c := range []struct {
		lost   int // changes that are not published
		expect func(s *Stats) bool
	}{
		{30, func(s *Stats) bool { return s.Repaired >= 15 && s.Repaired <= 30 && s.Snapshots == 1 }},
		{400, func(s *Stats) bool { return s.Repaired > 2*maxRepair && s.Snapshots == 1 }}, // in several Asks
		{6000, func(s *Stats) bool { return s.Repaired == 0 && s.Snapshots == 2 }},
	} {
		w := newWorld(t, uint64(c.lost), 1<<12, 5000)
		n := w.nodes[0]
		for range 20000 {
			n.change(0, w.rng.IntN(n.keys), w.rng, w.now)
		}
		w.changes = .9 // from here on the test makes all changes
		w.run(w.now+2*time.Second, always)
		w.compare()
		n.SetFeed(nil)
		for range c.lost {
			n.change(0, w.rng.IntN(n.keys), w.rng, w.now)
		}
		n.SetFeed(n.feed)
		w.blind = true
		w.run(w.now+10*time.Second, always)
		if !n.follower.Known() || n.follower.Stats.Repaired != 0 {
			t.Fatalf("the loss of %d changes shows without sums: %+v", c.lost, n.follower.Stats)
		}
		changes := 0
		var other func()
		other = func() { // published ones, while the node and the follower compare
			if changes++; changes < 400 {
				n.change(0, w.rng.IntN(n.keys), w.rng, w.now)
				w.after(5*ms, other)
			}
		}
		other()
		n.follower.Compare()
		n.asks()
		w.run(w.now+4*time.Second, always)
		n.follower.Compare() // buckets that changed meanwhile
		n.asks()
		w.run(w.now+4*time.Second, always)
		w.compare()
		if s := &n.follower.Stats; !c.expect(s) || s.Gaps != 0 {
			t.Errorf("with %d changes lost: %+v", c.lost, *s)
		}
		w.stop()
	}
}

// The digest is SipHash-2-4: the state gives the result that the paper prints for fifteen bytes.
func TestDigest(t *testing.T) {
	var s Secret
	for i := range s {
		s[i] = byte(i)
	}
	v := sipState{0x0706050403020100 ^ 0x736f6d6570736575, 0x0f0e0d0c0b0a0908 ^ 0x646f72616e646f6d,
		0x0706050403020100 ^ 0x6c7967656e657261, 0x0f0e0d0c0b0a0908 ^ 0x7465646279746573}
	v.add(0x0706050403020100)
	v.add(0x0f0e0d0c0b0a0908&(1<<56-1) | 15<<56)
	if got := v.sum(); got != 0xa129ca6149be45e5 {
		t.Errorf("the digest of the paper's example is %x", got)
	}
	a, b := plan.Key{31: 1}, plan.Key{31: 2}
	other := Secret{1}
	if s.Digest(&a) == s.Digest(&b) || s.Digest(&a) == other.Digest(&a) {
		t.Error("the digest does not depend on all bytes, or on the secret")
	}
}
