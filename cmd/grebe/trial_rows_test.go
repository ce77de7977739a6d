package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"grebe/model/hstu"
	"grebe/model/hstu/hstutest"
	"grebe/schedule"
	"grebe/sim"
)

// Three nodes serve a model of events whose rows lie in Redis. A node has memory for half of the rows. Half of the
// requests are of users who return, whose rows all nodes have: KV matters. The others are of new users, who come in
// groups with rows of their own: rows matter. With emb-kv (HLM-5) more rows are cached than with kv-only, and more
// tokens than with emb-only (HLM-6).
//
// The device and the link to Redis take given times and nothing of the processor. The log has what the simulator
// predicts for the same requests. Which groups gather on which node depends on the order of the first requests, and the
// shares with it. So the log has the median and the range of several simulated runs whose times vary a little. The
// short form wants that all requests are answered, that no node is left out, and that most rows are cached.
// GREBE_TRIAL=full tries all policies.
func TestTrialRows(t *testing.T) {
	w := newRowsWorkload(t, long(1600, 600))
	got := map[string]rowsResult{}
	for _, p := range long([]string{"emb-kv", "predicted", "kv-only", "emb-only"}, []string{"emb-kv"}) {
		want, is := w.predict(t, p, long(9, 1)), w.serve(t, p)
		t.Logf("%-9s: %v; the simulator predicts %v", p, is, want)
		got[p] = is
	}
	both := got["emb-kv"]
	for _, node := range []string{"n1", "n2", "n3"} {
		if least := (len(w.list) - w.warm) / 10; both.by[node] < least {
			t.Errorf("emb-kv: %v: %s answered fewer than %d", both, node, least)
		}
	}
	if both.rows < .7 {
		t.Errorf("emb-kv: %v, want 70 %% of the rows", both)
	}
	if kv, emb := got["kv-only"], got["emb-only"]; trialFull() && (both.rows <= kv.rows || both.kv <= emb.kv) {
		t.Errorf("emb-kv: %v; kv-only: %v; emb-only: %v", both, kv, emb)
	}
}

const (
	rowsDim     = 64
	rowsItems   = 8192
	rowsUsers   = 120 // who return
	rowsHot     = 256 // items of the users who return
	rowsGroups  = 12  // of new users
	rowsGroup   = 600 // items of a group
	rowsEvents  = 200 // of a user at the beginning
	rowsNew     = 3   // events of a user between two requests
	rowsAsked   = 40  // candidates of a request
	rowsRate    = 45  // requests per second
	rowsCached  = 4096
	rowsToken   = 4096                  // bytes of KV of a token, in two layers
	rowsKV      = 150 * 300 * rowsToken // bytes of KV of a node
	rowsLink    = 1.32e6                // bytes per second from Redis to a node
	rowsOnWire  = 264                   // bytes of a row on its way: 0.2 ms
	rowsFixed   = 4.                    // milliseconds of a batch
	rowsCompute = .1                    // milliseconds of a token
)

// rowsRequest is a request of the workload.
type rowsRequest struct {
	at         time.Duration
	user       int
	events     int // of the user's history, from the first on
	candidates []int32
}

// rowsWorkload is what both the cluster and the simulator get.
type rowsWorkload struct {
	histories [][]int32
	list      []rowsRequest
	warm      int // requests that are not counted
	next      int // that the simulator reads
	one       []int32
}

func newRowsWorkload(t *testing.T, n int) *rowsWorkload {
	t.Helper()
	r := rand.New(rand.NewPCG(11, 11))
	w := &rowsWorkload{histories: make([][]int32, rowsUsers), warm: n / 2, one: slices.Repeat([]int32{1}, rowsAsked)}
	at := 0.
	for i := range n {
		user, more := r.IntN(rowsUsers), rowsNew
		first, items := 0, rowsHot
		switch {
		case i%2 == 1: // somebody new
			user, more = len(w.histories), rowsEvents
			first, items = rowsHot+r.IntN(rowsGroups)*rowsGroup, rowsGroup
			w.histories = append(w.histories, nil)
		case len(w.histories[user]) == 0:
			more = rowsEvents
		}
		h := &w.histories[user]
		for range more {
			*h = append(*h, int32(first+r.IntN(items)))
		}
		q := rowsRequest{user: user, events: len(*h)}
		for len(q.candidates) < rowsAsked {
			if c := int32(first + r.IntN(items)); !slices.Contains(q.candidates, c) {
				q.candidates = append(q.candidates, c)
			}
		}
		at += (.5 + r.Float64()) / rowsRate
		q.at = time.Duration(at * float64(time.Second))
		w.list = append(w.list, q)
	}
	return w
}

