package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/compute"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/pool"
	"grebe/prompt"
	"grebe/reuse"
	"grebe/schedule"
	"grebe/serve/servetest"
)

// sharedTokens returns a counter of tokens that were computed once, from the server's metrics.
func (w *cacheWorld) sharedTokens(t *testing.T, kind string) (n int) {
	t.Helper()
	_, after, found := strings.Cut(exposed(t, w.cached), fmt.Sprintf("grebe_shared_tokens_total{kind=%q} ", kind))
	if _, err := fmt.Sscan(after, &n); err != nil || !found {
		t.Fatalf("no counter of shared tokens: %v", err)
	}
	return n
}

// Candidates with equal tokens are computed once, in every layout: of five candidates with two texts, two items and,
// in pointwise scoring, two questions. With prefix none each is computed.
func TestEqualCandidatesAreComputedOnce(t *testing.T) {
	for _, pointwise := range []bool{false, true} {
		for _, prefix := range []string{"user", "item", "none"} {
			w := newCacheWorld(t, 2, pointwise)
			req := &grebev1.RankRequest{Prefix: prefix, User: &grebev1.User{Tokens: w.tokens(40)}, Explain: true}
			texts := [][]int32{w.tokens(7), w.tokens(9)}
			for i, k := range []int{0, 1, 0, 0, 1} {
				id := int32(230 + i)
				req.Candidates = append(req.Candidates, &grebev1.Item{Tokens: texts[k], Identifier: &id})
			}
			want := 7 + 7 + 9
			if pointwise {
				want += 3 * 2 // tokens of a question
			}
			if prefix == "none" {
				want = 0
			}
			w.compare(t, 0, req)
			if got := w.sharedTokens(t, "request"); got != want {
				t.Errorf("prefix %s, pointwise %v: %d tokens shared, want %d", prefix, pointwise, got, want)
			}
			if computed := w.counted(t, "rank", "computed"); computed+want != w.countedAll(t, "rank") {
				t.Errorf("prefix %s, pointwise %v: %d tokens computed of %d", prefix, pointwise, computed, w.countedAll(t, "rank"))
			}
		}
	}
}

// Equal documents are scored once, and all get the score.
func TestEqualDocumentsAreScoredOnce(t *testing.T) {
	w := newCacheWorld(t, 2, true)
	one, other := w.tokens(7), w.tokens(9)
	for _, itemFirst := range []bool{false, true} {
		before := w.sharedTokens(t, "request")
		req := &grebev1.ScoreRequest{Query: &grebev1.Input{Tokens: w.tokens(40)}, LabelTokenIds: []int32{11, 12},
			ItemFirst: itemFirst}
		for _, tokens := range [][]int32{one, other, one, one} {
			req.Items = append(req.Items, &grebev1.Input{Tokens: tokens})
		}
		w.sameScores(t, "equal documents", req)
		want := 2 * (7 + 2) // two items, and their questions
		if itemFirst {
			want += 2 * 40 // the query is part of the question
		}
		if got := w.sharedTokens(t, "request") - before; got != want {
			t.Errorf("item first %v: %d tokens shared, want %d", itemFirst, got, want)
		}
	}
}

// barrier makes the first batch of some engines wait, and then optionally fail.
type barrier struct {
	first   sync.Once
	entered chan struct{} // closed when the first batch waits
	open    chan struct{}
	fails   bool
}

// barred is an engine behind a barrier.
type barred struct {
	dispatch.Engine
	*barrier
}

func (g *barred) Run(jobs []*engine.Job, out []engine.Outcome) {
	fail := false
	g.first.Do(func() {
		close(g.entered)
		<-g.open
		fail = g.fails
	})
	if !fail {
		g.Engine.Run(jobs, out)
		return
	}
	for i := range out {
		out[i] = engine.Outcome{Err: errors.New("the device failed")}
	}
}

