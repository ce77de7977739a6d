package divide

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/alloc"
	"grebe/compute"
	"grebe/embed"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
)

const rowBytes = 512

// system is a pool with the real caches on it.
type system struct {
	pool  *pool.Pool
	rows  *embed.Cache
	store *kv.Store
}

func newSystem(t *testing.T) *system {
	t.Helper()
	p, err := pool.New(16<<20, 32<<10)
	if err != nil {
		t.Fatal(err)
	}
	shape := compute.Shape{Layers: 2, Heads: 2, KVHeads: 2, HeadDim: 32, Hidden: 64, KV: compute.F32}
	s := &system{pool: p, store: kv.New(shape, p)}
	p.SetBoundary(0.5)
	cfg := embed.Config{Rows: 4096, MaxRows: 32768, RowBytes: rowBytes, Policy: "lru"}
	if s.rows, err = embed.NewCache(p.For(pool.Embeddings), cfg); err != nil {
		t.Fatal(err)
	}
	return s
}

// close fails if a page was lost.
func (s *system) close(t *testing.T) {
	t.Helper()
	s.store.Close()
	s.rows.Close()
	if err := s.pool.Close(); err != nil {
		t.Error(err)
	}
}

// serve does to the caches what a request does.
func (s *system) serve(d *Divider, r *rand.Rand, out []byte) error {
	user := r.Uint64N(200) + 1
	key := kv.KeyOf(plan.Key{}, nil, fmt.Sprint(user))
	e, _ := s.store.Get(key)
	hit := e != nil
	if !hit {
		var err error
		if e, err = s.store.Reserve(kv.Chain, 64+r.IntN(200), nil); err != nil {
			return err
		}
		s.store.Publish(plan.User, key, make([]int32, e.Len()), e)
	}
	keys := make([]uint64, 16)
	hits := 0
	for i := range keys {
		keys[i] = (r.Uint64N(20000) + 1) * 0x9E3779B97F4A7C15
		if s.rows.Get(keys[i], out) {
			hits++
		} else {
			s.rows.Put(keys[i], out, s.rows.Epoch(keys[i]))
		}
	}
	d.Gathered(keys, hits, time.Microsecond)
	d.Done(Request{User: user, Events: e.Len(), KVBytes: int64(e.Len()) * 512, KVHit: hit,
		Saved: time.Millisecond, Latency: 5 * time.Millisecond})
	e.Release()
	return nil
}

// jump moves to a random share at each decision.
type jump struct{ r *rand.Rand }

func (j jump) Decide(o *alloc.Observation) alloc.Decision {
	return alloc.Decision{From: o.Alpha, To: alloc.MinShare + 0.8*j.r.Float64()}
}

// The boundary moves over and over while requests run on both caches: none fails and no page is lost.
func TestMovesUnderLoad(t *testing.T) {
	s := newSystem(t)
	d, err := New(Config{Pool: s.pool, Rows: s.rows, KV: s.store, Controller: jump{rand.New(rand.NewPCG(1, 1))}}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for g := range 3 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 9))
			out := make([]byte, rowBytes)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := s.serve(d, r, out); err != nil {
					t.Errorf("a request failed: %v", err)
					return
				}
			}
		})
	}
	for range 60 {
		d.Step()
		for range 20 {
			d.Fill()
		}
	}
	close(stop)
	wg.Wait()
	if d.count.moved == 0 {
		t.Error("no page changed sides")
	}
	s.close(t)
}

// The pages of embeddings follow the boundary, and KV never owns more than its part.
func TestBothSidesFollow(t *testing.T) {
	s := newSystem(t)
	d, err := New(Config{Pool: s.pool, Rows: s.rows, KV: s.store, Controller: alloc.Static(0.8)}, 0.3)
	if err != nil {
		t.Fatal(err)
	}
	r, out := rand.New(rand.NewPCG(2, 2)), make([]byte, rowBytes)
	for range 300 {
		if err := s.serve(d, r, out); err != nil {
			t.Fatal(err)
		}
	}
	owned := func() float64 { return float64(s.pool.For(pool.Embeddings).Stats().Used) / (16 << 20) }
	if a := owned(); a < 0.28 || a > 0.3 {
		t.Errorf("embeddings own %.3f of the pool, want 0.3", a)
	}
	d.Step()
	if a := owned(); a < 0.78 || a > 0.8 {
		t.Errorf("embeddings own %.3f of the pool after the decision, want 0.8", a)
	}
	if over := s.pool.Over(); over != 0 {
		t.Errorf("KV owns %d bytes beyond its part", over)
	}
	s.close(t)
}

