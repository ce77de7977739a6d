package peer

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
)

// TestAgainstAMap makes random fetches, over links that are disturbed now and then, and compares each answer with the
// map that the server reads from. On a link without disturbance all answers are those of the map. On any link a hit has
// the map's bytes.
func TestAgainstAMap(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	m := &memory{}
	var epoch atomic.Uint64
	check := func(e uint64) bool { return e == epoch.Load() }
	var proxies []*proxy
	peers := map[string]string{}
	names := []string{"n1", "n2"}
	for _, name := range names {
		n := serve(t, ServerOptions{Holder: m, Node: name, Epoch: check})
		p := proxyTo(t, n.addr)
		proxies = append(proxies, p)
		peers[name] = p.addr
	}
	c := client(t, peers)
	const keys = 60
	var hits, disturbed int
	rounds := 400
	if raceEnabled {
		rounds = 200
	}
	for round := range rounds {
		for range r.IntN(5) { // the map changes
			k := keyOf(r.IntN(keys))
			if r.IntN(3) == 0 {
				m.remove(k)
				continue
			}
			n := r.IntN(3000)
			if r.IntN(10) == 0 {
				n = r.IntN(600 << 10)
			}
			h := blockOf(r, max(n, 1))
			h.digest = uint64(1 + r.IntN(3))
			m.put(k, h)
		}
		if r.IntN(20) == 0 {
			epoch.Add(1)
		}
		g := &Get{Epoch: epoch.Load() - uint64(r.IntN(10)/9), Space: space}
		for range r.IntN(30) {
			w := Want{Key: keyOf(r.IntN(keys))}
			if h := m.get(w.Key); h != nil && r.IntN(2) == 0 {
				w.Tokens, w.Digest = h.tokens, uint64(1+r.IntN(3))
			}
			g.Wants = append(g.Wants, w)
		}
		if r.IntN(3) == 0 {
			g.Second = names[r.IntN(2)]
		}
		budget, quiet := 5*time.Second, true
		if r.IntN(4) == 0 {
			quiet = false
			disturbed++
			disturb(r, proxies)
			budget = time.Duration(r.IntN(20_000)) * time.Microsecond
		}
		ctx, cancel := context.WithTimeout(context.Background(), budget)
		s := sink{cut: []int{0, 1000, 1 << 20}[r.IntN(3)]}
		err := c.Fetch(ctx, names[r.IntN(2)], g, s.place)
		cancel()
		for i := range g.Wants {
			w := &g.Wants[i]
			h, want := m.get(w.Key), Hit
			switch {
			case !check(g.Epoch):
				want = WrongEpoch
			case h == nil || w.Digest != 0 && w.Digest != h.digest:
				want = Miss
			}
			if w.Status == Hit {
				hits++
				if want != Hit || !bytes.Equal(s.got[i], h.bytes()) || s.meta[i] != string(h.meta) {
					t.Fatalf("round %d: want %d is a hit, with wrong bytes or metadata, or should be %v", round, i, want)
				}
			}
			if quiet && (w.Status != want || err != nil) {
				t.Fatalf("round %d: want %d is %v, should be %v: %v", round, i, w.Status, want, err)
			}
		}
		if !quiet { // connections that were disturbed must not be used for the next round
			for _, p := range proxies {
				p.set(nil)
				p.cut()
			}
			c.SetPeers(nil)
			c.SetPeers(peers)
		}
	}
	if hits < 500 || disturbed < 25 {
		t.Errorf("%d hits, %d rounds disturbed: the test tests little", hits, disturbed)
	}
	eventually(t, "references", func() bool { return m.refs.Load() == 0 })
}

// disturb makes links stall, cut, change or delay bytes.
func disturb(r *rand.Rand, proxies []*proxy) {
	for _, p := range proxies {
		at, kind, bit := r.Int64N(50_000), r.IntN(5), byte(1)<<r.IntN(8)
		var seen atomic.Int64
		p.set(func(_ int, _ int64, b []byte) bool {
			from := seen.Add(int64(len(b))) - int64(len(b))
			here := from <= at && at < from+int64(len(b))
			switch kind {
			case 0:
				return !here
			case 1:
				if here {
					b[at-from] ^= bit
				}
			case 2:
				if here {
					time.Sleep(30 * time.Millisecond)
				}
			case 3:
				time.Sleep(time.Millisecond)
			}
			return true
		})
	}
}

// TestAMillionSmallBlocks: nothing grows with the number of blocks.
func TestAMillionSmallBlocks(t *testing.T) {
	m := &memory{}
	const keys = 4096
	for i := range keys {
		m.put(keyOf(i), &held{pieces: [][]byte{bytes.Repeat([]byte{byte(i)}, 1+i%200)}})
	}
	n := serve(t, ServerOptions{Holder: m})
	c := client(t, map[string]string{"n1": n.addr})
	total := 1_000_000
	if raceEnabled {
		total = 30_000
	}
	g := &Get{Space: space, Wants: make([]Want, MaxWants)}
	buf := make([]byte, 200)
	pieces := [][]byte{nil}
	wrong := 0
	place := func(i int, _ []byte, size int64) ([][]byte, error) {
		pieces[0] = buf[:size]
		return pieces, nil
	}
	done := 0
	for at := 0; done < total; at += MaxWants {
		for i := range g.Wants {
			g.Wants[i].Key = keyOf((at*7 + i) % keys)
		}
		if err := c.Fetch(within(t, time.Minute), "n1", g, place); err != nil {
			t.Fatal(err)
		}
		for i := range g.Wants {
			if g.Wants[i].Status != Hit {
				wrong++
			}
		}
		done += MaxWants
		if last := (at*7 + MaxWants - 1) % keys; buf[0] != byte(last) { // the last block is in the buffer
			t.Fatalf("block %d has byte %d", last, buf[0])
		}
	}
	st, _ := c.Stats("n1")
	if wrong != 0 || st.Answers[Hit] != int64(done) || st.Dials != 1 || n.Stats().Answers[Hit] != int64(done) {
		t.Errorf("%d of %d are no hits: %+v", wrong, done, st)
	}
}

// TestNoAllocationPerBlock compares fetches of few and of many blocks.
func TestNoAllocationPerBlock(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	m := &memory{}
	all := make([]int, 512)
	for i := range all {
		all[i] = i
		m.put(keyOf(i), &held{pieces: [][]byte{make([]byte, 100+i*100)}}) // copied ones and ones that are sent as they are
	}
	n := serve(t, ServerOptions{Holder: m})
	c := client(t, map[string]string{"n1": n.addr})
	buf := make([]byte, 100<<10)
	pieces := [][]byte{nil}
	place := func(_ int, _ []byte, n int64) ([][]byte, error) {
		pieces[0] = buf[:n]
		return pieces, nil
	}
	count := func(keys []int) float64 {
		g := &Get{Space: space, Wants: wants(keys...)}
		return testing.AllocsPerRun(20, func() { // counts those of all goroutines
			if err := c.Fetch(context.Background(), "n1", g, place); err != nil || g.Wants[len(keys)-1].Status != Hit {
				t.Error(err)
			}
		})
	}
	few, many := count(all[256:258]), count(all)
	if many > few+20 {
		t.Errorf("%.0f allocations for 2 blocks, %.0f for 512", few, many)
	}
}
