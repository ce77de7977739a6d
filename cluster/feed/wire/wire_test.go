package wire

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"maps"
	"math"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/cluster/coord/coordtest"
	"grebe/cluster/feed"
	"grebe/compute"
	"grebe/compute/ref"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
	"grebe/residency"
	"grebe/route"
	"grebe/schedule"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var secret = feed.Secret{3, 1, 4}

// node is a node's store, and its feed on a socket.
type node struct {
	*kv.Store
	server *Server
	grpc   *grpc.Server
	serves sync.WaitGroup
	addr   string
	pool   *pool.Pool
}

var shape = compute.Shape{Layers: 1, KVHeads: 1, HeadDim: 2, KV: compute.BF16}

const (
	room  = 30_000                // entries
	space = room * kv.ChainTokens // tokens
)

// newNode starts a node. The address may be empty.
func newNode(t testing.TB, boot uint64, addr string, c ServerConfig, options ...grpc.ServerOption) *node {
	t.Helper()
	p, err := pool.Over(ref.New().Memory(), int64(shape.ChunkBytes(space, false)), 256)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Store: kv.New(shape, p), pool: p}
	n.Follow(boot, 1<<16)
	c.Publisher = feed.NewPublisher("a", secret, n.Store,
		func() feed.Load { return feed.Load{Backlog: 7 * time.Millisecond} })
	n.server = NewServer(c)
	n.grpc = grpc.NewServer(options...)
	clusterv1.RegisterFeedServer(n.grpc, n.server)
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	n.addr = l.Addr().String()
	n.serves.Go(func() { n.grpc.Serve(l) })
	t.Cleanup(n.kill)
	return n
}

// kill ends the node without a word.
func (n *node) kill() {
	if n.grpc == nil {
		return
	}
	n.grpc.Stop()
	n.server.Close()
	n.serves.Wait()
	n.Store.Close()
	n.pool.Close()
	n.grpc = nil
}

func key(i int) (k plan.Key) {
	binary.LittleEndian.PutUint32(k[:], uint32(i))
	k[20] = byte(i)
	return k
}

// change publishes and drops entries of users and items.
func (n *node) change(rng *mathrand.Rand, keys, count int) {
	for range count {
		i := rng.IntN(keys)
		if rng.IntN(3) == 0 {
			n.Drop(key(i))
			continue
		}
		kind, tokens := plan.Item, []int32(nil)
		if i%3 == 0 {
			kind, tokens = plan.User, []int32{int32(i), int32(rng.IntN(100))}
		}
		if e, err := n.Reserve(kv.Exact, 2, nil); err == nil {
			n.Publish(kind, key(i), tokens, e)
			e.Release()
		}
	}
}

// dump returns what the node holds, as an index has it.
func (n *node) dump() map[uint64]residency.Entry {
	all := map[uint64]residency.Entry{}
	events, _, _ := n.Snapshot()
	for _, e := range events {
		e.Owner = 0
		if e.Kind != plan.User {
			e.Tokens, e.Digest = 0, 0
		}
		all[residency.Mix(secret.Digest(&e.Key))] = e.Entry
	}
	return all
}

// router is a router that follows one node.
type router struct {
	sync.Mutex
	*route.Router
	start  time.Time
	client *Client
	cancel context.CancelFunc
	runs   sync.WaitGroup
	broken atomic.Pointer[error] // the last one
}

func newRouter(t testing.TB, addr string, edit func(c *ClientConfig)) *router {
	t.Helper()
	costs := schedule.DefaultCosts(schedule.PrefillModel{Fixed: 1, Row: .01})
	r := &router{start: time.Now().Add(-time.Minute)}
	var err error
	if r.Router, err = route.New(route.Config{Users: room, Items: room,
		Nodes: []route.Node{{Costs: costs}, {Costs: costs}}}); err != nil {
		t.Fatal(err)
	}
	c := ClientConfig{
		Follower: feed.FollowerConfig{Node: 1, ID: "a", Secret: secret, Sink: r.Router},
		Address:  addr, Options: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())},
		Lock: r, Clock: func() time.Duration { return time.Since(r.start) },
		Broken: func(err error) { r.broken.Store(&err) },
	}
	if edit != nil {
		edit(&c)
	}
	r.client = NewClient(c)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.runs.Go(func() { r.client.Run(ctx) })
	t.Cleanup(r.stop)
	return r
}

