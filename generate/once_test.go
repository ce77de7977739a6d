package generate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"grebe/dispatch"
	"grebe/engine"
	"grebe/model/modeltest"
	"grebe/schedule"
)

// barrier is an engine whose first batch waits, and then optionally fails.
type barrier struct {
	dispatch.Engine
	first         sync.Once
	entered, open chan struct{}
	fails         bool
}

func (g *barrier) Run(jobs []*engine.Job, out []engine.Outcome) {
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
		out[i] = engine.Outcome{Err: errJob}
	}
}

// Recommendations for one user that wait while another computes the prompt use it when their turn comes, even if
// their searches differ. A last token that answers is computed for each batch. If the first request fails, the next
// one computes the prompt for the others. If its client leaves, its batch still ends. All get the items and scores
// that they get alone.
func TestConcurrentPromptsAreComputedOnce(t *testing.T) {
	ends := map[bool]bool{}
	m := schedule.PrefillModel{Fixed: 1, Row: 1, Quality: schedule.Quality{
		Largest: schedule.Sample{Rows: 100, Keys: 5050, Requests: 1}}}
	for seed := range uint64(6) {
		for _, first := range []string{"answers", "fails", "leaves"} {
			s := newSite(t, rand.New(rand.NewPCG(seed, 30)), modeltest.Qwen3, 3, 300, true)
			layout := s.Prompt.Generate(s.user)
			common := layout.Plan.Tokens() - len(layout.Plan.Segments[layout.Answers].Tokens)
			last := layout.Answers == layout.User
			if ends[last] = true; last {
				common += len(s.user) - 1
			}
			reqs := make([]*Request, 6)
			want := make([]*Result, len(reqs))
			cache := s.Cache
			s.Cache = nil
			for i := range reqs {
				reqs[i] = &Request{UserID: "u", User: s.user, N: 5 + i, Width: 20 + i}
				want[i] = must(s.Recommend(t.Context(), reqs[i]))
			}
			s.Cache = cache

			g := &barrier{Engine: s.engine, entered: make(chan struct{}), open: make(chan struct{}), fails: first == "fails"}
			d := must(dispatch.New([]dispatch.Engine{g}, dispatch.Options{SLO: time.Minute, Model: m}))
			s.Do = d.Do
			ctx, leave := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			got, errs := make([]*Result, len(reqs)), make([]error, len(reqs))
			wg.Go(func() { got[0], errs[0] = s.Recommend(ctx, reqs[0]) })
			<-g.entered
			for i := 1; i < len(reqs); i++ {
				wg.Go(func() { got[i], errs[i] = s.Recommend(t.Context(), reqs[i]) })
			}
			for waiting := 0; waiting < len(reqs)-1; _, waiting = d.Backlog() {
				time.Sleep(time.Millisecond)
			}
			if first == "leaves" {
				leave()
			}
			close(g.open)
			wg.Wait()
			leave()
			must(0, d.Close())

			what, shared, computed := fmt.Sprintf("seed %d, the first %s", seed, first), 0, 0
			for i, r := range got {
				if i == 0 && first != "answers" {
					if wanted := map[string]error{"fails": errJob, "leaves": context.Canceled}[first]; !errors.Is(errs[0], wanted) {
						t.Errorf("%s: %v", what, errs[0])
					}
					continue
				}
				if errs[i] != nil {
					t.Fatalf("%s: request %d: %v", what, i, errs[i])
				}
				if !slices.EqualFunc(r.Items, want[i].Items, func(a, b Item) bool { return a.ID == b.ID && a.Score == b.Score }) {
					t.Errorf("%s: request %d finds other items or scores than alone", what, i)
				}
				shared, computed = shared+r.Shared.Concurrent, computed+r.Prompt
				if n := layout.Plan.Tokens(); r.Prompt+r.Cached != n || r.Cached != r.Shared.Concurrent {
					t.Errorf("%s: request %d: %d tokens of the prompt, but %d computed, %d cached, %+v", what, i, n, r.Prompt,
						r.Cached, r.Shared)
				}
			}
			// What the rest of a batch shares with its first one is in either count, and never the common part.
			all, sharers := 0, len(reqs)-1
			if first == "fails" {
				sharers--
			}
			for i := range got {
				if got[i] != nil {
					all += layout.Plan.Tokens()
				}
			}
			if shared+computed != all || shared < sharers*common {
				t.Errorf("%s: %d tokens shared and %d computed, of %d; want %d × %d to be shared at least", what,
					shared, computed, all, sharers, common)
			}
			if s.Cache.Books().Used == 0 {
				t.Errorf("%s: nothing is kept for later", what)
			}
		}
	}
	if len(ends) != 2 {
		t.Error("all prompts end alike: the draw tests too little")
	}
}
