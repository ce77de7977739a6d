package fetch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"grebe/cluster/hold"
	"grebe/cluster/peer"
	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cpu"
	"grebe/engine"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/model"
	"grebe/model/modeltest"
	_ "grebe/model/qwen"
	"grebe/plan"
	"grebe/pool"
	"grebe/prompt"
	"grebe/residency"
	"grebe/reuse"
	"grebe/schedule"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a server's part that computes and keeps KV, with its connections to others.
type node struct {
	*reuse.Cache
	name    string
	store   *kv.Store
	pool    *pool.Pool
	engine  *engine.Engine
	prompt  *prompt.Builder
	load    *load
	fetcher *Fetcher
	server  *peer.Server
	wire    *wire
	metrics *prometheus.Registry
}

// load says how long computing takes: ms per token.
type load struct{ ms float64 }

func (l *load) Backlog() (float64, int)      { return 0, 0 }
func (l *load) Model() schedule.PrefillModel { return schedule.PrefillModel{Row: l.ms} }

// kind is the hardware of a node.
type kind struct {
	far      bool   // the host cannot see the device's memory
	host     bool   // there is host memory below it
	disk     bool   // and a disk
	numerics string // "": that of the others
	memory   int64  // bytes of KV; 0: plenty
}

// fleet starts nodes that know each other.
func fleet(t *testing.T, kinds ...kind) []*node {
	t.Helper()
	var all []*node
	addrs := map[string]string{}
	for i, k := range kinds {
		n := newNode(t, fmt.Sprintf("n%d", i), k)
		all = append(all, n)
		addrs[n.name] = n.wire.Addr().String()
	}
	for _, n := range all {
		n.join(t, addrs, all)
	}
	return all
}