func (r *router) stop() {
	r.cancel()
	r.runs.Wait()
}

// dump returns what the router knows about the node. Ok is false if the node's part is unknown.
func (r *router) dump() (all map[uint64]residency.Entry, ok bool) {
	r.Lock()
	defer r.Unlock()
	all = map[uint64]residency.Entry{}
	r.Index().Visit(1, residency.Range{From: 0, To: math.MaxUint64}, func(at uint64, e residency.Entry) { all[at] = e })
	return all, r.Index().Known(1)
}

// patience is how long tests wait for what need not be fast: machines may be busy, and the race detector slow.
const patience = 20 * time.Second

// until waits until something holds, and returns how long it took.
func until(t testing.TB, what string, most time.Duration, f func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !f() {
		if time.Since(start) > most {
			t.Fatalf("after %v: not %s", time.Since(start), what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

// equal waits until the router knows what the node holds.
func equal(t testing.TB, r *router, n *node) time.Duration {
	t.Helper()
	return until(t, "the index equals the node's dump", patience, func() bool {
		got, ok := r.dump()
		return ok && maps.Equal(got, n.dump())
	})
}

func (r *router) unknown() bool {
	_, known := r.client.Stats()
	return !known
}

// A router learns what a node holds, follows its changes, and does so again after it was restarted.
func TestRouterRestarts(t *testing.T) {
	n := newNode(t, 1, "", ServerConfig{})
	rng := mathrand.New(mathrand.NewPCG(1, 1))
	n.change(rng, 20_000, 40_000)
	for round := range 3 {
		r := newRouter(t, n.addr, nil)
		stop := make(chan struct{})
		var changes sync.WaitGroup
		changes.Go(func() { // while the router takes its snapshot
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					n.change(rng, 20_000, 3)
				}
			}
		})
		took := until(t, "the node is known", patience, func() bool { return !r.unknown() })
		time.Sleep(100 * time.Millisecond)
		close(stop)
		changes.Wait()
		late := equal(t, r, n)
		s, _ := r.client.Stats()
		t.Logf("round %d: %d entries are known after %v, equal %v after the last change; %+v", round, len(n.dump()), took,
			late, s)
		if s.Snapshots != 1 || s.Gaps != 0 {
			t.Errorf("round %d: %+v", round, s)
		}
		if took+late > 2*time.Second {
			t.Errorf("round %d: known after %v and equal after %v, want both within 2 s", round, took, late)
		}
		r.stop()
		if !r.unknown() {
			t.Error("a node that is not followed is known")
		}
	}
}

// A node that is killed is unknown soon, and known again when it was restarted at the same address with other contents.
func TestNodeRestarts(t *testing.T) {
	n := newNode(t, 1, coordtest.Address(), ServerConfig{})
	rng := mathrand.New(mathrand.NewPCG(2, 1))
	n.change(rng, 3000, 5000)
	r := newRouter(t, n.addr, nil)
	equal(t, r, n)
	for boot := range uint64(3) {
		n.kill()
		took := until(t, "the killed node is unknown", feed.Limit+500*time.Millisecond, r.unknown)
		n = newNode(t, boot+2, n.addr, ServerConfig{})
		n.change(rng, 3000, 2000)
		t.Logf("unknown after %v, equal %v after the restart", took, equal(t, r, n))
	}
	// A new process of the router's connection, not of the node: nothing is sent twice.
	before, _ := r.client.Stats()
	p := newProxy(t, n.addr)
	r2 := newRouter(t, p.addr, nil)
	equal(t, r2, n)
	p.cut()
	n.change(rng, 3000, 500)
	until(t, "the cut is noticed", patience, func() bool { return r2.broken.Load() != nil })
	equal(t, r2, n)
	after, _ := r2.client.Stats()
	if after.Snapshots != 1 || before.Boots != 3 {
		t.Errorf("a cut connection takes a snapshot: %+v, and restarts: %+v", after, before)
	}
}

// proxy forwards bytes to a node until it is told not to.
type proxy struct {
	addr    string
	target  string
	l       net.Listener
	runs    sync.WaitGroup
	mu      sync.Mutex
	conns   map[net.Conn]bool
	stalled chan struct{} // closed: forward
}

func newProxy(t *testing.T, target string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), target: target, l: l, conns: map[net.Conn]bool{}, stalled: make(chan struct{})}
	close(p.stalled)
	p.runs.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d, err := net.Dial("tcp", p.target)
			if err != nil {
				c.Close()
				continue
			}
			p.mu.Lock()
			p.conns[c], p.conns[d] = true, true
			p.mu.Unlock()
			p.runs.Go(func() { p.forward(c, d) })
			p.runs.Go(func() { p.forward(d, c) })
		}
	})
	t.Cleanup(func() {
		p.resume()
		l.Close()
		p.cut()
		p.runs.Wait()
	})
	return p
}