// rowsResult is what a run showed after the warm-up.
type rowsResult struct {
	kv, rows      float64 // cached shares of tokens and of rows
	p50, p90, p99 time.Duration
	by            map[string]int // answers by node
}

func (r rowsResult) String() string {
	return fmt.Sprintf("%.1f %% of tokens and %.1f %% of rows were cached, P50 %.1f, P90 %.1f, P99 %.1f ms %v", 100*r.kv,
		100*r.rows, ms(r.p50), ms(r.p90), ms(r.p99), r.by)
}

// The workload is a stream of the simulator. A grain is a row.

func (w *rowsWorkload) Grains() (count, rows int) { return rowsItems, 1 }

func (w *rowsWorkload) Items() int { return rowsItems }

func (w *rowsWorkload) ItemTokens(int32) int32 { return 1 }

func (w *rowsWorkload) Next(r *sim.Request) bool {
	if w.next == len(w.list) {
		return false
	}
	q := &w.list[w.next]
	w.next++
	r.At, r.User, r.UserTokens = q.at, uint64(q.user), int32(q.events)
	r.Items, r.ItemTokens = append(r.Items[:0], q.candidates...), append(r.ItemTokens[:0], w.one...)
	return true
}

func (w *rowsWorkload) AppendGrains(dst []int32, r *sim.Request, cached int) []int32 {
	from := len(dst)
	dst = append(append(dst, w.histories[r.User][cached:r.UserTokens]...), r.Items...)
	slices.Sort(dst[from:])
	return dst[:from+len(slices.Compact(dst[from:]))]
}

// predict simulates several runs. It returns the median of each figure and the range of the shares, as a text.
func (w *rowsWorkload) predict(t *testing.T, policy string, runs int) string {
	var figures [5][]float64
	for seed := range runs {
		r := w.simulate(t, policy, uint64(seed)+1)
		for i, v := range []float64{100 * r.kv, 100 * r.rows, ms(r.p50), ms(r.p90), ms(r.p99)} {
			figures[i] = append(figures[i], v)
		}
	}
	for i := range figures {
		slices.Sort(figures[i])
	}
	of := func(i int) float64 { return figures[i][runs/2] }
	last := runs - 1
	return fmt.Sprintf("%.1f (%.1f to %.1f) %% of tokens and %.1f (%.1f to %.1f) %% of rows, "+
		"P50 %.1f, P90 %.1f, P99 %.1f ms", of(0), figures[0][0], figures[0][last], of(1), figures[1][0], figures[1][last],
		of(2), of(3), of(4))
}

