package generate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/compute/cuda"
	"grebe/compute/ref"
	"grebe/engine"
	"grebe/model/modeltest"
)

// twins are the same site on two devices. One runs whole searches; for the other each round is a job.
func twins(t *testing.T, seed uint64, depth, count int, cached bool) (remote, rounds *site) {
	t.Helper()
	dev := must(cpu.New(cpu.Options{Threads: 2}))
	r := rand.New(rand.NewPCG(seed, 1))
	spec := modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16,
		Inter: 96, Vocab: 400, Seed: r.Uint64()}
	remote = newSiteOn(t, ref.Searching(dev), r, spec, depth, count, cached)
	return remote, newSite(t, rand.New(rand.NewPCG(seed, 1)), modeltest.Qwen3, depth, count, cached)
}

// counted counts the jobs of a site.
func (s *site) counted() *int {
	var mu sync.Mutex
	n, do := new(int), s.Do
	s.Do = func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
		mu.Lock()
		*n++
		mu.Unlock()
		return do(ctx, j)
	}
	return n
}

func sameItems(t *testing.T, got, want *Result) {
	t.Helper()
	if len(got.Items) != len(want.Items) || got.Short != want.Short {
		t.Fatalf("%d items, short %v; want %d, %v", len(got.Items), got.Short, len(want.Items), want.Short)
	}
	for i := range want.Items {
		g, w := got.Items[i], want.Items[i]
		if g.ID != w.ID || math.Abs(g.Score-w.Score) > 1e-4 {
			t.Errorf("item %d is %s with %v, want %s with %v", i, g.ID, g.Score, w.ID, w.Score)
		}
	}
	if got.Prompt != want.Prompt || got.Cached != want.Cached {
		t.Errorf("a prompt of %d computed and %d cached tokens, want %d and %d", got.Prompt, got.Cached, want.Prompt,
			want.Cached)
	}
}

// A search on the device finds what the rounds find. Requests that the device cannot run are run in rounds.
func TestDeviceSearches(t *testing.T) {
	for seed := range uint64(4) {
		for depth := 1; depth <= 4; depth++ {
			t.Run(fmt.Sprint("seed ", seed, " depth ", depth), func(t *testing.T) {
				remote, rounds := twins(t, seed, depth, 300, seed%2 == 0)
				jobs := remote.counted()
				var excluded []string
				for i := range 40 {
					excluded = append(excluded, fmt.Sprint("i", i))
				}
				for _, c := range []struct {
					Request
					alone bool // the device runs it by itself
				}{
					{Request{N: 10, Width: 20}, true},
					{Request{N: 10, Width: 20}, true}, // with a cached user, where there is a cache
					{Request{N: 400, Width: 500}, true},
					{Request{N: 5, Width: 16, Exclude: excluded}, true},
					{Request{N: 5, Width: 16}, true},
					{Request{N: 10, Width: 20, TopK: 3}, true},
					{Request{N: 10, Width: 20, Filter: anyOf(map[string][]string{"kind": {"1", "3"}})}, true},
					{Request{N: 10, Width: 20, Filter: anyOf(map[string][]string{"kind": {"1", "3"}}), Exclude: excluded, TopK: 2},
						true},
					{Request{N: 10, Width: 20, Rules: Rules{Temperature: 0.5}}, false},
					{Request{N: 10, Width: compute.MaxBeams + 1}, true}, // of which no level has as many
				} {
					request := c.Request
					request.User, request.UserID = remote.user, "u"
					*jobs = 0
					got := must(remote.Recommend(t.Context(), &request))
					sameItems(t, got, must(rounds.Recommend(t.Context(), &request)))
					if c.alone && (got.Computed != got.Prompt+got.Rows || (got.Rows > 0) != (depth > 1)) {
						t.Errorf("%d tokens computed, %d of the prompt, %d rows", got.Computed, got.Prompt, got.Rows)
					}
					if c.alone && *jobs != 1 {
						t.Errorf("%d jobs for %+v, which the device runs by itself", *jobs, c.Request)
					}
				}
			})
		}
	}
}

// If the device refuses a search, the rounds follow.
func TestDeviceRefusesSearch(t *testing.T) {
	remote, rounds := twins(t, 9, 3, 200, true)
	do := remote.Do
	remote.Do = func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
		if j.Search != nil {
			return nil, fmt.Errorf("no room: %w", compute.ErrNoSearch)
		}
		return do(ctx, j)
	}
	request := &Request{User: remote.user, UserID: "u", N: 10, Width: 20}
	sameItems(t, must(remote.Recommend(t.Context(), request)), must(rounds.Recommend(t.Context(), request)))
	broken := errors.New("the device is gone")
	remote.Do = func(context.Context, *engine.Job) (*engine.Result, error) { return nil, broken }
	if _, err := remote.Recommend(t.Context(), request); !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
}

