package peer

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

const ms = time.Millisecond

func TestHedgeDecision(t *testing.T) {
	at := func(d time.Duration) time.Time { return time.Unix(100, 0).Add(d) }
	for _, c := range []struct {
		name  string
		p     progress
		now   time.Duration
		ask   bool
		again time.Duration
	}{
		{"before P95", progress{at(0), time.Time{}, 4 * ms, at(50 * ms), ms}, 3 * ms, false, ms},
		{"at P95", progress{at(0), time.Time{}, 4 * ms, at(50 * ms), ms}, 4 * ms, true, 0},
		{"after P95", progress{at(0), time.Time{}, 4 * ms, at(50 * ms), ms}, 9 * ms, true, 0},
		{"bytes come", progress{at(0), at(8 * ms), 4 * ms, at(50 * ms), ms}, 9 * ms, false, 19 * ms},
		{"bytes came, and then a stall", progress{at(0), at(8 * ms), 4 * ms, at(50 * ms), ms}, 28 * ms, true, 0},
		{"too late for the second", progress{at(0), time.Time{}, 4 * ms, at(50 * ms), 48 * ms}, 4 * ms, false, 0},
		{"too late by now", progress{at(0), time.Time{}, 4 * ms, at(50 * ms), 10 * ms}, 41 * ms, false, 0},
		{"a stall too late for the second", progress{at(0), at(35 * ms), 4 * ms, at(50 * ms), ms}, 36 * ms, false, 0},
	} {
		if ask, again := c.p.hedge(at(c.now)); ask != c.ask || again != c.again {
			t.Errorf("%s: %v, %v, want %v, %v", c.name, ask, again, c.ask, c.again)
		}
	}
}

func TestAllowance(t *testing.T) {
	var a allowance
	if a.take() {
		t.Error("a hedge before any fetch")
	}
	hedges := 0
	for range 1000 {
		a.fetched()
		if a.take() {
			hedges++
		}
	}
	if hedges < 95 || hedges > 100 {
		t.Errorf("%d hedges of 1000 fetches", hedges)
	}
	for range 1000 {
		a.fetched()
	}
	for hedges = 0; a.take(); hedges++ {
	}
	if hedges != hedgeBurst {
		t.Errorf("%d hedges at once", hedges)
	}
}

// TestWindow compares quantiles with a sort of the last times.
func TestWindow(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 3))
	for range 10 {
		var w window
		var all []time.Duration
		for range r.IntN(400) {
			all = append(all, time.Duration(r.IntN(1000)))
			w.add(all[len(all)-1])
			got := w.quantile(.95)
			if len(all) < fewTimes {
				if got != SlowAfter {
					t.Fatalf("%v of %d times", got, len(all))
				}
				continue
			}
			right := false
			for lag := 0; lag < fewTimes && !right; lag++ { // it may be that of a few times ago
				seen := all[:max(fewTimes, len(all)-lag)]
				last := slices.Sorted(slices.Values(seen[max(0, len(seen)-windowSize):]))
				right = last[int(.95*float64(len(last)))] == got
			}
			if !right {
				t.Fatalf("P95 of %d times is %v", len(all), got)
			}
		}
	}
}

