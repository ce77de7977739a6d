package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestFetch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	m := &memory{}
	var all []*held
	sizes := []int{1, small, small + 1, step - 1, step, step + 1, 3*step + 17, 5 << 20, 100}
	for i, n := range sizes {
		h := blockOf(r, n)
		if i == len(sizes)-1 {
			h.meta = make([]byte, MaxMeta)
		}
		all = append(all, h)
		m.put(keyOf(i), h)
	}
	m.put(keyOf(100), &held{}) // an empty block
	n := serve(t, ServerOptions{Holder: m})
	c := client(t, map[string]string{"n1": n.addr})
	for _, cut := range []int{0, 1 << 20, 1000} {
		g := &Get{Space: space, Wants: wants(0, 1, 2, 3, 4, 5, 6, 7, 8, 99, 100)}
		s := sink{cut: cut}
		if err := c.Fetch(within(t, 5*time.Second), "n1", g, s.place); err != nil {
			t.Fatal(err)
		}
		for i, h := range all {
			if g.Wants[i].Status != Hit || !bytes.Equal(s.got[i], h.bytes()) || s.meta[i] != string(h.meta) {
				t.Errorf("block %d of %d bytes: %v, meta of %d bytes", i, len(h.bytes()), g.Wants[i].Status, len(s.meta[i]))
			}
		}
		if g.Wants[9].Status != Miss || g.Wants[10].Status != Hit {
			t.Errorf("missing %v, empty %v", g.Wants[9].Status, g.Wants[10].Status)
		}
	}
	if s, _ := c.Stats("n1"); s.Dials != 1 || s.Bandwidth == 0 || s.RoundTrip == 0 || s.Slow || s.Answers[Hit] != 30 ||
		s.Answers[Miss] != 3 {
		t.Errorf("%+v", s)
	}
	if blocks, bytes := n.Sent("me"); blocks != 30 || bytes != n.Stats().Bytes {
		t.Errorf("sent %d blocks, %d bytes", blocks, bytes)
	}
	if blocks, _ := n.Sent("n7"); blocks != 0 {
		t.Errorf("sent %d blocks to nobody", blocks)
	}
	if m.refs.Load() != 0 {
		t.Errorf("%d references are left", m.refs.Load())
	}
}

