package replica

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	clusterv1 "grebe/api/grebe/cluster/v1"
	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/cluster/coord"
	"grebe/cluster/coord/coordtest"
)

// world is a cluster in this process.
type world struct {
	t     testing.TB
	dir   string
	open  func() coord.Coordinator
	tcp   bool // sockets; else connections in memory
	ttl   time.Duration
	bytes int64 // of each log

	mu    sync.Mutex
	boots int
	nodes map[string]*process // running ones
	cut   map[string]bool     // nodes that others do not reach
}

// process is a running node.
type process struct {
	*Node
	w       *world
	id      string
	away    atomic.Bool // the coordinator
	catalog *catalog.Catalog
	client  coord.Coordinator
	server  *grpc.Server
	ln      net.Listener
	served  sync.WaitGroup

	mu       sync.Mutex
	deleted  []string // users, as subscribers heard
	replaced int
}

func newWorld(t testing.TB, open func() coord.Coordinator) *world {
	return &world{t: t, dir: coordtest.Dir(t), open: open, ttl: 3 * time.Second, nodes: map[string]*process{},
		cut: map[string]bool{}}
}

// virtual returns a world with a coordinator in memory.
func virtual(t testing.TB) (*world, *coordtest.Server) {
	s := coordtest.NewServer()
	return newWorld(t, func() coord.Coordinator { return s.Open() }), s
}

// peers returns the members: those that run, also if they are cut off.
func (w *world) peers() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]string{}
	for id, p := range w.nodes {
		out[id] = p.ln.Addr().String()
	}
	return out
}

func (w *world) dial(from, node, address string) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, MaxDelay: time.Second / 2},
			MinConnectTimeout: time.Second})}
	if w.tcp {
		return grpc.NewClient(address, opts...)
	}
	return grpc.NewClient("passthrough:"+node, append(opts,
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			w.mu.Lock()
			p := w.nodes[node]
			cut := w.cut[node] || w.cut[from]
			w.mu.Unlock()
			if p == nil || cut {
				return nil, errors.New("connection refused")
			}
			return p.ln.(*bufconn.Listener).DialContext(ctx)
		}))...)
}

// start runs a node with the catalog in its folder.
func (w *world) start(id string) *process {
	w.t.Helper()
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("GREBE_REPLICA_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("self", id)
	}
	p := &process{w: w, id: id, client: w.open()}
	var err error
	p.catalog, err = catalog.Open(filepath.Join(w.dir, id),
		catalog.Options{Replicated: true, TrackDeletions: true, LogBytes: w.bytes, Logger: log})
	if err != nil {
		w.t.Fatal(err)
	}
	p.catalog.Subscribe(func(c catalog.Change) {
		if c.NewUser == nil && c.OldItem == nil && c.NewItem == nil && !c.Ended {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.deleted = append(p.deleted, c.ID)
		}
	})
	if w.tcp {
		if p.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			w.t.Fatal(err)
		}
	} else {
		p.ln = bufconn.Listen(1 << 16)
	}
	w.mu.Lock()
	w.boots++
	boot := fmt.Sprint("b", w.boots)
	w.nodes[id] = p
	w.mu.Unlock()
	p.Node, err = New(Options{Node: id, Boot: boot, Catalog: p.catalog, Coordinator: p.client, Peers: w.peers,
		TTL: w.ttl, Lag: w.ttl, Log: log,
		Dial:      func(node, address string) (*grpc.ClientConn, error) { return w.dial(id, node, address) },
		Reachable: func() bool { return !p.away.Load() },
		Replaced:  func() { p.mu.Lock(); p.replaced++; p.mu.Unlock() }})
	if err != nil {
		w.t.Fatal(err)
	}
	p.server = grpc.NewServer()
	clusterv1.RegisterReplicaServer(p.server, p.Node)
	p.served.Go(func() { _ = p.server.Serve(p.ln) })
	p.Node.Start()
	return p
}

// kill ends a node without a word to the others: no connection and no coordinator is left to resign with.
func (p *process) kill() {
	p.w.mu.Lock()
	delete(p.w.nodes, p.id)
	p.w.mu.Unlock()
	p.server.Stop()
	_ = p.client.Close()
	p.Node.Close()
	if err := p.catalog.Close(); err != nil {
		p.w.t.Error(err)
	}
	p.served.Wait()
}

func (w *world) close() {
	for _, p := range w.running() {
		p.kill()
	}
}

func (w *world) running() []*process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(maps.Values(w.nodes), func(a, b *process) int { return cmp.Compare(a.id, b.id) })
}

// leader waits for a node that takes writes.
func (w *world) leader() *process {
	for {
		for _, p := range w.running() {
			if _, err := p.Term(); err == nil {
				return p
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// settle waits until all nodes are in sync and show the same.
func (w *world) settle() {
	w.t.Helper()
	began := time.Now()
	for {
		all, same := w.running(), true
		first := all[0].State()
		for _, p := range all {
			s := p.State()
			state, _ := p.catalog.LogState()
			same = same && len(s.InSync) == len(all) && s.Index == first.Index && state.Last.Index == s.Index
		}
		if same {
			break
		}
		if time.Since(began) > time.Minute {
			for _, p := range all {
				w.t.Errorf("%s: %+v", p.id, p.State())
			}
			w.t.Fatal("the nodes do not agree after a minute")
		}
		time.Sleep(5 * time.Millisecond)
	}
	dumps := map[string][]string{}
	for _, p := range w.running() {
		d := dump(w.t, p.catalog)
		dumps[d] = append(dumps[d], p.id)
	}
	if len(dumps) != 1 {
		w.t.Fatalf("the nodes' catalogs differ: %v", dumps)
	}
}

// dump returns a digest of a catalog's files, with its place and version and what readers see.
func dump(t testing.TB, c *catalog.Catalog) string {
	t.Helper()
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h := sha256.New()
	for {
		pairs, err := s.Next(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if pairs == nil {
			stats := c.Stats()
			return fmt.Sprintf("%v %d items %d users %s version %d %x", s.Head, stats.Items, stats.Users, stats.Digest,
				stats.Version, h.Sum(nil))
		}
		h.Write(pairs)
	}
}

func put(c *catalog.Catalog, id, text string) error {
	_, err := c.PutItem(&grebev1.Item{Id: id, Text: proto.String(text)})
	return err
}
