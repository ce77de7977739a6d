package embed_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grebe/embed"
	"grebe/embed/embedtest"
	"grebe/embed/redisserver"
)

func cluster(t *testing.T, n int) []*redisserver.Server {
	t.Helper()
	nodes, err := redisserver.StartCluster(n)
	if errors.Is(err, redisserver.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range nodes {
		t.Cleanup(s.Stop)
	}
	return nodes
}

func clusterStore(t *testing.T, nodes []*redisserver.Server) *embed.Redis {
	t.Helper()
	var addresses []string
	for _, s := range nodes {
		if err := s.Command("FLUSHALL"); err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, s.Addr)
	}
	r, err := embed.NewRedis(embed.RedisConfig{Addresses: addresses, Prefix: "t:", RowBytes: rowBytes})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A cluster of three nodes is a store like any other. When one is stopped its rows are the default, counted, and those
// of the others are served; when it is back, so are its rows.
func TestRedisCluster(t *testing.T) {
	nodes := cluster(t, 3)
	t.Run("conformance", func(t *testing.T) {
		embedtest.Run(t, func(t *testing.T) embed.Store { return clusterStore(t, nodes) })
	})
	t.Run("updates", func(t *testing.T) { clusterUpdates(t, nodes) })
	t.Run("killed", func(t *testing.T) {
		clusterOutage(t, nodes, func() error { nodes[1].Halt(); return nil }, nodes[1].Resume)
	})
	t.Run("hung", func(t *testing.T) {
		clusterOutage(t, nodes, func() error { return nodes[2].Freeze(true) }, func() error { return nodes[2].Freeze(false) })
	})
}

const clusterKeys = 300

func putAll(t *testing.T, store embed.Store) (keys []uint64) {
	t.Helper()
	var rows []byte
	for k := range uint64(clusterKeys) {
		keys = append(keys, k)
		rows = append(rows, embedtest.Row(k, 1, rowBytes)...)
	}
	if err := store.Put(t.Context(), keys, rows); err != nil {
		t.Fatal(err)
	}
	return keys
}

func clusterOutage(t *testing.T, nodes []*redisserver.Server, stop, resume func() error) {
	store := clusterStore(t, nodes)
	defer store.Close()
	def := embedtest.Row(999, 99, rowBytes)
	table, err := embed.NewTable(store, nil, embed.TableConfig{Default: def, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	unhurried, err := embed.NewTable(store, nil, embed.TableConfig{Default: def, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	keys, out := putAll(t, store), make([]byte, clusterKeys*rowBytes)
	if g := unhurried.Gather(t.Context(), keys, out); g.Fetched != clusterKeys || g.Err != nil {
		t.Fatalf("before: %+v", g)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	var g embed.Gathered
	var lacking, failures int64
	for g.Fetched < clusterKeys/2 { // until the other nodes answer in time: the machine may be slow
		g = table.Gather(t.Context(), keys, out)
		var gone *embed.OutageError
		if !errors.As(g.Err, &gone) || g.Fetched+g.Outage != clusterKeys || g.Outage < clusterKeys/5 {
			t.Fatalf("with one of three nodes stopped: %+v; want about two thirds of %d rows and an OutageError", g, clusterKeys)
		}
		lacking, failures = lacking+int64(g.Outage), failures+1
	}
	if s := table.Stats(); s.Outage != lacking || s.Missing != 0 || s.Failures != failures {
		t.Errorf("counted %+v, want %d rows of %d outages", s, lacking, failures)
	}
	for i, k := range keys {
		if row := string(out[i*rowBytes:][:rowBytes]); row != string(def) && row != string(embedtest.Row(k, 1, rowBytes)) {
			t.Fatalf("row %d is neither right nor the default: %x", k, row)
		}
	}
	if err := resume(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; {
		if g = table.Gather(t.Context(), keys, out); g.Err == nil {
			break // a node that was killed has lost its rows
		}
		if time.Now().After(end) {
			t.Fatalf("no recovery: %v", g.Err)
		}
	}
	putAll(t, store)
	if g := unhurried.Gather(t.Context(), keys, out); g.Fetched != clusterKeys || g.Err != nil {
		t.Errorf("afterwards: %+v", g)
	}
}

// Changes in every node are seen.
func clusterUpdates(t *testing.T, nodes []*redisserver.Server) {
	store, other := clusterStore(t, nodes), clusterStore(t, nodes)
	defer store.Close()
	defer other.Close()
	table, err := embed.NewTable(store, newCache(t, 2*clusterKeys, "lru"), embed.TableConfig{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	keys, out := putAll(t, other), make([]byte, clusterKeys*rowBytes)
	table.Gather(t.Context(), keys, out)
	var rows []byte
	for _, k := range keys {
		rows = append(rows, embedtest.Row(k, 2, rowBytes)...)
	}
	if err := other.Put(t.Context(), keys, rows); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); string(out) != string(rows); table.Gather(t.Context(), keys, out) {
		if time.Now().After(end) {
			t.Fatal("changes are not seen")
		}
	}
}

// door passes connections on to a server until it is shut; then it takes them and says nothing.
type door struct {
	net.Listener
	to    string
	mu    sync.Mutex
	shut  bool
	conns []net.Conn
	mute  chan struct{} // somebody connected to the shut door
}

func (d *door) serve() {
	for {
		c, err := d.Accept()
		if err != nil {
			return
		}
		d.mu.Lock()
		d.conns = append(d.conns, c)
		shut := d.shut
		d.mu.Unlock()
		if shut {
			select {
			case d.mute <- struct{}{}:
			default:
			}
			continue
		}
		s, err := net.Dial("tcp", d.to)
		if err != nil {
			c.Close()
			continue
		}
		go func() { io.Copy(s, c); s.Close() }()
		go func() { io.Copy(c, s); c.Close() }()
	}
}

func (d *door) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = true
	for _, c := range d.conns {
		c.Close()
	}
	d.conns = nil
}

// A read returns at its deadline while another one waits longer for a connection that is being made.
func TestRedisReadDoesNotWaitForAnothersDial(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{Listener: l, to: redis(t).Addr, mute: make(chan struct{}, 1)}
	go d.serve()
	store, err := embed.NewRedis(embed.RedisConfig{
		Addresses: []string{l.Addr().String()}, Prefix: "t:", RowBytes: rowBytes, Pause: time.Nanosecond, Dial: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	store.Watch(func([]uint64) {}) // has one connection for all
	read := func(ctx context.Context) error {
		return store.Gather(ctx, []uint64{1}, make([]byte, rowBytes), make([]bool, 1))
	}
	if err := read(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.close()
	patient, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	others.Go(func() {
		for patient.Err() == nil {
			_ = read(patient)
		}
	})
	<-d.mute // a connection is being made
	var opened atomic.Bool
	defer time.AfterFunc(time.Minute, func() { opened.Store(true); d.close() }).Stop()
	hurried, end := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer end()
	if err := read(hurried); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a read of 20 ms while another one connects: %v, want that its deadline passed", err)
	}
	if opened.Load() {
		t.Error("the read waited for the connection, as long as that took")
	}
	stop()
	l.Close()
	d.close()
	others.Wait()
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}
