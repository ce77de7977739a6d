package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"grebe/shop/demo"
)

// question is a request and the answer that a single server gives.
type question struct {
	path string
	body []byte
	want []byte // the results as JSON
}

// reply is the part of an answer that is looked at.
type reply struct {
	Results json.RawMessage
	Node    string
	Usage   struct {
		Prompt int `json:"prompt_tokens"`
		Cached int `json:"cached_tokens"`
	}
	Parts []struct { // of the prompt; when explain was asked for
		Kind   string
		Cached int
		Source string
	}
}

// trialClient is what all requests are sent with.
var trialClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// ask asks a process, for at most 30 s.
func (q *question) ask(addr string) (r reply, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+q.path, bytes.NewReader(q.body))
	if err != nil {
		return r, err
	}
	resp, err := trialClient.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return r, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return r, json.Unmarshal(data, &r)
	case http.StatusServiceUnavailable:
		err = errAway
	}
	return r, errors.Join(fmt.Errorf("%s of %s: %s: %s", q.path, addr, resp.Status, data), err)
}

// errAway says that a process answers nobody, as while it starts.
var errAway = errors.New("ask another one")

// randomQuestion returns a ranking or a recommendation. The prefix order is fixed: another order is another prompt.
func randomQuestion(r *rand.Rand) *question {
	item := func() string { return fmt.Sprint("i", 1+r.IntN(48)) }
	items := func(n int) (out []string) {
		for len(out) < n {
			if i := item(); !slices.Contains(out, i) {
				out = append(out, i)
			}
		}
		return out
	}
	type object = map[string]any
	user := object{"id": []string{"ana", "bo", "chris", "dora", "emil", "fay"}[r.IntN(6)]}
	switch r.IntN(4) {
	case 0:
		user = object{"history": items(1 + r.IntN(8))}
	case 1:
		user = object{"text": fmt.Sprintf("Customer %d likes %s.", r.IntN(50), item())}
	}
	if r.IntN(5) == 0 {
		body, _ := json.Marshal(object{"user": user, "n": 1 + r.IntN(10), "beam_width": 4 + r.IntN(28),
			"exclude": items(1 + r.IntN(4))})
		return &question{path: "/v1/recommend", body: body}
	}
	var candidates []object
	for _, id := range items(2 + r.IntN(14)) {
		candidates = append(candidates, object{"id": id})
	}
	body, _ := json.Marshal(object{"user": user, "candidates": candidates, "prefix": []string{"user", "item"}[r.IntN(2)]})
	return &question{path: "/v1/rank", body: body}
}

// single starts a server without a cluster and without caches.
func single(t *testing.T, settings ...string) string {
	t.Helper()
	return singleOf(t, filepath.Join(demoData, demo.ConfigFile), settings...)
}

// singleOf is single with another configuration.
func singleOf(t *testing.T, config string, settings ...string) string {
	t.Helper()
	r := start(t, append([]string{"serve", "-c", config, "--listen", "127.0.0.1:0",
		"--admin-listen=", "--grpc-listen=", "--data-dir", t.TempDir(), "--slo-ms", "30000"},
		flags(append(slices.Clone(settings), "cache.host_memory=0", "threads=1"))...)...)
	go func() {
		for range r.log { // nobody reads it
		}
	}()
	return r.http[len("http://"):]
}

// questions returns n random ones with the answers of a single server.
func questions(t *testing.T, n int, seed uint64, settings ...string) []*question {
	t.Helper()
	addr, r := single(t, settings...), rand.New(rand.NewPCG(seed, 23))
	out := make([]*question, n)
	for i := range out {
		out[i] = randomQuestion(r)
	}
	parallel(4, n, func(i int) {
		a, err := out[i].ask(addr)
		if err != nil {
			t.Errorf("the single server: %v", err)
		}
		out[i].want = a.Results
	})
	if t.Failed() {
		t.FailNow()
	}
	return out
}