func newNode(t *testing.T, name string, k kind) *node {
	t.Helper()
	var dev compute.Device
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	if k.far {
		dev = computetest.Far(dev, false)
	}
	dir := t.TempDir()
	spec := modeltest.Spec{Architecture: "Qwen3ForCausalLM", Hidden: 64, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 16,
		Inter: 96, Vocab: 200, Seed: 7}
	if err := modeltest.Write(dir, spec); err != nil {
		t.Fatal(err)
	}
	m, err := model.Open(dir, dev, model.Options{DType: "f32"})
	if err != nil {
		t.Fatal(err)
	}
	if k.memory == 0 {
		k.memory = 32 << 20
	}
	memory, err := pool.Over(dev.Memory(), k.memory, 4096)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{name: name, store: kv.New(m.Shape(), memory), pool: memory, load: &load{20},
		metrics: prometheus.NewRegistry()}
	closers := []func() error{m.Close, memory.Close}
	if k.host {
		low, err := pool.Over(dev.Memory().Host(), k.memory, 4096)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.store.SetHost(low); err != nil {
			t.Fatal(err)
		}
		closers = append(closers, low.Close)
	}
	if k.disk {
		below, err := disk.Open(t.TempDir(), disk.Options{Budget: 64 << 20, Segment: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		n.store.SetDisk(below)
		closers = append(closers, below.Close)
	}
	if n.engine, err = engine.New(m, dev, engine.Options{MaxTokens: 4096, Cache: n.store}); err != nil {
		t.Fatal(err)
	}
	fixed := prompt.Config{Preamble: prompt.Text{Tokens: []int32{1, 2}}, Instruction: prompt.Text{Tokens: []int32{9}}}
	if n.prompt, err = prompt.New(fixed, nil, 200); err != nil {
		t.Fatal(err)
	}
	if err := n.store.SetHotness(residency.HotnessConfig{Users: 100, Items: 1000}); err != nil {
		t.Fatal(err)
	}
	n.Cache = reuse.New(n.prompt, reuse.Options{Store: n.store, Pool: memory, Load: n.load, Shape: m.Shape(),
		Model: plan.Key{7}})
	t.Cleanup(func() {
		if err := n.Settle(); err != nil {
			t.Error(err)
		}
		n.store.Close()
		if err := n.engine.Close(); err != nil {
			t.Error(err)
		}
		var errs []error
		for _, c := range closers {
			errs = append(errs, c())
		}
		if err := errors.Join(append(errs, dev.Close())...); err != nil {
			t.Error(err)
		}
	})
	n.serve(t, k.numerics)
	return n
}

// serve answers other nodes.
func (n *node) serve(t *testing.T, numerics string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.wire = &wire{Listener: l}
	holder := &hold.Holder{}
	remove := holder.Add(n.space(numerics), n.store)
	if n.server, err = peer.NewServer(peer.ServerOptions{
		Node: n.name, Holder: holder, Epoch: func(uint64) bool { return true }}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.server.Serve(ctx, n.wire) }()
	t.Cleanup(func() {
		n.wire.set(nil)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		remove()
	})
}

func (n *node) space(numerics string) peer.Space {
	model, format := n.Space()
	return peer.Space{Model: model, Numerics: numerics, Format: format}
}

// join connects the node to the others.
func (n *node) join(t *testing.T, addrs map[string]string, all []*node) {
	t.Helper()
	c, err := peer.NewClient(peer.Options{Node: n.name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.SetPeers(addrs)
	m, err := NewMetrics(n.metrics, func() int64 { return n.server.Stats().Bytes })
	if err != nil {
		t.Fatal(err)
	}
	n.fetcher = New(Config{Client: c, Space: n.space(""), Directory: &directory{self: n, all: all}, Metrics: m})
	n.SetPeers(n.fetcher)
}

// directory knows what all nodes have at the moment.
type directory struct {
	self *node
	all  []*node
}

func (d *directory) Epoch() uint64 { return 1 }

func (d *directory) Items(keys []plan.Key, at []Holders) {
	for i, key := range keys {
		for _, n := range d.all {
			if _, ok := n.store.Lookup(key); !ok || n == d.self {
				continue
			}
			if at[i].First == "" {
				at[i].First = n.name
			} else if at[i].Second == "" {
				at[i].Second = n.name
			}
		}
	}
}

func (d *directory) User(key plan.Key, tokens []int32) (at Holders, most int) {
	for _, n := range d.all {
		e, ok := n.store.Lookup(key)
		if !ok || n == d.self || int(e.Tokens) > len(tokens) || e.Digest != residency.Digest(tokens[:e.Tokens]) {
			continue
		}
		if int(e.Tokens) > most {
			at, most = Holders{First: n.name, Second: at.First}, int(e.Tokens)
		}
	}
	return at, most
}

// rank answers a ranking, and returns the tokens by the tier of their KV.
func (n *node) rank(ctx context.Context, r *reuse.Request) ([]float32, [plan.NumTiers]int, error) {
	v := n.Begin(r)
	l, err := n.prompt.Rank(v.Order(), r.User, r.Items)
	if err != nil {
		return nil, [plan.NumTiers]int{}, err
	}
	job := jobOf(&l)
	v.Attach(ctx, &l, job)
	res, err := n.engine.Do(ctx, job)
	if err != nil {
		v.End(&l, nil)
		return nil, [plan.NumTiers]int{}, err
	}
	tiers := job.Tiers()
	v.End(&l, res)
	return slices.Clone(res.Logits[0]), tiers, nil
}

func jobOf(l *prompt.Layout) *engine.Job {
	return &engine.Job{Plan: l.Plan, Want: []engine.Want{{Segment: l.Answers, IDs: []int32{1, 2, 3, 4, 5}}}}
}

func (n *node) ranks(t *testing.T, r *reuse.Request) ([]float32, [plan.NumTiers]int) {
	t.Helper()
	logits, tiers, err := n.rank(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return logits, tiers
}

// wire is a listener whose connections' bytes to the client a test can change or hold up.
type wire struct {
	net.Listener
	mu sync.Mutex
	f  func(b []byte) []byte
}

func (w *wire) set(f func(b []byte) []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.f = f
}

func (w *wire) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &line{c, w}, nil
}

type line struct {
	net.Conn
	wire *wire
}

func (l *line) Write(b []byte) (int, error) {
	l.wire.mu.Lock()
	f := l.wire.f
	l.wire.mu.Unlock()
	if f == nil {
		return l.Conn.Write(b)
	}
	if _, err := l.Conn.Write(f(slices.Clone(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}