// Without TLS a stranger can take any name. The counts do not grow with the names.
func TestNamesAreBounded(t *testing.T) {
	s, err := NewServer(ServerOptions{Node: "n1", Holder: &memory{}, Epoch: func(uint64) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 * maxNamed {
		s.sentTo(fmt.Sprint(i)).blocks.Add(1)
	}
	if len(s.toNode) != maxNamed {
		t.Errorf("%d names", len(s.toNode))
	}
}

func TestMismatches(t *testing.T) {
	m := &memory{}
	m.put(keyOf(1), &held{pieces: [][]byte{{1}}, tokens: 5, digest: 7})
	var epoch atomic.Uint64
	epoch.Store(3)
	n := serve(t, ServerOptions{Holder: m, Epoch: func(e uint64) bool { return e == epoch.Load() }})
	c := client(t, map[string]string{"n1": n.addr, "n2": n.addr})
	for _, q := range []struct {
		name   string
		change func(*Get)
		want   Status
	}{
		{"all right", func(g *Get) {}, Hit},
		{"an old epoch", func(g *Get) { g.Epoch = 2 }, WrongEpoch},
		{"a new epoch", func(g *Get) { g.Epoch = 4 }, WrongEpoch},
		{"another model", func(g *Get) { g.Space.Model = "x" }, Miss},
		{"another numerics class", func(g *Get) { g.Space.Numerics = "amx" }, Miss},
		{"another format", func(g *Get) { g.Space.Format = "bf16/4" }, Miss},
		{"a user's other tokens", func(g *Get) { g.Wants[0].Digest = 8 }, Miss},
		{"a user's tokens", func(g *Get) { g.Wants[0].Digest = 7 }, Hit},
	} {
		g := &Get{Epoch: 3, Space: space, Wants: wants(1)}
		g.Wants[0].Tokens = 5
		q.change(g)
		if err := c.Fetch(within(t, 5*time.Second), "n1", g, new(sink).place); err != nil || g.Wants[0].Status != q.want {
			t.Errorf("%s: %v, %v, want %v", q.name, g.Wants[0].Status, err, q.want)
		}
	}
	g := &Get{Epoch: 3, Space: space, Wants: wants(1)}
	if err := c.Fetch(within(t, 5*time.Second), "n2", g, nil); err == nil || err.Error() == "" ||
		g.Wants[0].Status != Late {
		t.Errorf("another node answers at the address: %v", err)
	} else {
		t.Log(err)
	}
	if err := c.Fetch(within(t, time.Second), "n3", g, nil); !errors.Is(err, ErrUnknown) {
		t.Errorf("an unknown node: %v", err)
	}
	if err := c.Fetch(within(t, time.Second), "n1", &Get{Wants: make([]Want, MaxWants+1)}, nil); err == nil {
		t.Error("too many wants")
	}
}

// TestEpochChangesDuringARead: a block that was read under an old map is not sent.
func TestEpochChangesDuringARead(t *testing.T) {
	var epoch atomic.Uint64
	m := &memory{gate: func(*Want) { epoch.Store(2) }}
	m.put(keyOf(1), &held{pieces: [][]byte{{1}}})
	epoch.Store(1)
	n := serve(t, ServerOptions{Holder: m, Epoch: func(e uint64) bool { return e == epoch.Load() }})
	c := client(t, map[string]string{"n1": n.addr})
	g := &Get{Epoch: 1, Space: space, Wants: wants(1, 1)}
	if err := c.Fetch(within(t, 5*time.Second), "n1", g, new(sink).place); err != nil {
		t.Fatal(err)
	}
	if g.Wants[0].Status != WrongEpoch || g.Wants[1].Status != WrongEpoch || m.refs.Load() != 0 {
		t.Errorf("%v, %v, %d references", g.Wants[0].Status, g.Wants[1].Status, m.refs.Load())
	}
}

func TestBusy(t *testing.T) {
	open, entered := make(chan struct{}), make(chan struct{}, 8)
	m := &memory{gate: func(w *Want) {
		if w.Tokens == 1 {
			entered <- struct{}{}
			<-open
		}
	}}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 4 {
		m.put(keyOf(i), blockOf(r, 1000))
	}
	m.put(keyOf(9), blockOf(r, 5000))
	n := serve(t, ServerOptions{Holder: m, MaxReads: 2, MaxBytes: 2500})
	c := client(t, map[string]string{"n1": n.addr})
	fetch := func(key int, tokens uint32) Status {
		g := &Get{Space: space, Wants: wants(key)}
		g.Wants[0].Tokens = tokens
		if err := c.Fetch(within(t, 5*time.Second), "n1", g, new(sink).place); err != nil {
			t.Error(err)
		}
		return g.Wants[0].Status
	}
	if s := fetch(9, 0); s != Hit {
		t.Errorf("a block above the bound, alone: %v", s)
	}
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			if s := fetch(i, 1); s != Hit {
				t.Errorf("a read within the bound: %v", s)
			}
		})
		<-entered
	}
	if s := fetch(3, 0); s != Busy {
		t.Errorf("a third read: %v", s)
	}
	close(open)
	wg.Wait()
	n.bytes.Store(2000) // two blocks are on their way
	if s := fetch(3, 0); s != Busy {
		t.Errorf("too many bytes: %v", s)
	}
	n.bytes.Store(0)
	if s := fetch(3, 0); s != Hit {
		t.Errorf("nothing else under way: %v", s)
	}
}

