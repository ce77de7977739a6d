package peer

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// overshoot measures how much later than d after now f returns, beyond what a timer of the same length is late: other
// processes may keep both from running.
func overshoot(d time.Duration, f func()) time.Duration {
	began := time.Now()
	late := make(chan time.Duration, 1)
	go func() {
		time.Sleep(d)
		late <- time.Since(began) - d
	}()
	f()
	return time.Since(began) - d - max(0, <-late)
}

// gate is a proxy's function that stops all bytes beyond an offset of a connection until it is opened.
type gate struct {
	at   atomic.Int64
	open chan struct{}
	shut atomic.Int64 // times that it stopped bytes
}

func newGate(at int64) *gate {
	g := &gate{open: make(chan struct{})}
	g.at.Store(at)
	return g
}

func (g *gate) pass(_ int, at int64, b []byte) bool {
	if at+int64(len(b)) > g.at.Load() {
		g.shut.Add(1)
		<-g.open
	}
	return true
}

// TestStall: a peer stalls in the middle of a block. The fetch ends within its budget and 5 ms. The memory that it was
// given is not written afterwards, although the rest of the block arrives later.
func TestStall(t *testing.T) {
	const size = 200 << 10 // below what is drained
	r := rand.New(rand.NewPCG(2, 1))
	m := &memory{}
	for i := range 3 {
		m.put(keyOf(i), blockOf(r, size))
	}
	for _, tls := range []bool{false, true} {
		n, secure := serveTLS(t, tls, ServerOptions{Holder: m})
		middle := 0 // stalls in the middle of a block; on a machine without a free core the budget may be over sooner
		for range 6 {
			p := proxyTo(t, n.addr)
			c := client(t, map[string]string{"n1": p.addr}, secure)
			if _, err := c.Ping(within(t, 5*time.Second), "n1"); err != nil { // connected
				t.Fatal(err)
			}
			hold := newGate(size + size/4 + r.Int64N(size/2))
			p.set(hold.pass)
			const budget = 150 * time.Millisecond
			g := &Get{Space: space, Wants: wants(0, 1, 2)}
			s := sink{cut: 1000 + r.IntN(200<<10)}
			over := overshoot(budget, func() {
				ctx, cancel := context.WithTimeout(context.Background(), budget)
				defer cancel()
				if err := c.Fetch(ctx, "n1", g, s.place); err != nil {
					t.Error(err)
				}
			})
			for _, b := range s.got { // the memory is the caller's again
				for i := range b {
					b[i] = 0x5a
				}
			}
			if over > 5*time.Millisecond {
				t.Errorf("the fetch ended %v after its budget", over)
			}
			if g.Wants[1].Status != Late || g.Wants[2].Status != Late {
				t.Errorf("statuses %v, %v, %v", g.Wants[0].Status, g.Wants[1].Status, g.Wants[2].Status)
			}
			if st, _ := c.Stats("n1"); st.Slow && g.Wants[0].Status == Hit && len(s.got) == 2 && hold.shut.Load() > 0 {
				middle++
			}
			close(hold.open)
			// The rest is drained or the connection is closed; both end the drain.
			eventually(t, "drain", func() bool {
				q, err := c.peer("n1")
				if err != nil {
					t.Fatal(err)
				}
				q.mu.Lock()
				defer q.mu.Unlock()
				return len(q.idle) == q.open
			})
			for _, b := range s.got {
				if i := bytes.IndexFunc(b, func(r rune) bool { return r != 0x5a }); i >= 0 {
					t.Errorf("byte %d of a buffer was written after the fetch", i)
				}
			}
			p.set(nil)
			s = sink{}
			if err := c.Fetch(within(t, 5*time.Second), "n1", g, s.place); err != nil || g.Wants[2].Status != Hit {
				t.Errorf("after the stall: %v, %v", err, g.Wants[2].Status)
			}
			if st, _ := c.Stats("n1"); st.Slow {
				t.Error("still slow")
			}
			c.Close()
		}
		if middle == 0 {
			t.Error("no fetch was cut off in the middle of a block, with the peer counted as slow")
		}
	}
}