// A controller that uses shadows finds the side that would save more.
func TestClimbsOnShadows(t *testing.T) {
	s := newSystem(t)
	d, err := New(Config{Pool: s.pool, Rows: s.rows, KV: s.store, Controller: &alloc.Climb{}}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4000 { // users come round in a circle a little larger than KV's part; rows never return
		d.Done(Request{User: uint64(1 + i%40), KVBytes: 1 << 18, Saved: 3 * time.Millisecond})
	}
	if dec := d.Step(); dec.To >= dec.From {
		t.Errorf("KV would have saved all and the share went from %.2f to %.2f", dec.From, dec.To)
	}
	s.close(t)
}

// watcher records what it is shown, and moves to a share that the test sets.
type watcher struct {
	parts  []alloc.Observation
	epochs []alloc.Observation
	to     float64 // 0: stay
}

func (w *watcher) Decide(o *alloc.Observation) alloc.Decision {
	w.epochs = append(w.epochs, *o)
	return alloc.Decision{From: o.Alpha, To: o.Alpha}
}

func (w *watcher) Glance(o *alloc.Observation) (alloc.Decision, bool) {
	w.parts = append(w.parts, *o)
	return alloc.Decision{From: o.Alpha, To: w.to}, w.to > 0
}

// watched returns a divider of the system at 0.5 with controller w and a clock that the test sets.
func (s *system) watched(t *testing.T, w *watcher, clock *time.Time) *Divider {
	t.Helper()
	d, err := New(Config{Pool: s.pool, Rows: s.rows, KV: s.store, Controller: w, Now: func() time.Time { return *clock }},
		0.5)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Each glance sees its own part of an epoch, and the parts add up to the epoch. A glance may move the boundary.
func TestGlances(t *testing.T) {
	s, w, clock := newSystem(t), &watcher{}, time.Unix(1000, 0)
	d := s.watched(t, w, &clock)
	for part := range 3 {
		for i := range 100 * (part + 1) { // users come round in a circle a little larger than KV's part
			d.Done(Request{User: uint64(1 + i%40), KVBytes: 1 << 18, Saved: 3 * time.Millisecond,
				Computing: time.Millisecond, Latency: 50 * time.Millisecond})
		}
		clock = clock.Add(time.Second)
		if part < 2 && d.Glance() {
			t.Error("a boundary moved that should stay")
		}
	}
	w.to = 0.7
	if !d.Glance() || s.pool.Boundary() < 0.69 || d.count.decisions != 1 {
		t.Errorf("after a glance that wanted 0.7 the boundary is at %.2f, %d decisions", s.pool.Boundary(), d.count.decisions)
	}
	d.Step()
	gains := 0.0
	for i, o := range w.parts {
		if want := 100 * (i + 1); o.Requests != want || o.GPULoad < 0.099*float64(i+1) || o.GPULoad > 0.101*float64(i+1) {
			t.Errorf("part %d: %d requests and a load of %.3f, want %d and a tenth for each hundred", i, o.Requests, o.GPULoad,
				want)
		}
		gains += o.Gains.KV.Sum()
	}
	if e := w.epochs[0]; e.Requests != 600 || e.Alpha != 0.7 || e.Late != 1 || e.P99 != 50 || e.Gains.KV.Sum() != gains ||
		gains == 0 {
		t.Errorf("an epoch of %d requests, share %.2f, %.2f late, P99 %.0f, KV would have saved %.0f; "+
			"want 600, 0.70, 1.00, 50 and the %.0f of its parts",
			e.Requests, e.Alpha, e.Late, e.P99, e.Gains.KV.Sum(), gains)
	}
	s.close(t)
}

// A missed row costs what a row that was fetched did, however many were missed: some were fetched ahead.
func TestPriceOfARow(t *testing.T) {
	s := newSystem(t)
	asked := 0
	d, err := New(Config{Pool: s.pool, Rows: s.rows, KV: s.store, Controller: alloc.Static(0.5),
		Found: func() (lookups, hits int) { asked++; return 100, 90 }}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	d.Done(Request{User: 1})
	d.Fetched(3, 2*time.Millisecond)
	d.Fetched(5, 14*time.Millisecond)
	d.Step()
	if d.saves != 2 || d.state.EmbHit != 0.9 || asked != 1 {
		t.Errorf("a row costs %v ms, %.2f are found, asked %d times; want 2, 0.90, once", d.saves, d.state.EmbHit, asked)
	}
	d.Step()
	if d.saves != 2 {
		t.Errorf("a row costs %v ms after an epoch without fetches, want 2", d.saves)
	}
	s.close(t)
}

// Concurrent fetches keep the link as busy as one of them does.
func TestLinkIsBusyOnce(t *testing.T) {
	s, w, clock := newSystem(t), &watcher{}, time.Unix(1000, 0)
	d := s.watched(t, w, &clock)
	for range 10 { // 40 ms of every 100, four at a time; the last begins a little later
		clock = clock.Add(100 * time.Millisecond)
		for _, took := range []time.Duration{40, 40, 40, 30} {
			d.Gathered([]uint64{1, 2}, 1, took*time.Millisecond)
		}
	}
	d.Gathered([]uint64{1, 2}, 2, 0)
	d.Glance()
	if got := w.parts[0].LinkLoad; got < 0.399 || got > 0.401 {
		t.Errorf("a load of %.3f, want 0.4", got)
	}
	s.close(t)
}

func TestDecisionsAreExplained(t *testing.T) {
	var log bytes.Buffer
	s := newSystem(t)
	d, err := New(Config{Pool: s.pool, Rows: s.rows, KV: s.store, Controller: alloc.Static(0.6),
		Log: slog.New(slog.NewTextHandler(&log, nil))}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	d.Done(Request{User: 7, Latency: 40 * time.Millisecond})
	d.Step()
	for _, part := range []string{"0.500 -> 0.600", "late=1", "p99_ms=40", "hot=0"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log line has no %q: %s", part, &log)
		}
	}
	reg := prometheus.NewPedanticRegistry()
	m := &Metrics{}
	m.Add(d)
	reg.MustRegister(m)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, f := range families {
		if f.GetName() == "grebe_pool_boundary" {
			found = f.GetMetric()[0].GetGauge().GetValue() == 0.6
		}
	}
	if !found {
		t.Errorf("no grebe_pool_boundary of 0.6 among %d metrics", len(families))
	}
	s.close(t)
}

// While a checkpoint follows another, their dividers have the same labels: the later one is reported.
func TestDividersOfOneName(t *testing.T) {
	s, m := newSystem(t), &Metrics{}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m)
	boundary := func() (share float64) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "grebe_pool_boundary" && len(f.GetMetric()) == 1 {
				share = f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return share
	}
	refill := RefillConfig{Rows: func() int { return 64 }, Most: 64, RowBytes: 8, Name: "m"}
	var removes []func()
	for i, share := range []float64{0.3, 0.6} {
		d, err := New(Config{Pool: s.pool, Rows: s.rows, KV: s.store, Controller: alloc.Static(0.5), Name: "m",
			Memory: "device"}, share)
		if err != nil {
			t.Fatal(err)
		}
		removes = append(removes, m.Add(d))
		defer m.Add(NewRefiller(refill))()
		if got := boundary(); got != share {
			t.Errorf("with %d dividers the boundary is at %v, want %v", i+1, got, share)
		}
	}
	removes[1]()
	if got := boundary(); got != 0.3 {
		t.Errorf("when the later one has gone, the boundary is at %v, want 0.3", got)
	}
	removes[0]()
	s.close(t)
}

// asker reports requests while it decides, as a server does.
type asker struct {
	d  *Divider
	at func(name string, report func())
}

func (a *asker) report(name string) {
	a.at(name, func() {
		a.d.Done(Request{User: 1, Latency: time.Millisecond})
		a.d.Gathered([]uint64{1}, 0, time.Millisecond)
	})
}

func (a *asker) Decide(o *alloc.Observation) alloc.Decision {
	a.report("Decide")
	return alloc.Decision{From: o.Alpha, To: o.Alpha}
}

func (a *asker) Glance(o *alloc.Observation) (alloc.Decision, bool) {
	a.report("Glance")
	return alloc.Decision{From: o.Alpha, To: o.Alpha}, true
}

func (a *asker) Learn() { a.report("Learn") }

// Requests do not wait for a controller, and count towards the next epoch.
func TestRequestsDoNotWaitForTheController(t *testing.T) {
	s, a := newSystem(t), &asker{}
	var calls []string
	a.at = func(name string, report func()) {
		calls = append(calls, name)
		done := make(chan struct{})
		go func() {
			report()
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("a request waits for %s", name)
		}
	}
	var err error
	if a.d, err = New(Config{Pool: s.pool, Rows: s.rows, KV: s.store, Controller: a}, 0.5); err != nil {
		t.Fatal(err)
	}
	a.d.Glance()
	a.d.Step()
	if !slices.Equal(calls, []string{"Glance", "Decide", "Learn"}) || a.d.epoch.requests != 2 ||
		len(a.d.epoch.latencies) != 2 {
		t.Errorf("%v were called, and %d requests came since the epoch began, want 2", calls, a.d.epoch.requests)
	}
	s.close(t)
}

// The P99 of an epoch covers only its own requests, although buffers of latencies are reused.
func TestLatenciesOfEpochsAreApart(t *testing.T) {
	s, w, clock := newSystem(t), &watcher{}, time.Unix(1000, 0)
	d := s.watched(t, w, &clock)
	for epoch, requests := range []int{200, 50, 0, 100} {
		for i := range requests {
			d.Done(Request{Latency: time.Duration((epoch+1)*1000-i) * time.Millisecond})
		}
		d.Step()
	}
	for i, want := range []float64{998, 2000, 2000, 3999} {
		if got := w.epochs[i].P99; got != want {
			t.Errorf("epoch %d has a P99 of %v ms, want %v", i, got, want)
		}
	}
	s.close(t)
}

// Run decides once per epoch, by the clock.
func TestRunKeepsEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		w := &watcher{}
		d, err := New(Config{Pool: s.pool, Rows: s.rows, KV: s.store, Controller: w}, 0.5)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*alloc.Epoch*time.Second+time.Second)
		defer cancel()
		d.Run(ctx)
		if len(w.epochs) != 3 || d.count.decisions != 3 || len(w.parts) != 3*alloc.Glances+2 {
			t.Errorf("%d epochs, %d decisions and %d glances in three epochs and a second, want 3, 3 and %d",
				len(w.epochs), d.count.decisions, len(w.parts), 3*alloc.Glances+2)
		}
		s.close(t)
	})
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{}, 0.5); err == nil {
		t.Error("a divider of nothing")
	}
}