// crowd makes requests wait while the first of them is in its batch. The client of the first may leave meanwhile. It
// returns the answers.
func (w *cacheWorld) crowd(t *testing.T, engines []dispatch.Engine, times schedule.PrefillModel,
	reqs []*grebev1.RankRequest,
	fails bool, leaves func(), first context.Context) []*grebev1.RankResponse {
	t.Helper()
	g := &barrier{entered: make(chan struct{}), open: make(chan struct{}), fails: fails}
	var all []dispatch.Engine
	for _, e := range engines {
		all = append(all, &barred{e, g})
	}
	d, err := dispatch.New(all, dispatch.Options{SLO: time.Hour, Model: times})
	must(t, err)
	defer d.Close()
	m := w.model
	m.Runner = d
	w.cached, err = New(Config{Models: append([]Model{m}, w.others(d)...), SLO: time.Hour})
	must(t, err)
	var wg sync.WaitGroup
	out := make([]*grebev1.RankResponse, len(reqs))
	ask := func(ctx context.Context, i int) {
		wg.Go(func() {
			var err error
			if out[i], err = w.cached.Rank(ctx, reqs[i]); err != nil && (i > 0 || !fails) && ctx.Err() == nil {
				t.Errorf("request %d: %v", i, err)
			}
		})
	}
	ask(first, 0)
	<-g.entered
	for i := 1; i < len(reqs); i++ {
		ask(t.Context(), i)
	}
	for {
		if _, waiting := d.Backlog(); waiting == len(reqs)-1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if leaves != nil {
		leaves()
	}
	close(g.open)
	wg.Wait()
	return out
}

// others returns further models on the world's checkpoint, in front of the same queue.
func (w *cacheWorld) others(d *dispatch.Dispatcher) (out []Model) {
	for _, m := range w.further {
		m.Runner = d
		out = append(out, m)
	}
	return out
}

// Two models on one checkpoint with different questions compute the common prefix of their users once.
func TestModelsOnOneCheckpointComputeOnce(t *testing.T) {
	w := newCacheWorldOver(t, near, 2, false, func(m compute.Memory, s compute.Shape) (*pool.Pool, error) {
		return pool.Over(m, int64(s.ChunkBytes(20000, false)), 256)
	})
	preamble := w.model.Prompt.Preamble()
	b, err := prompt.New(prompt.Config{Preamble: prompt.Text{Tokens: preamble},
		Instruction: prompt.Text{Tokens: []int32{9, 10, 11}}},
		servetest.Tokenizer{}, w.model.Vocab)
	must(t, err)
	other := w.model
	other.Name, other.Prompt = "other", b
	other.Cache = reuse.New(b, reuse.Options{Store: w.store, Pool: w.pool, Load: w.model.Runner.(*dispatch.Dispatcher),
		Shape:  w.shape,
		Policy: schedule.Predicted, Shared: w.entries})
	w.further = []Model{other}
	bare := other
	bare.Cache = nil
	w.plain, err = New(Config{Models: []Model{bare, func() Model { m := w.model; m.Cache = nil; return m }()},
		SLO: time.Hour})
	must(t, err)
	user, reqs := w.tokens(150), make([]*grebev1.RankRequest, 6)
	for i := range reqs {
		one, two := int32(230), int32(231)
		reqs[i] = &grebev1.RankRequest{Model: []string{"m", "other"}[min(i, 1)],
			Prefix: "user", User: &grebev1.User{Id: "u", Tokens: user},
			Candidates: []*grebev1.Item{{Tokens: w.tokens(10 + i), Identifier: &one}, {Tokens: w.tokens(5), Identifier: &two}}}
	}
	out := w.crowd(t, w.engines[:1], w.model.Runner.(*dispatch.Dispatcher).Model(), reqs, false, nil, t.Context())
	common := len(preamble) + len(user)
	if got := w.sharedTokens(t, "concurrent"); got != 5*common {
		t.Errorf("%d tokens shared by requests to two models, want 5 × %d", got, common)
	}
	for i, got := range out {
		want, err := w.plain.Rank(t.Context(), reqs[i])
		must(t, err)
		sameRanking(t, fmt.Sprint("request ", i), got, want)
	}
	must(t, other.Cache.Leave())
}

// Requests that wait while another computes KV that they need use it when their turn comes: a user with the preamble,
// or items. If the first request fails, the next one computes it for the others. If its client leaves, its batch
// still ends.
func TestConcurrentPrefixesAreComputedOnce(t *testing.T) {
	for _, prefix := range []string{"user", "item"} {
		for _, first := range []string{"answers", "fails", "leaves"} {
			t.Run(prefix+" "+first, func(t *testing.T) {
				w := newCacheWorldOver(t, near, 2, false, func(m compute.Memory, s compute.Shape) (*pool.Pool, error) {
					return pool.Over(m, int64(s.ChunkBytes(20000, false)), 256)
				})
				user, items := w.tokens(150), [][]int32{w.tokens(9), w.tokens(12)}
				common := len(w.model.Prompt.Preamble()) + 150
				if prefix == "item" {
					common = len(w.model.Prompt.Preamble()) + len(w.model.Prompt.LeadIn()) + 9 + 12
				}
				reqs := make([]*grebev1.RankRequest, 6)
				for i := range reqs {
					r := &grebev1.RankRequest{Prefix: prefix, User: &grebev1.User{Id: "u", Tokens: user}, Explain: true}
					if prefix == "item" {
						r.User = &grebev1.User{Tokens: w.tokens(50 + i)}
					}
					for k := range items {
						id, tokens := int32(230+k), items[k]
						if prefix == "user" {
							tokens = w.tokens(10 + i)
						}
						r.Candidates = append(r.Candidates, &grebev1.Item{Tokens: tokens, Identifier: &id})
					}
					reqs[i] = r
				}
				ctx, leaves := context.WithCancel(t.Context())
				defer leaves()
				if first != "leaves" {
					leaves, ctx = nil, t.Context()
				}
				out := w.crowd(t, w.engines[:1], w.model.Runner.(*dispatch.Dispatcher).Model(), reqs, first == "fails", leaves, ctx)
				shares := len(reqs) - 1
				if first == "fails" {
					shares--
				}
				if got := w.sharedTokens(t, "concurrent"); got != shares*common {
					t.Errorf("%d tokens shared by concurrent requests, want %d × %d", got, shares, common)
				}
				for i, got := range out {
					if got == nil {
						continue
					}
					if u := got.Usage; u.CachedTokens+u.ComputedTokens != u.PromptTokens || u.BySource.Host != u.CachedTokens {
						t.Errorf("request %d: the account does not add up: %v", i, u)
					}
					checkParts(t, i, got)
					want, err := w.plain.Rank(t.Context(), reqs[i])
					must(t, err)
					if !slices.EqualFunc(got.Results, want.Results, func(a, b *grebev1.Ranked) bool {
						return a.Index == b.Index && a.Score == b.Score && a.Logit == b.Logit
					}) {
						t.Errorf("request %d: %v, want %v", i, got.Results, want.Results)
					}
				}
			})
		}
	}
}