// Searches of several requests in one batch, beside other jobs, find what each finds alone.
func TestDeviceSearchesTogether(t *testing.T) {
	remote, rounds := twins(t, 3, 3, 300, false)
	want := must(rounds.Recommend(t.Context(), &Request{User: rounds.user, N: 8, Width: 12}))
	snap := remote.Snapshot()
	layout := remote.Prompt.Generate(remote.user)
	var jobs []*engine.Job
	for i := range 20 {
		j := &engine.Job{Plan: layout.Plan}
		if i%3 == 0 {
			j.Want = []engine.Want{{Segment: layout.Answers, IDs: []int32{1, 2}}}
		} else {
			widths := []int{min(12, snap.index.Nodes(0)), min(12, snap.index.Nodes(1)), 12}
			j.Search = &engine.Search{Tree: snap.tree, Heads: snap.heads, Limits: compute.Limits{Widths: widths},
				Segment: layout.Answers, Position: layout.End}
		}
		jobs = append(jobs, j)
	}
	out := make([]engine.Outcome, len(jobs))
	remote.engine.Run(jobs, out)
	for i, j := range jobs {
		if out[i].Err != nil {
			t.Fatalf("job %d: %v", i, out[i].Err)
		}
		if j.Search == nil {
			if len(out[i].Logits) != 1 || len(out[i].Logits[0]) != 2 {
				t.Errorf("job %d has logits %v", i, out[i].Logits)
			}
			continue
		}
		best := math.Inf(-1)
		for _, l := range j.Search.Leaves {
			best = max(best, l.Score)
		}
		if len(j.Search.Leaves) != 12 || math.Abs(best-want.Items[0].Score) > 1e-4 {
			t.Errorf("job %d found %d leaves, the best with %v; want %v", i, len(j.Search.Leaves), best, want.Items[0].Score)
		}
	}
}

// Searches of many concurrent requests, through a queue that batches them, find what each finds alone.
func TestDeviceSearchesInAQueue(t *testing.T) {
	remote, rounds := twins(t, 5, 3, 300, true)
	remote.queued(t, remote.engine)
	var wg sync.WaitGroup
	for i := range 24 {
		request := &Request{User: remote.user[:len(remote.user)-i%3], UserID: fmt.Sprint("u", i%3), N: 8, Width: 12 + i%2}
		if i%4 == 3 {
			request.TopK = 2
		}
		if i%5 == 4 {
			request.Filter = anyOf(map[string][]string{"kind": {"1", "3"}})
		}
		want := must(rounds.Recommend(t.Context(), request))
		wg.Go(func() {
			got, err := remote.Recommend(t.Context(), request)
			if err != nil {
				t.Error(err)
				return
			}
			for j := range want.Items {
				if g, w := got.Items[j], want.Items[j]; g.ID != w.ID || math.Abs(g.Score-w.Score) > 1e-4 {
					t.Errorf("request %d: item %d is %s with %v, want %s with %v", i, j, g.ID, g.Score, w.ID, w.Score)
				}
			}
		})
	}
	wg.Wait()
}

// On a GPU the search and the rounds of a model find the same, within the precision of bf16.
func TestGPUSearches(t *testing.T) {
	dev, err := cuda.New(cuda.Options{})
	if err != nil {
		t.Skipf("no GPU to test on: %v", err)
	}
	r := rand.New(rand.NewPCG(11, 1))
	spec := modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 256, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 64,
		Inter: 512, Vocab: 400, DType: compute.BF16, Seed: r.Uint64()}
	s := newSiteOn(t, dev, r, spec, 3, 3000, true)
	jobs := s.counted()
	for round, request := range []Request{{N: 50, Width: 100}, {N: 50, Width: 100},
		{N: 20, Width: 64, Exclude: []string{"i1", "i2", "i700"}},
		{N: 20, Width: 64, Filter: anyOf(map[string][]string{"kind": {"1", "3"}}), Exclude: []string{"i1", "i2", "i700"}},
		{N: 50, Width: 100, TopK: 5}, {N: 50, Width: 2000}} {
		request.User, request.UserID = s.user, "u"
		*jobs = 0
		got := must(s.Recommend(t.Context(), &request))
		if *jobs != 1 {
			t.Errorf("request %d: %d jobs, want 1", round, *jobs)
		}
		if round > 0 && got.Cached == 0 {
			t.Errorf("request %d: nothing of the user was cached", round)
		}
		tree := s.Snapshot().tree
		s.Snapshot().tree = nil
		want := must(s.Recommend(t.Context(), &request))
		s.Snapshot().tree = tree
		if len(got.Items) != len(want.Items) {
			t.Fatalf("request %d: %d items, want %d", round, len(got.Items), len(want.Items))
		}
		same := map[string]bool{}
		for _, it := range want.Items {
			same[it.ID] = true
		}
		others := 0
		for i, it := range got.Items {
			if !same[it.ID] {
				others++
			}
			if math.Abs(it.Score-want.Items[i].Score) > 0.1 {
				t.Errorf("request %d: item %d has score %v, want %v", round, i, it.Score, want.Items[i].Score)
			}
		}
		if others > len(got.Items)/10 {
			t.Errorf("request %d: %d of %d items are others", round, others, len(got.Items))
		}
	}
}
