package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/blend"
	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
	"grebe/reuse"
)

// newBlendWorld returns a world whose server with a cache blends.
func newBlendWorld(t *testing.T, where farMemory, seed uint64, auto bool) *cacheWorld {
	t.Helper()
	w := newCacheWorldIn(t, where, seed, false)
	m := w.model
	m.Blend = &reuse.Blend{Budget: blend.Budget{Items: 0.3, History: 0.3}, Auto: auto, ItemsFirst: seed%2 == 1}
	var err error
	w.cached, err = New(Config{Models: []Model{m}, SLO: time.Minute})
	must(t, err)
	m.Cache = nil
	w.plain, err = New(Config{Models: []Model{m}, SLO: time.Minute})
	must(t, err)
	return w
}

func spread(r *grebev1.RankResponse) map[int32]float64 {
	out := map[int32]float64{}
	for _, x := range r.Results {
		out[x.Index] = float64(x.Logit)
	}
	return out
}

// Among requests of all kinds, blended ones with a budget of 1 have the scores of the whole prompt, and with less
// near ones. Token counts add up, and KV that is not exact never enters the cache.
func TestBlendedRequests(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newBlendWorld(t, farMemory(seed%3), seed, false)
			reused, off, count := int32(0), 0.0, 0
			prompts, before := 0, w.countedAll(t, "rank")
			for step := range 100 {
				w.change()
				if w.rand.IntN(2) == 0 {
					before -= w.countedAll(t, "rank")
					w.compare(t, step, w.request([]string{"auto", "user", "item"}[w.rand.IntN(3)]))
					before += w.countedAll(t, "rank")
					continue
				}
				req := w.request("blend")
				full, err := w.plain.Rank(t.Context(), req)
				must(t, err)
				req.Budget = &grebev1.Budget{Items: new(1.0), History: new(1.0)}
				if w.rand.IntN(2) == 0 {
					req.Budget = nil
				}
				got, err := w.cached.Rank(t.Context(), req)
				must(t, err)
				u := got.Usage
				by := u.BySource
				if got.Prefix != "blend" || u.CachedTokens+u.ComputedTokens != u.PromptTokens ||
					by.Device+by.Host+by.Disk+by.Prototype != u.CachedTokens ||
					by.Recomputed > u.ComputedTokens || u.UserTokens+u.ItemTokens+u.InstructionTokens != u.PromptTokens {
					t.Fatalf("step %d: the account of a %s prompt does not add up: %v", step, got.Prefix, u)
				}
				checkParts(t, step, got)
				prompts += int(u.PromptTokens)
				want := spread(full)
				for i, logit := range spread(got) {
					d := math.Abs(logit - want[i])
					if req.Budget != nil && d > 1e-6 {
						t.Fatalf("step %d: repaired whole, candidate %d has the logit %v, want %v", step, i, logit, want[i])
					}
					off, count = off+d, count+1
				}
				if req.Budget == nil {
					reused += u.CachedTokens
				}
			}
			if counted := w.countedAll(t, "rank") - before; counted != prompts {
				t.Errorf("the metrics have %d tokens of blended prompts by source, the answers %d", counted, prompts)
			}
			if reused == 0 || off == 0 {
				t.Errorf("nothing was reused, or nothing differs: %d tokens, %v", reused, off)
			}
			t.Logf("%d tokens reused, logits off by %.3g on average", reused, off/float64(count))
		})
	}
}

// If the model allows it, auto blends when that is predicted to be faster, and only then.
func TestAutoBlends(t *testing.T) {
	for _, auto := range []bool{false, true} {
		w := newBlendWorld(t, near, 5, auto)
		chose := map[string]int{}
		for range 60 {
			got, err := w.cached.Rank(t.Context(), w.request("auto"))
			must(t, err)
			chose[got.Prefix]++
		}
		if auto == (chose["blend"] == 0) {
			t.Errorf("blend.auto: %v, and the prefixes were %v", auto, chose)
		}
	}
}