// TestScribble: many fetches with tiny budgets on few connections. Each caller scribbles over its memory as soon as its
// fetch has returned; the race detector sees any write that comes later.
func TestScribble(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	m := &memory{}
	for i := range 8 {
		m.put(keyOf(i), blockOf(r, 1+r.IntN(128<<10)))
	}
	a, b := serve(t, ServerOptions{Holder: m}), serve(t, ServerOptions{Holder: m, Node: "n2"})
	p := proxyTo(t, a.addr)
	p.set(func(_ int, at int64, b []byte) bool {
		if at/16%5 == 0 {
			time.Sleep(time.Duration(at%3) * time.Millisecond)
		}
		return true
	})
	c := client(t, map[string]string{"n1": p.addr, "n2": b.addr})
	var hits, late atomic.Int64
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(3, uint64(k)))
			for range 60 {
				g := &Get{Space: space, Wants: wants(r.IntN(8), r.IntN(8), r.IntN(8))}
				if r.IntN(2) == 0 {
					g.Second = "n2"
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(20_000))*time.Microsecond)
				if r.IntN(4) == 0 {
					go cancel()
				}
				var s sink
				_ = c.Fetch(ctx, "n1", g, s.place) // cut off at any moment
				cancel()
				for i := range s.got {
					if s.got[i] == nil {
						continue
					}
					if g.Wants[i].Status == Hit {
						hits.Add(1)
						if !bytes.Equal(s.got[i], m.get(g.Wants[i].Key).bytes()) {
							t.Error("a hit with wrong bytes")
						}
					} else {
						late.Add(1)
					}
					clear(s.got[i])
				}
			}
		})
	}
	wg.Wait()
	if hits.Load() == 0 || late.Load() == 0 {
		t.Errorf("%d hits and %d blocks cut off: want both", hits.Load(), late.Load())
	}
}

// TestFlips changes one byte of what a server sends, anywhere. No changed block is a hit, and each change is counted.
func TestFlips(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 3))
	m := &memory{}
	const blocks = 4
	total := int64(0)
	for i := range blocks {
		h := blockOf(r, 1+r.IntN(20<<10))
		m.put(keyOf(i), h)
		total += frameHeader + blockSize + int64(len(h.meta)+len(h.bytes())) + sumSize
	}
	for _, tls := range []bool{false, true} {
		n, secure := serveTLS(t, tls, ServerOptions{Holder: m})
		rounds := 300
		if tls {
			rounds = 30
		}
		for range rounds {
			p := proxyTo(t, n.addr)
			c := client(t, map[string]string{"n1": p.addr}, secure)
			if _, err := c.Ping(within(t, 5*time.Second), "n1"); err != nil {
				t.Fatal(err)
			}
			var begin atomic.Int64
			begin.Store(-1)
			flip := r.Int64N(total)
			bit := byte(1) << r.IntN(8)
			p.set(func(_ int, at int64, b []byte) bool {
				begin.CompareAndSwap(-1, at)
				if k := begin.Load() + flip - at; k >= 0 && k < int64(len(b)) {
					b[k] ^= bit
				}
				return true
			})
			g := &Get{Space: space, Wants: wants(0, 1, 2, 3)}
			var s sink
			budget := 5 * time.Second
			if tls {
				budget /= 50
			}
			_ = c.Fetch(within(t, budget), "n1", g, s.place) // its error says what was wrong
			hits := 0
			for i := range g.Wants {
				if g.Wants[i].Status != Hit {
					continue
				}
				hits++
				if h := m.get(g.Wants[i].Key); !bytes.Equal(s.got[i], h.bytes()) || s.meta[i] != string(h.meta) {
					t.Fatalf("byte %d changed: block %d is a hit with wrong bytes", flip, i)
				}
			}
			st, _ := c.Stats("n1")
			if hits == blocks {
				t.Fatalf("byte %d changed: all blocks are hits", flip)
			}
			// With TLS a changed length of a record is found only when the record is complete, which may be never.
			if st.Answers[Damaged] == 0 && !(tls && st.Answers[Late] > 0) {
				t.Fatalf("byte %d changed: not counted: %+v", flip, st)
			}
			c.Close()
		}
	}
}