func (p *proxy) forward(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 4<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		stalled := p.stalled
		p.mu.Unlock()
		<-stalled
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// stall stops forwarding, as if the other side were stopped. Connections stay open.
func (p *proxy) stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = make(chan struct{})
}

func (p *proxy) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.stalled:
	default:
		close(p.stalled)
	}
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

// A link that stops forwarding makes the node unknown in time. The server cuts off a follower that takes nothing,
// instead of keeping what it should get. When the link works again, the router starts over.
func TestLinkStalls(t *testing.T) {
	n := newNode(t, 1, "", ServerConfig{Stall: 400 * time.Millisecond})
	rng := mathrand.New(mathrand.NewPCG(3, 1))
	n.change(rng, 3000, 5000)
	p := newProxy(t, n.addr)
	r := newRouter(t, p.addr, nil)
	equal(t, r, n)
	p.stall()
	took := until(t, "the stalled node is unknown", feed.Limit+500*time.Millisecond, r.unknown)
	for range 40 { // more than the windows of the stream take
		n.change(rng, 3000, 4000)
		time.Sleep(5 * time.Millisecond)
	}
	cut := until(t, "the follower is cut off", patience, func() bool {
		n.server.mu.Lock()
		defer n.server.mu.Unlock()
		return len(n.server.followers) == 0
	})
	if s, known := r.client.Stats(); known {
		t.Errorf("the node is known: %+v", s)
	}
	p.resume()
	until(t, "the node is known", patience, func() bool { return !r.unknown() })
	t.Logf("unknown after %v, cut off %v after the last change, equal %v after it is known", took, cut, equal(t, r, n))
}

// An index that differs is compared with the node's sums and repaired, bucket by bucket: when it asks for it, and
// otherwise in the node's next round.
func TestIndexIsRepaired(t *testing.T) {
	for name, c := range map[string]ServerConfig{
		"asked": {AuditSpan: 50 * time.Millisecond},
		"round": {AuditSpan: 50 * time.Millisecond, AuditEvery: 300 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, 1, "", c)
			n.change(mathrand.New(mathrand.NewPCG(4, 1)), 5000, 10_000)
			r := newRouter(t, n.addr, nil)
			equal(t, r, n)
			r.Lock()
			r.Replace(1, residency.Range{From: 1 << 60, To: 2<<60 - 1}, nil) // 256 buckets, more than one Ask takes
			r.Unlock()
			if got, _ := r.dump(); maps.Equal(got, n.dump()) {
				t.Fatal("the index is as it was")
			}
			if name == "asked" {
				r.client.Compare()
			}
			took := until(t, "the index is repaired", patience, func() bool {
				if s, _ := r.client.Stats(); s.Repaired <= 64 { // dumps are slow
					return false
				}
				got, ok := r.dump()
				return ok && maps.Equal(got, n.dump())
			})
			s, _ := r.client.Stats()
			if s.Repaired <= 64 || s.Repaired > 256 || s.Snapshots != 1 {
				t.Errorf("%+v", s)
			}
			t.Logf("repaired after %v: %+v", took, s)
		})
	}
}

