package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	clusterv1 "grebe/api/grebe/cluster/v1"
	grebev1 "grebe/api/grebe/v1"
	"grebe/cluster/coord/coordtest"
	"grebe/cluster/member"
	"grebe/cluster/mtls"
	"grebe/cluster/mtls/mtlstest"
	"grebe/cluster/status"
	"grebe/embed"
	"grebe/generate"
	"grebe/route"
	"grebe/serve"
	"grebe/serve/tracing"
)

// local answers with its name, or as answer says.
type local struct {
	name   string
	asked  atomic.Int64
	tracer *tracing.Tracer
	files  checkpoints
	rows   *embed.Shards                                                                      // may be nil
	keeper *generate.Keeper                                                                   // may be nil
	answer func(ctx context.Context, req *grebev1.RankRequest) (*grebev1.RankResponse, error) // may be nil
}

func (l *local) Rank(ctx context.Context, req *grebev1.RankRequest) (*grebev1.RankResponse, error) {
	l.asked.Add(1)
	if l.answer != nil {
		return l.answer(ctx, req)
	}
	return &grebev1.RankResponse{Node: l.name}, nil
}

func (*local) Recommend(context.Context, *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error) {
	return nil, errors.New("not asked here")
}

func (*local) Score(context.Context, *grebev1.ScoreRequest) (*grebev1.ScoreResponse, error) {
	return nil, errors.New("not asked here")
}

func (*local) Rerank(context.Context, *grebev1.RerankRequest) (*grebev1.RerankResponse, error) {
	return nil, errors.New("not asked here")
}

func (l *local) Offer(string) (serve.Offer, bool) {
	return serve.Offer{Version: l.files.serving(), Rows: l.rows}, true
}

func (l *local) Checkpoint(string) (serve.Checkpoint, error) { return l.files.describe(), nil }

func (l *local) ChangeCheckpoint(_ string, back bool) error { return l.files.change(back) }

func (l *local) Keeper() *generate.Keeper { return l.keeper }

func (*local) HotItems() ([]serve.Hot, int64) { return nil, 0 }

func (l *local) Tracer() *tracing.Tracer { return l.tracer }

func (*local) Rescue(_ string, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic: %v", p)
	}
}

// testNode is a member of a test's cluster.
type testNode struct {
	*Cluster
	local    *local
	listener *listener
}

// listener remembers the connections that it accepted.
type listener struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conns = append(l.conns, c)
	}
	return c, err
}

// kill breaks all connections without a word, and lets none begin.
func (l *listener) kill() {
	l.Close()
	l.cut()
}

// cut breaks all connections without a word.
func (l *listener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
}

// join starts a member.
func join(t *testing.T, s *coordtest.Server, name string, change func(*Config)) *testNode {
	t.Helper()
	return joinWith(t, s, name, change, func(*Cluster) {})
}

// joinWith is join, and calls before with the member that is not started yet.
func joinWith(t *testing.T, s *coordtest.Server, name string, change func(*Config), before func(*Cluster)) *testNode {
	t.Helper()
	return joinAs(t, s, &local{name: name}, change, before)
}

// joinAs is joinWith, for a member that answers by itself.
func joinAs(t *testing.T, s *coordtest.Server, self *local, change func(*Config), before func(*Cluster)) *testNode {
	t.Helper()
	name := self.name
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{Listener: ln}
	cfg := Config{
		Name: "test", Node: name, Listener: l, Peer: l.Addr().String(), API: "127.0.0.1:1", Coordinator: s.Open(),
		Routing: route.RoundRobin,
		Models:  []Model{{Name: "m", Group: "m", Numerics: "test"}}, Log: slog.New(slog.DiscardHandler),
		Users: 64, Items: 64,
	}
	if change != nil {
		change(&cfg)
	}
	c, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	before(c)
	n := &testNode{c, self, l}
	if err := c.Start(n.local); err != nil {
		t.Fatal(err)
	}
	c.Ready()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close %s: %v", name, err)
		}
	})
	return n
}

// three starts three members and waits until each can use all.
func three(t *testing.T, change func(*Config)) []*testNode {
	t.Helper()
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	nodes := []*testNode{join(t, s, "n1", change), join(t, s, "n2", change), join(t, s, "n3", change)}
	for _, n := range nodes {
		n.waitKnown(t, 3)
	}
	return nodes
}