func TestBlendRefusals(t *testing.T) {
	w := newBlendWorld(t, near, 3, false)
	point := newCacheWorld(t, 3, true)
	blended := func(change func(r *grebev1.RankRequest)) *grebev1.RankRequest {
		r := w.request("blend")
		change(r)
		return r
	}
	for _, c := range []struct {
		s    *Service
		req  *grebev1.RankRequest
		want string
	}{
		{w.cached, blended(func(r *grebev1.RankRequest) { r.Budget = &grebev1.Budget{Items: new(1.5)} }),
			"items: 1.5 is not between 0 and 1"},
		{w.cached, blended(func(r *grebev1.RankRequest) { r.Budget = &grebev1.Budget{History: new(math.NaN())} }),
			"history: NaN"},
		{w.cached, blended(func(r *grebev1.RankRequest) { r.Prefix, r.Budget = "user", &grebev1.Budget{} }),
			"needs prefix blend"},
		{point.cached, point.request("blend"), "scores item by item"},
	} {
		if _, err := c.s.Rank(context.Background(), c.req); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
}

// Items that return without a block get one beside the prompt, and the next request uses it. Its tokens do not count
// as the prompt's.
func TestBlendMakesBlocks(t *testing.T) {
	w := newBlendWorld(t, near, 4, false)
	req := w.request("blend")
	req.User.Id = "u"
	full, err := w.plain.Rank(t.Context(), req)
	must(t, err)
	var last *grebev1.RankResponse
	for i := range 3 {
		last, err = w.cached.Rank(t.Context(), req)
		must(t, err)
		u := last.Usage
		if n := w.countedAll(t, "rank"); n != (i+1)*int(u.PromptTokens) {
			t.Errorf("%d tokens are counted of %d prompts of %d", n, i+1, u.PromptTokens)
		}
		if u.PromptTokens != full.Usage.PromptTokens || u.CachedTokens+u.ComputedTokens != u.PromptTokens {
			t.Fatalf("the account does not add up: %v", u)
		}
		w.store.Count(time.Second)
	}
	u := last.Usage
	if by := u.BySource; by.Recomputed == 0 || u.CachedTokens < u.ItemTokens/2+u.UserTokens {
		t.Errorf("the third request reused %d tokens, %d of items and %d of the user: %v", u.CachedTokens, u.ItemTokens,
			u.UserTokens, by)
	}
}

// If a prompt fits into a batch but the blocks beside it do not, it is answered without them.
func TestBlocksDoNotMakeAPromptTooLarge(t *testing.T) {
	w := newBlendWorld(t, near, 4, false)
	req := w.request("blend")
	req.User.Id = "u"
	full, err := w.plain.Rank(t.Context(), req)
	must(t, err)
	m, refused := w.model, 0
	m.Blend = &reuse.Blend{Budget: blend.Budget{Items: 0.3, History: 0.3}}
	do := m.Runner.Do
	m.Runner = runner(func(ctx context.Context, job *engine.Job) (*engine.Result, error) {
		if job.Plan.Tokens() > int(full.Usage.PromptTokens) {
			refused++
			return nil, engine.ErrTooLarge
		}
		return do(ctx, job)
	})
	s, err := New(Config{Models: []Model{m}, SLO: time.Minute})
	must(t, err)
	for range 3 {
		got, err := s.Rank(t.Context(), req)
		must(t, err)
		if u := got.Usage; u.PromptTokens != full.Usage.PromptTokens || u.CachedTokens+u.ComputedTokens != u.PromptTokens {
			t.Fatalf("the account does not add up: %v", u)
		}
		w.store.Count(time.Second)
	}
	if refused == 0 {
		t.Error("no request was to make blocks")
	}
}

// A prompt that must be computed without cached KV reports that, part by part.
func TestBlendWithoutRoomReusesNoPrefix(t *testing.T) {
	w := newBlendWorld(t, near, 4, false)
	req := w.request("blend")
	req.User.Id, req.Explain = "u", true
	for range 3 {
		_, err := w.cached.Rank(t.Context(), req)
		must(t, err)
		w.store.Count(time.Second)
	}
	m := w.model
	m.Blend = &reuse.Blend{Budget: blend.Budget{Items: 0.3, History: 0.3}}
	do, full := m.Runner.Do, 0
	m.Runner = runner(func(ctx context.Context, job *engine.Job) (*engine.Result, error) {
		if job.Segments != nil {
			full++
			return nil, kv.ErrFull
		}
		return do(ctx, job)
	})
	s, err := New(Config{Models: []Model{m}, SLO: time.Minute})
	must(t, err)
	got, err := s.Rank(t.Context(), req)
	must(t, err)
	checkParts(t, 0, got)
	for _, p := range got.Parts {
		if p.Kind != plan.Item.String() && p.Cached > 0 {
			t.Errorf("%d of %d tokens of the %s are said to come from %s", p.Cached, p.Tokens, p.Kind, p.Source)
		}
	}
	if full == 0 || len(got.Parts) == 0 {
		t.Errorf("%d jobs found no room, %d parts", full, len(got.Parts))
	}
}

// A checkpoint that fails only for blended prompts is rejected before it serves.
func TestProbeBlends(t *testing.T) {
	w := newBlendWorld(t, near, 4, false)
	m := w.model
	m.Blend = &reuse.Blend{Budget: blend.Budget{Items: 0.3, History: 0.3}}
	broken, parts, do := false, 0, m.Runner.Do
	m.Runner = runner(func(ctx context.Context, job *engine.Job) (*engine.Result, error) {
		if job.Blend != nil {
			parts += len(job.Blend.Parts)
			if broken {
				return nil, errors.New("cannot blend")
			}
		}
		return do(ctx, job)
	})
	s, err := New(Config{Models: []Model{m}, SLO: time.Minute})
	must(t, err)
	if err := s.probe(t.Context(), newCheckpoint(&m)); err != nil || parts == 0 {
		t.Errorf("a probe of a checkpoint that blends: %v, with %d blocks", err, parts)
	}
	if strings.Contains(exposed(t, s), "grebe_prefix_choice_total{") {
		t.Error("prefixes of probes are counted as rankings'")
	}
	broken = true
	if err := s.probe(t.Context(), newCheckpoint(&m)); err == nil {
		t.Error("a checkpoint that cannot blend passes")
	}
}

// Unused prototypes are deleted with the first deleted user, because a single user cannot be removed from them.
func TestUnusedPrototypesGoWithAUser(t *testing.T) {
	w := newBlendWorld(t, near, 2, false)
	file := filepath.Join(t.TempDir(), "m.proto")
	must(t, os.WriteFile(file, []byte("of other weights"), 0o600))
	m := w.model
	m.Blend = &reuse.Blend{Unused: file}
	s, err := New(Config{Models: []Model{m}})
	must(t, err)
	_, err = s.catalog.PutUser(&grebev1.User{Id: "u", Tokens: []int32{1}})
	must(t, err)
	must(t, s.DeleteUser(t.Context(), "u"))
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}