// A client that means another node, or has another secret, learns nothing.
func TestStrangers(t *testing.T) {
	n := newNode(t, 1, "", ServerConfig{})
	for name, c := range map[string]struct {
		edit func(c *ClientConfig)
		want string
	}{
		"node":   {func(c *ClientConfig) { c.Follower.ID = "b" }, feed.ErrNode.Error()},
		"secret": {func(c *ClientConfig) { c.Follower.Secret[15]++ }, feed.ErrSecret.Error()},
	} {
		r := newRouter(t, n.addr, c.edit)
		until(t, "the client is told", patience, func() bool { return r.broken.Load() != nil })
		if err := *r.broken.Load(); !strings.Contains(err.Error(), c.want) || !r.unknown() {
			t.Errorf("another %s: %v", name, err)
		}
		r.stop()
	}
}

// certificate returns a certificate that an authority signed, or a new authority if there is none.
func certificate(t *testing.T, authority *tls.Certificate) tls.Certificate {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{{127, 0, 0, 1}},
		BasicConstraintsValid: true, IsCA: authority == nil, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := c, any(private)
	if authority != nil {
		parent, signer = authority.Leaf, authority.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &private.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf}
}

// With mTLS, only a process with a certificate of the cluster's authority can read the feed.
func TestCredentials(t *testing.T) {
	authority := certificate(t, nil)
	trusted := x509.NewCertPool()
	trusted.AddCert(authority.Leaf)
	n := newNode(t, 1, "", ServerConfig{}, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{certificate(t, &authority)}, ClientCAs: trusted,
		ClientAuth: tls.RequireAndVerifyClientCert,
	})))
	n.change(mathrand.New(mathrand.NewPCG(5, 1)), 300, 500)
	with := func(certificates ...tls.Certificate) func(c *ClientConfig) {
		return func(c *ClientConfig) {
			secure := credentials.NewTLS(&tls.Config{Certificates: certificates, RootCAs: trusted})
			c.Options = []grpc.DialOption{grpc.WithTransportCredentials(secure)}
		}
	}
	other := certificate(t, nil)
	for name, edit := range map[string]func(c *ClientConfig){
		"plain": nil, "none": with(), "foreign": with(certificate(t, &other))} {
		r := newRouter(t, n.addr, edit)
		until(t, "the client is refused", patience, func() bool { return r.broken.Load() != nil })
		if s, known := r.client.Stats(); known || s.Snapshots != 0 {
			t.Errorf("a client with credentials %q reads the feed", name)
		}
		r.stop()
	}
	equal(t, newRouter(t, n.addr, with(certificate(t, &authority))), n)
}

// A follower that was woken up sleeps again. It looks at the clock a few times for each message, and not all the time.
func TestFollowerSleeps(t *testing.T) {
	n := newNode(t, 2, "127.0.0.1:0", ServerConfig{})
	var looks atomic.Int64
	r := newRouter(t, n.addr, func(c *ClientConfig) {
		clock := c.Clock
		c.Clock = func() time.Duration {
			looks.Add(1)
			return clock()
		}
	})
	n.change(mathrand.New(mathrand.NewPCG(1, 1)), 50, 100)
	equal(t, r, n)
	before := looks.Load()
	for range 10 { // as a comparison or an early message does
		r.client.wake()
		time.Sleep(50 * time.Millisecond)
	}
	if got := looks.Load() - before; got > 500 {
		t.Errorf("%d looks at the clock in half a second", got)
	}
}