// parallel calls f(0) to f(n-1), some at once.
func parallel(workers, n int, f func(i int)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// sample is an answer.
type sample struct {
	at             time.Time // when it was asked for
	took           time.Duration
	node           string
	prompt, cached int
	of             *question
}

// traffic asks a cluster at a steady rate, whether it answers or not.
type traffic struct {
	t     *testing.T
	pool  []*question
	entry func(r *rand.Rand) string // address at which a request enters
	again func(r *rand.Rand) string // where a refused one is asked again; nil: nowhere

	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	samples []sample
	failed  int
	wrong   int
}

// mostOpen bounds the requests under way.
const mostOpen = 256

// startTraffic asks for an answer every so often, until stop.
func startTraffic(t *testing.T, every time.Duration, pool []*question, entry,
	again func(r *rand.Rand) string) *traffic {
	w := &traffic{t: t, pool: pool, entry: entry, again: again}
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(context.Background())
	t.Cleanup(func() { w.cancel(); w.done.Wait() })
	w.done.Go(func() {
		r, slots := rand.New(rand.NewPCG(7, 7)), make(chan struct{}, mostOpen)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			q, addr, other := pool[r.IntN(len(pool))], w.entry(r), ""
			if w.again != nil {
				other = w.again(r)
			}
			slots <- struct{}{}
			w.done.Go(func() {
				defer func() { <-slots }()
				w.one(q, addr, other)
			})
		}
	})
	return w
}

func (w *traffic) one(q *question, addr, other string) {
	began := time.Now()
	a, err := q.ask(addr)
	if err != nil && other != "" && broken(err) {
		a, err = q.ask(other)
	}
	took := time.Since(began)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if w.failed++; w.failed <= 5 {
			w.t.Errorf("after %v: %v", took, err)
		}
		return
	}
	if q.want != nil && !bytes.Equal(a.Results, q.want) {
		if w.wrong++; w.wrong <= 5 {
			w.t.Errorf("%s answered %s with\n%s\nwant\n%s", a.Node, q.body, a.Results, q.want)
		}
	}
	w.samples = append(w.samples, sample{began, took, a.Node, a.Usage.Prompt, a.Usage.Cached, q})
}

// broken reports whether the process is not there, so that a client may ask elsewhere.
func broken(err error) bool {
	return errors.Is(err, errAway) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// stop ends the traffic and returns the answers in the order of their requests. Requests that failed were reported.
func (w *traffic) stop() []sample {
	w.t.Helper()
	w.cancel()
	w.done.Wait()
	if w.failed+w.wrong > 0 {
		w.t.Errorf("of %d requests %d failed and %d answers were wrong", len(w.samples)+w.failed, w.failed, w.wrong)
	}
	slices.SortFunc(w.samples, func(a, b sample) int { return a.at.Compare(b.at) })
	return w.samples
}

// anyOf returns an entry at a random one of the nodes.
func anyOf(nodes ...*member) func(r *rand.Rand) string {
	return func(r *rand.Rand) string { return nodes[r.IntN(len(nodes))].listen }
}

// reuse is the share of prompts' tokens that were cached.
func reused(list []sample) float64 {
	var prompt, cached int
	for _, s := range list {
		prompt, cached = prompt+s.prompt, cached+s.cached
	}
	return float64(cached) / float64(max(1, prompt))
}

// reusedAlike compares the reuse of two lists over the questions that are in both, each with the same weight in both:
// which questions come by chance is no difference. It returns how many questions these are.
func reusedAlike(before, after []sample) (was, is float64, n int) {
	byQuestion := func(list []sample) map[*question][]sample {
		out := map[*question][]sample{}
		for _, s := range list {
			out[s.of] = append(out[s.of], s)
		}
		return out
	}
	old, now := byQuestion(before), byQuestion(after)
	var weight float64
	for q, list := range old {
		if len(now[q]) == 0 || list[0].prompt == 0 {
			continue
		}
		w := float64(list[0].prompt)
		was, is, weight, n = was+w*reused(list), is+w*reused(now[q]), weight+w, n+1
	}
	return was / max(1, weight), is / max(1, weight), n
}

// between returns the samples of requests in [from, to).
func between(list []sample, from, to time.Time) (out []sample) {
	for _, s := range list {
		if !s.at.Before(from) && s.at.Before(to) {
			out = append(out, s)
		}
	}
	return out
}

// quantile returns a quantile of the times that answers took.
func quantile(list []sample, q float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	took := make([]time.Duration, len(list))
	for i := range list {
		took[i] = list[i].took
	}
	slices.Sort(took)
	return took[min(len(took)-1, int(q*float64(len(took))))]
}
