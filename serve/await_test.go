package serve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/compute"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/pool"
	"grebe/schedule"
)

// twoEngines returns a world with two engines on the CPU, which share weights and cache.
func twoEngines(t *testing.T, seed uint64) *cacheWorld {
	t.Helper()
	for ; ; seed += 100 { // every second world has two engines
		w := newCacheWorldOver(t, near, seed, false, func(m compute.Memory, s compute.Shape) (*pool.Pool, error) {
			return pool.Over(m, int64(s.ChunkBytes(20000, false)), 256)
		})
		if len(w.engines) == 2 {
			return w
		}
	}
}

// slow predicts a second per token, so computing twice is never faster than waiting.
var slow = schedule.PrefillModel{Fixed: 1000, Row: 1000, Quality: schedule.Quality{Largest: largest}}

// largest is the largest sample that these tests' models claim to be measured with.
var largest = schedule.Sample{Rows: 1000, Keys: 500500, Requests: 1}

// A request that needs KV which the other of two engines is computing waits for it: the KV is computed once. If the
// first request fails, the second computes the KV. If the first client leaves, its batch still ends.
func TestTwoEnginesComputeOnce(t *testing.T) {
	for _, prefix := range []string{"user", "item"} {
		for _, first := range []string{"answers", "fails", "leaves"} {
			t.Run(prefix+" "+first, func(t *testing.T) {
				w := twoEngines(t, 2)
				user, items := w.tokens(150), [][]int32{w.tokens(90), w.tokens(80)}
				common := len(w.model.Prompt.Preamble()) + 150
				if prefix == "item" {
					common = len(w.model.Prompt.Preamble()) + len(w.model.Prompt.LeadIn()) + 90 + 80
				}
				reqs := make([]*grebev1.RankRequest, 6)
				if first == "fails" {
					reqs = reqs[:2]
				}
				for i := range reqs {
					r := &grebev1.RankRequest{Prefix: prefix, User: &grebev1.User{Id: "u", Tokens: user}, Explain: true}
					if prefix == "item" {
						r.User = &grebev1.User{Tokens: w.tokens(20 + i)}
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
				out := w.crowd(t, w.engines, slow, reqs, first == "fails", leaves, ctx)
				waited := (len(reqs) - 1) * common
				if first == "fails" {
					waited = 0
				}
				if got := w.sharedTokens(t, "awaited"); got != waited {
					t.Errorf("requests waited for %d tokens, want %d", got, waited)
				}
				if first == "answers" { // all tokens are computed once
					want := common
					for i := range reqs {
						rest := out[i].Usage.PromptTokens - int32(common)
						want += int(rest)
					}
					if got := w.counted(t, "rank", "computed") + w.sharedTokens(t, "concurrent"); got != want {
						t.Errorf("%d tokens computed or shared by batches, want %d", got, want)
					}
				}
				for i, got := range out {
					if got == nil {
						continue
					}
					checkParts(t, i, got)
					want, err := w.plain.Rank(t.Context(), reqs[i])
					must(t, err)
					sameRanking(t, fmt.Sprint("request ", i), got, want)
				}
			})
		}
	}
}

// sameRanking compares scores to the bit.
func sameRanking(t *testing.T, what string, got, want *grebev1.RankResponse) {
	t.Helper()
	if !slices.EqualFunc(got.Results, want.Results, func(a, b *grebev1.Ranked) bool {
		return a.Index == b.Index && a.Score == b.Score && a.Logit == b.Logit
	}) {
		t.Errorf("%s: %v, want %v", what, got.Results, want.Results)
	}
}

// paced is an engine whose batches take as long as the tokens they compute, and sometimes fail.
type paced struct {
	dispatch.Engine
	mu   sync.Mutex
	rand *rand.Rand
}

func (p *paced) Run(jobs []*engine.Job, out []engine.Outcome) {
	p.Engine.Run(jobs, out)
	p.mu.Lock()
	fails := p.rand.IntN(12) == 0
	p.mu.Unlock()
	n := 0
	for i := range out {
		n += out[i].Computed
		if fails {
			for _, k := range out[i].Kept {
				if k != nil {
					k.Release()
				}
			}
			out[i] = engine.Outcome{Err: errPaced}
		}
	}
	time.Sleep(time.Duration(n) * 20 * time.Microsecond)
}

var errPaced = fmt.Errorf("the device failed")

// Many random concurrent requests for a few users and items on two engines, some of which fail or leave, have exactly
// the scores that each has alone without sharing. No entry stays pinned.
func TestSharingBetweenEnginesChangesNoScore(t *testing.T) {
	waited := 0
	for seed := range uint64(4) {
		w := twoEngines(t, seed+3)
		r := rand.New(rand.NewPCG(seed, 77))
		var engines []dispatch.Engine
		for i, e := range w.engines {
			engines = append(engines, &paced{Engine: e, rand: rand.New(rand.NewPCG(seed, uint64(i)))})
		}
		times := schedule.PrefillModel{Fixed: .1, Row: .02, Quality: schedule.Quality{Largest: largest}}
		d, err := dispatch.New(engines, dispatch.Options{SLO: time.Hour, Model: times})
		must(t, err)
		m := w.model
		m.Runner = d
		w.cached, err = New(Config{Models: []Model{m}, SLO: time.Hour})
		must(t, err)
		for round := range 8 {
			users := [][]int32{w.tokens(100 + r.IntN(300)), w.tokens(50 + r.IntN(100))}
			w.items[0], w.items[1] = w.tokens(60+r.IntN(100)), w.tokens(80)
			reqs := make([]*grebev1.RankRequest, 8)
			for i := range reqs {
				u := r.IntN(len(users))
				reqs[i] = w.request([]string{"user", "user", "item", "auto"}[r.IntN(4)])
				reqs[i].User = &grebev1.User{Id: fmt.Sprint("r", round, "u", u), Tokens: users[u]}
				if r.IntN(4) == 0 {
					reqs[i].User.Id = ""
				}
				id := int32(300)
				reqs[i].Candidates = append(reqs[i].Candidates, &grebev1.Item{Tokens: w.items[r.IntN(2)], Identifier: &id})
			}
			got := make([]*grebev1.RankResponse, len(reqs))
			var wg sync.WaitGroup
			for i := range reqs {
				ctx, cancel := context.WithCancel(t.Context())
				if i%4 == 3 {
					time.AfterFunc(time.Duration(r.IntN(8))*time.Millisecond, cancel)
				}
				wg.Go(func() {
					defer cancel()
					got[i], _ = w.cached.Rank(ctx, reqs[i])
				})
			}
			wg.Wait()
			for i := range reqs {
				if got[i] == nil {
					continue // its batch failed, or its client left
				}
				reqs[i].Prefix = got[i].Prefix
				want, err := w.plain.Rank(t.Context(), reqs[i])
				must(t, err)
				sameRanking(t, fmt.Sprintf("seed %d, round %d, request %d", seed, round, i), got[i], want)
			}
		}
		waited += w.sharedTokens(t, "awaited")
		must(t, d.Close())
	}
	if waited == 0 {
		t.Error("no request waited for another: the draw tests too little")
	}
	t.Logf("requests waited for %d tokens", waited)
}