func TestPlaceDeclines(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	m := &memory{}
	for i := range 3 {
		m.put(keyOf(i), blockOf(r, 300<<10))
	}
	n := serve(t, ServerOptions{Holder: m})
	c := client(t, map[string]string{"n1": n.addr})
	g := &Get{Space: space, Wants: wants(0, 1, 2)}
	var s sink
	full := errors.New("no room")
	err := c.Fetch(within(t, 5*time.Second), "n1", g, func(i int, meta []byte, n int64) ([][]byte, error) {
		if i == 1 {
			return nil, full
		}
		return s.place(i, meta, n)
	})
	if err != nil || g.Wants[0].Status != Hit || g.Wants[1].Status != Declined || g.Wants[2].Status != Hit {
		t.Errorf("%v: %v", err, g.Wants)
	}
	err = c.Fetch(within(t, 5*time.Second), "n1", g, func(_ int, _ []byte, n int64) ([][]byte, error) {
		return [][]byte{make([]byte, n+1)}, nil
	})
	if err == nil || g.Wants[0].Status != Declined {
		t.Errorf("memory of the wrong size: %v, %v", err, g.Wants[0].Status)
	}
	if s, _ := c.Stats("n1"); s.Dials != 1 {
		t.Errorf("%d dials: a block that was declined needs no new connection", s.Dials)
	}
}

func TestManyFetchesShareFewConnections(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 4))
	m := &memory{}
	for i := range 16 {
		m.put(keyOf(i), blockOf(r, 1+r.IntN(100<<10)))
	}
	n := serve(t, ServerOptions{Holder: m})
	c := client(t, map[string]string{"n1": n.addr})
	var wg sync.WaitGroup
	for k := range 32 {
		wg.Go(func() {
			for i := range 20 {
				g := &Get{Space: space, Wants: wants((k+i)%16, (k*7+i)%16)}
				var s sink
				if err := c.Fetch(within(t, 10*time.Second), "n1", g, s.place); err != nil {
					t.Error(err)
				}
				for j := range g.Wants {
					if g.Wants[j].Status != Hit || !bytes.Equal(s.got[j], m.get(g.Wants[j].Key).bytes()) {
						t.Errorf("fetch %d of %d: %v", i, k, g.Wants[j].Status)
					}
				}
			}
		})
	}
	wg.Wait()
	if s, _ := c.Stats("n1"); s.Dials > 3 {
		t.Errorf("%d dials", s.Dials)
	}
}

func TestPing(t *testing.T) {
	n := serve(t, ServerOptions{Holder: &memory{}})
	c := client(t, map[string]string{"n1": n.addr, "gone": "127.0.0.1:1"})
	for range 3 {
		if d, err := c.Ping(within(t, 5*time.Second), "n1"); err != nil || d <= 0 {
			t.Errorf("%v, %v", d, err)
		}
	}
	if _, err := c.Ping(within(t, 5*time.Second), "gone"); err == nil {
		t.Error("a ping to nobody")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Ping(ctx, "n1"); err == nil {
		t.Error("a ping after its context ended")
	}
}

func TestCloseEndsFetches(t *testing.T) {
	open := make(chan struct{})
	m := &memory{gate: func(*Want) { <-open }}
	m.put(keyOf(1), &held{pieces: [][]byte{{1}}})
	n := serve(t, ServerOptions{Holder: m})
	c := client(t, map[string]string{"n1": n.addr})
	done := make(chan struct{}, 8)
	for range 8 { // more than there are connections
		go func() {
			g := &Get{Space: space, Wants: wants(1)}
			if err := c.Fetch(context.Background(), "n1", g, new(sink).place); err == nil || g.Wants[0].Status != Late {
				t.Errorf("%v, %v", err, g.Wants[0].Status)
			}
			done <- struct{}{}
		}()
	}
	eventually(t, "reads", func() bool { return n.Stats().Reads == 3 })
	c.Close()
	for range 8 {
		<-done
	}
	close(open)
	if err := c.Fetch(context.Background(), "n1", &Get{Wants: wants(1)}, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a fetch after Close: %v", err)
	}
}