func TestMeter(t *testing.T) {
	now := time.Unix(100, 0)
	var m meter
	if m.rate(now) != 0 || m.roundTrip() != 0 {
		t.Error("something is known before the first transfer")
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if got < .97*want || got > 1.03*want {
			t.Errorf("%s: %.4g, want about %.4g", what, got, want)
		}
	}
	move := func(n int, rate float64) {
		for range n {
			now = now.Add(10 * ms)
			m.moved(now, 4<<20, time.Duration(float64(4<<20)/rate*1e9))
		}
	}
	move(1, 1e9)
	near("one transfer", m.rate(now), 1e9)
	move(2000, 1e9)
	m.moved(now, leastMoved-1, time.Second)
	near("a transfer too small to count", m.rate(now), 1e9)
	now = now.Add(time.Hour)
	near("idle", m.rate(now), 1e9)
	move(1, 1e8)
	if r := m.rate(now); r < 1e8 || r > 5e8 {
		t.Errorf("after one slow transfer following an idle hour: %.3g", r)
	}
	move(60, 1e8)
	if r := m.rate(now); r < 1e8 || r > 1.2e8 {
		t.Errorf("a slow link: %.3g", r)
	}
	low := m.rate(now)
	now = now.Add(2 * time.Minute)
	if r := m.rate(now); r < 3*low || r > 1e9 {
		t.Errorf("a slow link, long ago: %.3g", r)
	}

	for range 100 {
		m.answered(ms)
	}
	near("round trip", m.roundTrip().Seconds(), .001)
	m.answered(10 * time.Second)
	if d := m.roundTrip(); d > 2*ms {
		t.Errorf("one long round trip: %v", d)
	}
	for range 60 {
		m.answered(20 * ms)
	}
	near("longer round trips", m.roundTrip().Seconds(), .020)
}

// two starts two servers with the same blocks, each behind a proxy.
func two(t *testing.T, m Holder) (c *Client, a, b *proxy) {
	t.Helper()
	a = proxyTo(t, serve(t, ServerOptions{Holder: m}).addr)
	b = proxyTo(t, serve(t, ServerOptions{Holder: m, Node: "n2"}).addr)
	c = client(t, map[string]string{"n1": a.addr, "n2": b.addr})
	c.allowance.tokens = hedgeBurst
	for _, node := range []string{"n1", "n2"} {
		if _, err := c.Ping(within(t, 5*time.Second), node); err != nil {
			t.Fatal(err)
		}
	}
	return c, a, b
}

// TestHedge: the first peer stalls before, within or between blocks. The second brings what is missing, into memory
// that the first one no longer writes.
func TestHedge(t *testing.T) {
	const size = 100 << 10
	r := rand.New(rand.NewPCG(4, 1))
	m := &memory{}
	for i := range 6 {
		m.put(keyOf(i), blockOf(r, size))
	}
	for _, at := range []int64{0, 100, size / 2, size*5/2 + 1000, size * 11 / 2} {
		c, a, _ := two(t, m)
		hold := newGate(at + frameHeader*2) // a pong and a welcome came before
		a.set(hold.pass)
		g := &Get{Space: space, Wants: wants(0, 1, 2, 3, 4, 5), Second: "n2"}
		var s sink
		if err := c.Fetch(within(t, 5*time.Second), "n1", g, s.place); err != nil {
			t.Error(err)
		}
		close(hold.open)
		for i := range g.Wants {
			if g.Wants[i].Status != Hit || !bytes.Equal(s.got[i], m.get(g.Wants[i].Key).bytes()) {
				t.Errorf("stall at %d: block %d is %v", at, i, g.Wants[i].Status)
			}
		}
		if st, _ := c.Stats("n2"); st.Hedges != 1 {
			t.Errorf("stall at %d: %d hedges", at, st.Hedges)
		}
		c.Close()
	}
}