// simulate plays the workload on the simulator.
func (w *rowsWorkload) simulate(t *testing.T, policy string, seed uint64) (out rowsResult) {
	t.Helper()
	model := schedule.PrefillModel{Fixed: rowsFixed, Row: rowsCompute}
	model.Quality.Largest = schedule.Sample{Rows: 400, Keys: 400, Requests: 1}
	rows := int64(rowsCached * 4 * rowsDim)
	profile, err := json.Marshal(sim.Profile{Name: "rows", Source: "TestTrialRows", Prefill: model, Noise: .02,
		KVTokenBytes: rowsToken, DeviceBytes: rowsKV + rows, RowBytes: 4 * rowsDim,
		RowLink: rowsLink * 4 * rowsDim / rowsOnWire})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rows.json")
	if err := os.WriteFile(file, profile, 0o600); err != nil {
		t.Fatal(err)
	}
	s := sim.Default()
	s.Seed = seed
	s.Requests, s.Warmup.Duration = len(w.list), w.list[w.warm].at
	s.SLO.Duration, s.Deadline.Duration = 100*time.Millisecond, time.Minute
	s.Prompt.Policy, s.Prompt.Question = "user", 0
	s.Load.Rate, s.Fleet.Nodes, s.Fleet.Profile = rowsRate, 3, file
	s.Users.Count, s.Users.Tokens.Mean, s.Items.Count, s.Items.Tokens.Mean = rowsUsers, rowsEvents, rowsItems, 1
	s.Items.Candidates = rowsAsked
	s.Cache.Policy = "lru"
	s.Embeddings.Share, s.Embeddings.Controller = float64(rows)/float64(rowsKV+rows), "static"
	s.Route.Policy, s.Route.Inside = policy, true
	if policy == "emb-kv" {
		s.Route.Policy = "joint"
	}
	s.Route.MissKV, s.Route.MissEMB, s.Route.MissLoad = 0, 0, 0
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	w.next = 0
	r, err := sim.Run(t.Context(), s, sim.Options{Stream: w})
	if err != nil {
		t.Fatal(err)
	}
	if r.Answered != r.Requests {
		t.Fatalf("the simulator answers %d of %d requests", r.Answered, r.Requests)
	}
	of := func(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
	out = rowsResult{kv: r.Hits.Total, rows: r.Hits.Rows, p50: of(r.Latency.P50), p90: of(r.Latency.P90),
		p99: of(r.Latency.P99), by: map[string]int{}}
	for i := range r.Nodes {
		out.by[fmt.Sprint("n", i+1)] = r.Nodes[i].Requests
	}
	return out
}

// serve sends the workload to a cluster.
func (w *rowsWorkload) serve(t *testing.T, policy string) (out rowsResult) {
	t.Helper()
	redis := startRedis(t)
	if err := fillRows(redis.Addr, rowsItems, rowsDim); err != nil {
		t.Fatal(err)
	}
	model := t.TempDir()
	if err := hstutest.Write(model, hstutest.Spec{Hidden: rowsDim, Layers: 2, Heads: 2, HeadDim: rowsToken / 32,
		Items: rowsItems, MaxSeqLen: 1024, Change: func(c *hstu.Config) { c.Retrieval = false }}); err != nil {
		t.Fatal(err)
	}
	c := prepareTrial(t, 3, "cluster.routing="+policy, "cluster.fetch=off", "cache.boundary=fixed", "cache.policy=lru",
		fmt.Sprint("cache.host_memory=", rowsKV), fmt.Sprintf("device=none:%gms+%gus", rowsFixed, 1e3*rowsCompute))
	l := startLink(t, redis.Addr) // of all nodes: with other addresses their models would have other versions
	l.rate.Store(int64(rowsLink))
	for _, m := range c.nodes {
		m.config = filepath.Join(t.TempDir(), "grebe.yaml")
		if err := os.WriteFile(m.config, fmt.Appendf(nil, `
tables:
  - {name: items, store: redis, addresses: [%q], prefix: "items:", dim: %d, cache: %d, policy: lru, timeout_ms: 1000}
models: [{name: events, path: %s, item_table: items}]
`, l.addr(), rowsDim, rowsCached*4*rowsDim, model), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.startAll()
	samples := make([]sample, len(w.list))
	var asked sync.WaitGroup
	start, before := time.Now(), int64(0)
	for i := range w.list {
		if i == w.warm {
			asked.Wait()
			before = l.passed.Load()
			start = time.Now().Add(-w.list[i].at)
		}
		q, entry := w.question(i), c.nodes[i%3].listen // in turn, as in the simulator
		time.Sleep(time.Until(start.Add(w.list[i].at)))
		asked.Go(func() {
			began := time.Now()
			a, err := q.ask(entry)
			if err != nil {
				t.Error(err)
			}
			samples[i] = sample{began, time.Since(began), a.Node, a.Usage.Prompt, a.Usage.Cached, q}
		})
	}
	asked.Wait()
	fetched := float64(l.passed.Load()-before) / rowsOnWire
	c.running()
	counted := samples[w.warm:]
	out = rowsResult{kv: reused(counted), p50: quantile(counted, .5), p90: quantile(counted, .9),
		p99: quantile(counted, .99), by: map[string]int{}}
	out.rows = 1 - fetched/float64(w.read(counted))
	for i := range samples {
		out.by[samples[i].node]++
	}
	for _, m := range c.nodes {
		c.end(m, syscall.SIGKILL)
	}
	return out
}

func (w *rowsWorkload) question(i int) *question {
	q := &w.list[i]
	name := func(item int32) string { return fmt.Sprint("i", item) }
	history := make([]string, q.events)
	for k, item := range w.histories[q.user][:q.events] {
		history[k] = name(item)
	}
	candidates := make([]map[string]any, len(q.candidates))
	for k, item := range q.candidates {
		candidates[k] = map[string]any{"id": name(item)}
	}
	return newTurn(0, map[string]any{"user": map[string]any{"id": fmt.Sprint("u", q.user), "history": history},
		"candidates": candidates}).question
}

// read returns how many rows the last requests read, each once per request, as the simulator counts them.
func (w *rowsWorkload) read(last []sample) (n int) {
	for i := range last {
		q := &w.list[len(w.list)-len(last)+i]
		r := sim.Request{User: uint64(q.user), UserTokens: int32(q.events), Items: q.candidates}
		n += len(w.AppendGrains(nil, &r, last[i].cached))
	}
	return n
}