// TestKilledPeer: the connection breaks in the middle of a block, and the peer comes back later.
func TestKilledPeer(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 4))
	m := &memory{}
	for i := range 4 {
		m.put(keyOf(i), blockOf(r, 1<<20))
	}
	n := serve(t, ServerOptions{Holder: m})
	p := proxyTo(t, n.addr)
	c := client(t, map[string]string{"n1": p.addr, "n2": n.addr})
	p.set(func(_ int, at int64, b []byte) bool { return at < 1500<<10 })
	g := &Get{Space: space, Wants: wants(0, 1, 2, 3)}
	began := time.Now()
	err := c.Fetch(within(t, 5*time.Second), "n1", g, new(sink).place)
	if err == nil || g.Wants[0].Status != Hit || g.Wants[2].Status != Late {
		t.Errorf("%v: %v, %v", err, g.Wants[0].Status, g.Wants[2].Status)
	}
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("a broken connection took %v of 5 s", d)
	}

	// A server that is gone: the fetch fails at once. One that is back is found again although idle connections are dead.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	first := serveOn(t, l, ServerOptions{Holder: m})
	c.SetPeers(map[string]string{"n1": addr})
	fetch := func() error { return c.Fetch(within(t, 5*time.Second), "n1", g, new(sink).place) }
	if err := fetch(); err != nil {
		t.Fatal(err)
	}
	first.stop()
	began = time.Now()
	if err := fetch(); err == nil || time.Since(began) > 2*time.Second || g.Wants[0].Status != Late {
		t.Errorf("a fetch from nobody took %v: %v", time.Since(began), err)
	}
	if l, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	again := serveOn(t, l, ServerOptions{Holder: m})
	eventually(t, "reconnect", func() bool { return fetch() == nil && g.Wants[3].Status == Hit })
	again.stop()
	if l, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, ServerOptions{Holder: m})
	if err := fetch(); err != nil || g.Wants[3].Status != Hit { // a restart that nobody saw
		t.Errorf("after a restart: %v, %v", err, g.Wants[3].Status)
	}
}

// TestBudgetAtTheServer: a server that reads slowly answers Busy for what it cannot begin in time, and the connection
// stays of use.
func TestBudgetAtTheServer(t *testing.T) {
	m := &memory{gate: func(w *Want) { time.Sleep(15 * time.Millisecond) }}
	for i := range 10 {
		m.put(keyOf(i), &held{pieces: [][]byte{make([]byte, 100)}})
	}
	n := serve(t, ServerOptions{Holder: m})
	c := client(t, map[string]string{"n1": n.addr})
	g := &Get{Space: space, Wants: wants(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)}
	if _, err := c.Ping(within(t, 5*time.Second), "n1"); err != nil {
		t.Fatal(err)
	}
	if err := c.Fetch(within(t, 70*time.Millisecond), "n1", g, new(sink).place); err != nil {
		t.Error(err)
	}
	if g.Wants[0].Status != Hit || g.Wants[9].Status == Hit {
		t.Errorf("%v … %v", g.Wants[0].Status, g.Wants[9].Status)
	}
	eventually(t, "the server's answer", func() bool { return n.Stats().Answers[Busy] > 0 && n.Stats().Reads == 0 })
	if _, err := c.Ping(within(t, 5*time.Second), "n1"); err != nil {
		t.Error(err)
	}
}

