package peer

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"grebe/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var space = Space{Model: "m", Numerics: "avx2", Format: "bf16/3"}

// memory is a Holder: a map.
type memory struct {
	mu     sync.Mutex
	blocks map[plan.Key]*held
	gate   func(w *Want) // called by each Read; may be nil
	refs   atomic.Int64
}

type held struct {
	meta   []byte
	pieces [][]byte
	tokens uint32
	digest uint64
	sum    uint32
	summed bool
}

func (m *memory) put(key plan.Key, h *held) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.blocks == nil {
		m.blocks = map[plan.Key]*held{}
	}
	m.blocks[key] = h
}

func (m *memory) get(key plan.Key) *held {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.blocks[key]
}

func (m *memory) remove(key plan.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.blocks, key)
}

func (m *memory) Read(_ context.Context, s *Space, w *Want, b *Block) Status {
	if m.gate != nil {
		m.gate(w)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.blocks[w.Key]
	if h == nil || *s != space || w.Digest != 0 && w.Tokens == h.tokens && w.Digest != h.digest {
		return Miss
	}
	b.Meta = append(b.Meta, h.meta...)
	b.Pieces = append(b.Pieces, h.pieces...)
	b.Ref, b.Sum, b.Summed = h, h.sum, h.summed
	m.refs.Add(1)
	return Hit
}

func (m *memory) Release(b *Block) {
	h := b.Ref.(*held)
	m.mu.Lock()
	h.sum, h.summed = b.Sum, b.Summed
	m.mu.Unlock()
	m.refs.Add(-1)
}

func keyOf(i int) (k plan.Key) {
	le.PutUint64(k[:], uint64(i)*0x9e3779b97f4a7c15)
	le.PutUint64(k[8:], uint64(i))
	return k
}

// blockOf makes a block of n bytes in a few pieces.
func blockOf(r *rand.Rand, n int) *held {
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		le.PutUint64(b[i:], r.Uint64())
	}
	b = b[:n]
	h := &held{meta: fmt.Appendf(nil, "%d bytes", n), tokens: uint32(n)}
	for len(b) > 0 {
		k := min(len(b), 1+r.IntN(n))
		h.pieces, b = append(h.pieces, b[:k]), b[k:]
	}
	return h
}

func (h *held) bytes() []byte { return bytes.Join(h.pieces, nil) }

func anyEpoch(uint64) bool { return true }

// node is a running server.
type node struct {
	*Server
	addr string
	stop func()
}

func serve(t testing.TB, o ServerOptions, change ...func(*Server)) *node {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l, o, change...)
}

func serveOn(t testing.TB, l net.Listener, o ServerOptions, change ...func(*Server)) *node {
	t.Helper()
	if o.Node == "" {
		o.Node = "n1"
	}
	if o.Epoch == nil {
		o.Epoch = anyEpoch
	}
	s, err := NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	n := &node{Server: s, addr: l.Addr().String()}
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if s := n.Stats(); s.Conns != 0 || s.Reads != 0 || s.Held != 0 {
			t.Errorf("a stopped server has %+v", s)
		}
	})
	t.Cleanup(n.stop)
	return n
}

func client(t testing.TB, peers map[string]string, change ...func(*Client)) *Client {
	t.Helper()
	c, err := NewClient(Options{Node: "me"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(c)
	}
	c.SetPeers(peers)
	t.Cleanup(c.Close)
	return c
}

// wants returns wants of keys.
func wants(keys ...int) []Want {
	out := make([]Want, len(keys))
	for i, k := range keys {
		out[i].Key = keyOf(k)
	}
	return out
}

// sink is a place that makes buffers.
type sink struct {
	got  [][]byte
	meta []string
	cut  int // pieces have at most this many bytes; 0: one piece
}

func (s *sink) place(i int, meta []byte, n int64) ([][]byte, error) {
	for len(s.got) <= i {
		s.got, s.meta = append(s.got, nil), append(s.meta, "")
	}
	b := make([]byte, n)
	s.got[i], s.meta[i] = b, string(meta)
	if s.cut == 0 {
		return [][]byte{b}, nil
	}
	var out [][]byte
	for len(b) > 0 {
		k := min(s.cut, len(b))
		out, b = append(out, b[:k]), b[k:]
	}
	return out, nil
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for something that other goroutines do.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !f(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 5 s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// proxy passes connections on and disturbs them.
type proxy struct {
	addr string
	mu   sync.Mutex
	// down is called with the bytes that go to the client and their offset in the connection. It may change them, wait,
	// and return false to cut the connection.
	down  func(conn int, at int64, b []byte) bool
	conns []net.Conn
	count int
}

func proxyTo(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				a.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, a, b)
			n := p.count
			p.count++
			p.mu.Unlock()
			wg.Go(func() { p.pipe(n, b, a, false) })
			wg.Go(func() { p.pipe(n, a, b, true) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.cut()
		wg.Wait()
	})
	return p
}

func (p *proxy) set(f func(conn int, at int64, b []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = f
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

func (p *proxy) pipe(n int, to, from net.Conn, down bool) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 16<<10)
	for at := int64(0); ; {
		k, err := from.Read(b)
		if err != nil {
			return
		}
		p.mu.Lock()
		f := p.down
		p.mu.Unlock()
		if down && f != nil && !f(n, at, b[:k]) {
			return
		}
		if _, err := to.Write(b[:k]); err != nil {
			return
		}
		at += int64(k)
	}
}