// TestSecondAfterFirst: a first peer that is gone or busy is replaced at once, without a hedge.
func TestSecondAfterFirst(t *testing.T) {
	m := &memory{}
	m.put(keyOf(1), &held{pieces: [][]byte{make([]byte, 1000)}})
	busy := serve(t, ServerOptions{Holder: m, Node: "busy"})
	busy.reads.Store(int64(busy.opt.MaxReads))
	t.Cleanup(func() { busy.reads.Store(0) })
	empty := serve(t, ServerOptions{Holder: &memory{}, Node: "empty"})
	n := serve(t, ServerOptions{Holder: m})
	c := client(t, map[string]string{"n1": n.addr, "busy": busy.addr, "empty": empty.addr, "gone": "127.0.0.1:1"})
	for first, want := range map[string]Status{"busy": Hit, "gone": Hit, "empty": Miss, "n1": Hit} {
		g := &Get{Space: space, Wants: wants(1), Second: "n1"}
		if err := c.Fetch(within(t, 5*time.Second), first, g, new(sink).place); g.Wants[0].Status != want ||
			(err != nil) != (first == "gone") {
			t.Errorf("%s: %v, %v", first, g.Wants[0].Status, err)
		}
	}
	g := &Get{Space: space, Wants: wants(1), Second: "nobody"}
	if err := c.Fetch(within(t, 5*time.Second), "n1", g, new(sink).place); err != nil || g.Wants[0].Status != Hit {
		t.Errorf("an unknown second: %v, %v", g.Wants[0].Status, err)
	}
	if st, _ := c.Stats("n1"); st.Hedges != 0 {
		t.Errorf("%d hedges", st.Hedges)
	}
}

// TestBothPeersAreSlow: both send steadily and slowly. Each block is placed and reported once.
func TestBothPeersAreSlow(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2))
	m := &memory{}
	all := make([]int, 40)
	for i := range all {
		m.put(keyOf(i), blockOf(r, 10<<10))
		all[i] = i
	}
	c, a, b := two(t, m)
	lag := func(_ int, at int64, _ []byte) bool {
		time.Sleep(time.Duration(1+at%3) * ms)
		return true
	}
	first := sync.OnceFunc(func() { time.Sleep(2 * SlowAfter) })
	a.set(func(n int, at int64, b []byte) bool { first(); return lag(n, at, b) })
	b.set(lag)
	g := &Get{Space: space, Wants: wants(all...), Second: "n2"}
	s := sink{got: make([][]byte, len(all)), meta: make([]string, len(all))}
	if err := c.Fetch(within(t, 10*time.Second), "n1", g, s.place); err != nil {
		t.Error(err)
	}
	for i := range g.Wants {
		if g.Wants[i].Status != Hit || !bytes.Equal(s.got[i], m.get(g.Wants[i].Key).bytes()) {
			t.Errorf("block %d: %v", i, g.Wants[i].Status)
		}
	}
	one, _ := c.Stats("n1")
	other, _ := c.Stats("n2")
	if one.Answers[Hit]+other.Answers[Hit] != int64(len(all)) || one.Answers[Hit] == 0 || other.Answers[Hit] == 0 {
		t.Errorf("%d hits from one and %d from the other of %d", one.Answers[Hit], other.Answers[Hit], len(all))
	}
}

// TestSlowPeerComesSecond: a peer that stalled is not asked first while another one may have the blocks.
func TestSlowPeerComesSecond(t *testing.T) {
	m := &memory{}
	m.put(keyOf(1), &held{pieces: [][]byte{make([]byte, 1000)}})
	c, a, _ := two(t, m)
	hold := newGate(0)
	a.set(hold.pass)
	for i := range 2 {
		g := &Get{Space: space, Wants: wants(1), Second: "n2"}
		if err := c.Fetch(within(t, 5*time.Second), "n1", g, new(sink).place); err != nil || g.Wants[0].Status != Hit {
			t.Errorf("fetch %d: %v, %v", i, err, g.Wants[0].Status)
		}
		p, err := c.peer("n1")
		if err != nil {
			t.Fatal(err)
		}
		p.stalls(true) // its drain may have ended before it could be seen to stall
	}
	if st, _ := c.Stats("n2"); st.Hedges != 1 {
		t.Errorf("%d hedges, want one: the second fetch starts at the other peer", st.Hedges)
	}
	close(hold.open)
	a.set(nil)
	eventually(t, "a ping", func() bool { _, err := c.Ping(within(t, time.Second), "n1"); return err == nil })
	if st, _ := c.Stats("n1"); st.Slow {
		t.Error("still slow after a ping")
	}
}