// waitKnown waits until so many nodes are there and their KV is known.
func (n *testNode) waitKnown(t *testing.T, want int) {
	t.Helper()
	var last string
	for range 3000 {
		known := 0
		st := n.Status()
		for _, m := range st.Nodes {
			if len(m.Models) == 1 && m.Models[0].Known {
				known++
			}
		}
		if known == want {
			return
		}
		last = fmt.Sprintf("%d of %d nodes: %+v", known, want, st)
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal(last)
}

// rank asks at a member.
func (n *testNode) rank(ctx context.Context) (*grebev1.RankResponse, error) {
	req := &grebev1.RankRequest{Model: "m", RequestId: "r"}
	a := &serve.Asked{Op: "rank", Model: "m", Message: req, Start: time.Now(), Deadline: time.Now().Add(5 * time.Second)}
	resp, err := n.Answer(ctx, a, func(ctx context.Context) (proto.Message, error) { return n.local.Rank(ctx, req) })
	if err != nil {
		return nil, err
	}
	return resp.(*grebev1.RankResponse), nil
}

// Models of a group have the same entries, so all but the first name it.
func TestSharedEntries(t *testing.T) {
	t.Parallel()
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	n := join(t, s, "n1", func(c *Config) {
		c.Models = append(c.Models, Model{Name: "other", Group: "m", Numerics: "test"},
			Model{Name: "alone", Group: "alone", Numerics: "test"})
	})
	waitFor(t, func() bool { return len(n.Status().Nodes) == 1 && len(n.Status().Nodes[0].Models) == 3 })
	for i, want := range []string{"", "m", ""} {
		if m := n.Status().Nodes[0].Models[i]; m.SharesWith != want {
			t.Errorf("%s shares its entries with %q, want %q", m.Name, m.SharesWith, want)
		}
	}
}

func TestRequestsAreAnsweredByAll(t *testing.T) {
	t.Parallel()
	nodes := three(t, nil)
	by := map[string]int{}
	for range 9 {
		r, err := nodes[0].rank(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		by[r.Node]++
	}
	if len(by) != 3 { // a node that was not heard for a moment is left out, so that the shares differ on a busy machine
		t.Errorf("9 requests in turn were answered by %v", by)
	}
	if routed := nodes[0].Status().Nodes[1].Routed; routed != int64(by["n2"]) {
		t.Errorf("%d requests were sent to n2, which answered %d", routed, by["n2"])
	}
}

// A member knows the cluster some time after its start, and not before.
func TestAwait(t *testing.T) {
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	n := joinWith(t, s, "n1", nil, func(c *Cluster) {
		if err := c.Await(done); !errors.Is(err, context.Canceled) {
			t.Errorf("before its start: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := n.Await(ctx); err != nil {
		t.Fatal(err)
	}
	if _, ok := n.peers()["n1"]; !ok {
		t.Errorf("it knows the members, and they are %v", n.peers())
	}
}

func TestErrorsTravel(t *testing.T) {
	t.Parallel()
	nodes := three(t, nil)
	bad := serve.Errorf(serve.Unprocessable, "user.id", "no such thing")
	for _, n := range nodes {
		n.local.answer = func(context.Context, *grebev1.RankRequest) (*grebev1.RankResponse, error) { return nil, bad }
	}
	for range 3 {
		_, err := nodes[0].rank(t.Context())
		if e := serve.AsError(err); e.Code() != bad.Code() || e.Field() != bad.Field() || e.Error() != bad.Error() {
			t.Errorf("got %v (%s), want %v", err, e.Code(), bad)
		}
	}
	asked := nodes[0].local.asked.Load() + nodes[1].local.asked.Load() + nodes[2].local.asked.Load()
	if asked != 3 {
		t.Errorf("three wrong requests were asked %d times: another node is of no use", asked)
	}
}

// A node that refuses a request, and one that dies in the middle of it, cost one more try elsewhere.
func TestAnotherNodeIsAsked(t *testing.T) {
	t.Parallel()
	nodes := three(t, nil)
	nodes[1].local.answer = func(context.Context, *grebev1.RankRequest) (*grebev1.RankResponse, error) {
		return nil, serve.Later(time.Second, "too much to do")
	}
	nodes[2].local.answer = func(ctx context.Context, _ *grebev1.RankRequest) (*grebev1.RankResponse, error) {
		nodes[2].listener.kill()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for i := range 6 {
		r, err := nodes[0].rank(t.Context())
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if r.Node != "n1" {
			t.Errorf("request %d was answered by %s", i, r.Node)
		}
	}
	if nodes[1].local.asked.Load() == 0 || nodes[2].local.asked.Load() == 0 {
		t.Error("the nodes that fail were not asked")
	}
}

// A node that is silent, but whose connection is open, is not waited for.
func TestSilentNodesAreLeft(t *testing.T) {
	t.Parallel()
	nodes := three(t, nil)
	for _, n := range nodes[1:] {
		n.local.answer = func(ctx context.Context, _ *grebev1.RankRequest) (*grebev1.RankResponse, error) {
			n.wire.mu.Lock()
			for _, f := range n.wire.feeds {
				go f.Close() // waits for this call's connection
			}
			n.wire.mu.Unlock()
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}
	start := time.Now()
	for range 3 {
		if r, err := nodes[0].rank(t.Context()); err != nil || r.Node != "n1" {
			t.Errorf("answered by %v: %v", r, err)
		}
	}
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("silent nodes were waited for: %v", took)
	}
}

func TestDrainedNodesGetNothing(t *testing.T) {
	t.Parallel()
	nodes := three(t, nil)
	if err := nodes[0].Drain(t.Context(), "n2", true); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return nodes[0].Status().Nodes[1].Drained })
	waitFor(t, func() bool {
		before := nodes[1].local.asked.Load()
		for range 6 {
			if _, err := nodes[0].rank(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return nodes[1].local.asked.Load() == before
	})
	if err := nodes[2].Drain(t.Context(), "n2", false); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		_, err := nodes[0].rank(t.Context())
		return err == nil && nodes[1].local.asked.Load() > 6
	})
}

// A process that stops says so, and requests that still come are answered.
func TestLeavingNodes(t *testing.T) {
	t.Parallel()
	nodes := three(t, nil)
	nodes[1].Leave()
	waitFor(t, func() bool {
		before := nodes[1].local.asked.Load()
		for range 6 {
			if _, err := nodes[0].rank(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return nodes[1].local.asked.Load() == before
	})
	if err := nodes[1].Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := nodes[0].rank(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// lines is a log that several goroutines write.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) has(level, node, to string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, "level="+level+" ") && strings.Contains(line, " node="+node+" ") &&
			strings.Contains(line, " to="+to+" ") {
			return true
		}
	}
	return false
}

// The loss of a member is a warning, unless it announced that it stops.
func TestLossesAreWarnings(t *testing.T) {
	t.Parallel()
	var log lines
	nodes := three(t, func(cfg *Config) {
		cfg.Lease = time.Second
		if cfg.Node == "n1" {
			cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		}
	})
	nodes[1].Leave()
	waitFor(t, func() bool {
		for _, n := range nodes[0].Status().Nodes {
			if n.ID == "n2" {
				return n.Drained
			}
		}
		return false
	})
	if err := nodes[1].Close(); err != nil {
		t.Fatal(err)
	}
	nodes[2].cfg.Coordinator.(*coordtest.Client).Stall()
	nodes[2].listener.kill()
	waitFor(t, func() bool {
		return log.has("INFO", "n2", "LEASE_LOST") && log.has("INFO", "n2", "GONE") &&
			log.has("WARN", "n3", "LEASE_LOST") && log.has("WARN", "n3", "GONE")
	})
	waitFor(t, func() bool { // the map has them still
		p := nodes[0].Status().Placement
		return p != nil && slices.Equal(p.Nodes, []status.Held{{ID: "n1"}, {ID: "n2", Gone: true}, {ID: "n3", Gone: true}})
	})
	if log.has("WARN", "n2", "SUSPECT") || log.has("INFO", "n3", "SUSPECT") {
		t.Errorf("logs\n%s", log.text.String())
	}
}

func TestDeadlinesTravel(t *testing.T) {
	t.Parallel()
	nodes := three(t, nil)
	left := make(chan time.Duration, 1)
	for _, n := range nodes[1:] {
		n.local.answer = func(ctx context.Context, _ *grebev1.RankRequest) (*grebev1.RankResponse, error) {
			end, ok := ctx.Deadline()
			if !ok {
				return nil, errors.New("no deadline")
			}
			left <- time.Until(end)
			return &grebev1.RankResponse{}, nil
		}
	}
	for range 3 {
		if _, err := nodes[0].rank(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case d := <-left:
			if d > 5*time.Second || d < 3*time.Second {
				t.Errorf("%v of 5 s are left", d)
			}
		default: // answered here
		}
	}
}

// Only members get past the handshake.
func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	identity := func() func(node string) *mtls.Identity {
		a, err := mtlstest.New()
		if err != nil {
			t.Fatal(err)
		}
		return func(node string) *mtls.Identity {
			id, err := a.Identity(t.TempDir(), "test", node)
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
	}
	ours, theirs := identity(), identity()
	nodes := three(t, func(c *Config) { c.Identity = ours(c.Node) })
	for range 3 {
		if _, err := nodes[0].rank(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	foreign := &Cluster{cfg: Config{Identity: theirs("n1")}}
	for name, opts := range map[string][]grpc.DialOption{
		"without TLS":                {grpc.WithTransportCredentials(insecure.NewCredentials())},
		"of another authority":       (&wire{c: foreign}).options("n2"),
		"a member, for another node": nodes[0].wire.options("n3"),
	} {
		conn, err := grpc.NewClient("passthrough:///"+nodes[1].cfg.Peer, opts...)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if _, err := clusterv1.NewPeerClient(conn).Probe(ctx, &clusterv1.ProbeRequest{}); err == nil {
			t.Errorf("%s: a probe is answered", name)
		}
		cancel()
		conn.Close()
	}
}

// A client that gives up ends the request on the node that has it.
func TestCancelTravels(t *testing.T) {
	t.Parallel()
	nodes := three(t, nil)
	begun, ended := make(chan struct{}, 3), make(chan struct{}, 3)
	for _, n := range nodes[1:] {
		n.local.answer = func(ctx context.Context, _ *grebev1.RankRequest) (*grebev1.RankResponse, error) {
			begun <- struct{}{}
			<-ctx.Done()
			ended <- struct{}{}
			return nil, ctx.Err()
		}
	}
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := nodes[0].rank(ctx)
			done <- err
		}()
		select {
		case err := <-done: // answered here
			if err != nil {
				t.Error(err)
			}
		case <-begun:
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("the caller gets %v", err)
			}
			select {
			case <-ended:
			case <-time.After(4 * time.Second): // before the deadline
				t.Error("the node goes on with a request that nobody waits for")
			}
		}
		cancel()
	}
}

// A panic costs one request, which another node answers.
func TestPanicIsContained(t *testing.T) {
	t.Parallel()
	nodes := three(t, nil)
	for _, n := range nodes[1:] {
		n.local.answer = func(context.Context, *grebev1.RankRequest) (*grebev1.RankResponse, error) { panic("test") }
	}
	for range 6 {
		if _, err := nodes[0].rank(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if nodes[1].local.asked.Load() == 0 || nodes[2].local.asked.Load() == 0 {
		t.Error("the nodes that panic were not asked")
	}
}

// A router whose only node falls silent waits until it is heard again. Without a node it says so, within the deadline.
func TestRoutersLookAgain(t *testing.T) {
	t.Parallel()
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	node := join(t, s, "n1", nil)
	router := join(t, s, "r1", func(c *Config) { c.Roles = []string{member.Router} })
	router.waitKnown(t, 1)
	node.local.answer = func(ctx context.Context, _ *grebev1.RankRequest) (*grebev1.RankResponse, error) {
		if node.local.asked.Load() > 1 {
			return &grebev1.RankResponse{Node: "n1"}, nil
		}
		node.listener.cut()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	a := &serve.Asked{Op: "rank", Model: "m", Message: &grebev1.RankRequest{Model: "m"},
		Deadline: time.Now().Add(time.Hour)}
	here := func(context.Context) (proto.Message, error) { return nil, errors.New("a router does not compute") }
	if r, err := router.Answer(t.Context(), a, here); err != nil || r.(*grebev1.RankResponse).Node != "n1" {
		t.Errorf("answered by %v: %v", r, err)
	}
	if n := node.local.asked.Load(); n < 2 {
		t.Errorf("the node was asked %d times", n)
	}
	node.listener.kill()
	waitFor(t, func() bool {
		a.Deadline = time.Now().Add(3 * lookAgain)
		_, err := router.Answer(t.Context(), a, here)
		return err != nil && serve.Code(serve.AsError(err).Code()) == serve.NoNode
	})
}

func waitFor(t *testing.T, what func() bool) {
	t.Helper()
	for range 3000 {
		if what() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("it did not happen within a minute")
}