// TestStuckClient: a client that does not read does not keep a server's memory for longer than its budget.
func TestStuckClient(t *testing.T) {
	m := &memory{}
	m.put(keyOf(1), &held{pieces: [][]byte{make([]byte, 64<<20)}})
	n := serve(t, ServerOptions{Holder: m})
	raw, err := net.Dial("tcp", n.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	h := hello{spoken, "me", "n1"}
	out := h.append(nil)
	g := &Get{Space: space, Wants: wants(1)}
	if _, err := raw.Write(appendGet(out, 1, g, 50, []uint16{0})); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a read", func() bool { return n.Stats().Answers[Hit] == 1 })
	eventually(t, "release", func() bool { s := n.Stats(); return s.Conns == 0 && s.Held == 0 && m.refs.Load() == 0 })
}

// TestGarbage: what makes no sense closes its connection, and others go on.
func TestGarbage(t *testing.T) {
	m := &memory{}
	m.put(keyOf(1), &held{pieces: [][]byte{make([]byte, 1000)}})
	n := serve(t, ServerOptions{Holder: m})
	c := client(t, map[string]string{"n1": n.addr})
	h := hello{spoken, "x", "n1"}
	greeting := h.append(nil)
	long := beginFrame(nil, kindGet)
	le.PutUint32(long[4:], maxBody+1)
	le.PutUint16(long[2:], headSum(long))
	many := appendGet(nil, 1, &Get{Wants: wants(1)}, 1, []uint16{0})
	le.PutUint16(many[frameHeader+4+8+4+3:], MaxWants+1)
	endFrame(many, 0)
	flipped := appendGet(nil, 1, &Get{Wants: wants(1)}, 1, []uint16{0})
	flipped[20] ^= 1
	answerFrame, _ := (&answer{status: Miss}).append(nil)
	for _, b := range [][]byte{
		[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), long, append(greeting[:len(greeting):len(greeting)], long...),
		append(greeting[:len(greeting):len(greeting)], many...), append(greeting[:len(greeting):len(greeting)], flipped...),
		append(greeting[:len(greeting):len(greeting)], answerFrame...),
		append(greeting[:len(greeting):len(greeting)], greeting...),
		bytes.Repeat([]byte{0}, 100), bytes.Repeat([]byte{0xff}, 100),
	} {
		before := n.Stats()
		raw, err := net.Dial("tcp", n.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := raw.Write(b); err != nil {
			t.Fatal(err)
		}
		eventually(t, "close", func() bool { s := n.Stats(); return s.Garbage+s.Refused == before.Garbage+before.Refused+1 })
		raw.Close()
		g := &Get{Space: space, Wants: wants(1)}
		if err := c.Fetch(within(t, 5*time.Second), "n1", g, new(sink).place); err != nil || g.Wants[0].Status != Hit {
			t.Errorf("beside garbage: %v, %v", err, g.Wants[0].Status)
		}
	}
	if s, _ := c.Stats("n1"); s.Dials != 1 {
		t.Errorf("%d dials: another's garbage closed a connection", s.Dials)
	}
}

// TestGarbageFromAServer: a client survives any bytes.
func TestGarbageFromAServer(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 5))
	m := &memory{}
	for i := range 4 {
		m.put(keyOf(i), blockOf(r, 5000))
	}
	n := serve(t, ServerOptions{Holder: m})
	for range 100 {
		p := proxyTo(t, n.addr)
		at := r.Int64N(20_000)
		p.set(func(_ int, off int64, b []byte) bool {
			for i := range b {
				if off+int64(i) >= at {
					b[i] = byte(rand.Uint32())
				}
			}
			return true
		})
		c := client(t, map[string]string{"n1": p.addr})
		g := &Get{Space: space, Wants: wants(0, 1, 2, 3)}
		var s sink
		_ = c.Fetch(within(t, 100*time.Millisecond), "n1", g, s.place)
		for i := range g.Wants {
			if g.Wants[i].Status == Hit && !bytes.Equal(s.got[i], m.get(g.Wants[i].Key).bytes()) {
				t.Error("a hit with wrong bytes")
			}
		}
		c.Close()
	}
}

func TestTooManyConnections(t *testing.T) {
	n := serve(t, ServerOptions{Holder: &memory{}, MaxConns: 1})
	a, b := client(t, map[string]string{"n1": n.addr}), client(t, map[string]string{"n1": n.addr})
	if _, err := a.Ping(within(t, 5*time.Second), "n1"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Ping(within(t, 5*time.Second), "n1"); err == nil {
		t.Error("a connection beyond the bound")
	}
	a.Close()
	eventually(t, "a free place", func() bool {
		_, err := b.Ping(within(t, 5*time.Second), "n1")
		return err == nil
	})
}
