package generate

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"grebe/engine"
	"grebe/kv"
	"grebe/model/modeltest"
	"grebe/prompt"
)

// accounted makes each job wait and compute for a known time, and adds up what the jobs computed.
type accounted struct {
	do                   func(context.Context, *engine.Job) (*engine.Result, error)
	jobs, computed, rows int
	prompt, batch        int // of the first job
	fail                 int // the job that fails; 0: none
}

var errJob = errors.New("the job failed")

func (a *accounted) Do(ctx context.Context, j *engine.Job) (*engine.Result, error) {
	a.jobs++
	if a.jobs == a.fail {
		return nil, errJob
	}
	res, err := a.do(ctx, j)
	if err != nil {
		return nil, err
	}
	res.Queue, res.Compute, res.BatchTokens = 3*time.Millisecond, 5*time.Millisecond, 100*a.jobs
	a.computed += res.Computed
	if j.Beams != nil {
		a.rows += len(j.Want)
	}
	if a.jobs == 1 {
		a.prompt, a.batch = res.Computed, res.BatchTokens
	}
	return res, nil
}

// check fails unless a result has the sums of all jobs.
func (a *accounted) check(t *testing.T, what string, r *Result) {
	t.Helper()
	if r.Computed != a.computed || r.Rows != a.rows || r.Prompt != a.prompt {
		t.Errorf("%s: %d tokens computed, %d rows, %d of the prompt; want %d, %d, %d", what, r.Computed, r.Rows, r.Prompt,
			a.computed, a.rows,
			a.prompt)
	}
	n := time.Duration(a.jobs) * time.Millisecond
	if r.Queue != 3*n || r.Compute != 5*n {
		t.Errorf("%s: %v in the queue and %v computing in %d jobs", what, r.Queue, r.Compute, a.jobs)
	}
}

// A result has the sums of what its rounds computed and waited, also if the search was widened.
func TestAccountsOfASearch(t *testing.T) {
	s := newSite(t, rand.New(rand.NewPCG(12, 12)), modeltest.Qwen3, 3, 150, true)
	do := s.Do
	ask := func(fail int, q Request) (*accounted, *Result, error) {
		a := &accounted{do: do, fail: fail}
		s.Do = a.Do
		q.UserID, q.User = "u", s.user
		r, err := s.Recommend(t.Context(), &q)
		return a, r, err
	}
	a, r, err := ask(0, Request{N: 5, Width: 10})
	if err != nil {
		t.Fatal(err)
	}
	a.check(t, "a search", r)
	if a.jobs < 2 || a.rows == 0 || r.BatchTokens != a.batch || r.Cached != 0 || r.Paths == 0 || r.Valid != r.Paths ||
		r.Version != "1" {
		t.Errorf("%d jobs: %+v", a.jobs, r)
	}
	a, r, err = ask(0, Request{N: 5, Width: 10})
	if err != nil || r.Cached == 0 {
		t.Fatalf("%d tokens of a user who returns are cached, %v", r.Cached, err)
	}
	a.check(t, "again", r)
	cached, prompt := r.Cached, r.Prompt
	s.Widths = []int{1, 1, 5}
	narrow, _, err := ask(0, Request{N: 60, Width: 5})
	if err != nil {
		t.Fatal(err)
	}
	a, r, err = ask(0, Request{N: 60, Width: 5, Widen: true})
	if err != nil || a.jobs <= narrow.jobs {
		t.Fatalf("%d jobs, and %d without being made wider: %v", a.jobs, narrow.jobs, err)
	}
	a.check(t, "made wider", r)
	if r.Cached != cached || r.Prompt != prompt || len(r.Items) != 60 {
		t.Errorf("made wider: %d cached, %d of the prompt, %d items; want %d, %d, 60", r.Cached, r.Prompt, len(r.Items),
			cached, prompt)
	}
	for fail := 1; fail <= a.jobs; fail++ {
		if b, r, err := ask(fail, Request{N: 60, Width: 5, Widen: true}); !errors.Is(err, errJob) || r != nil ||
			b.jobs != fail {
			t.Errorf("job %d of %d fails: %v after %d", fail, a.jobs, err, b.jobs)
		}
	}
}

// If the cache has no room, a prompt is computed without it.
func TestAPromptWithoutRoomInTheCache(t *testing.T) {
	s := newSite(t, rand.New(rand.NewPCG(12, 12)), modeltest.Qwen3, 3, 150, true)
	want := must(s.Recommend(t.Context(), &Request{User: s.user, N: 10, Width: 20}))
	do, jobs := s.Do, 0
	s.Do = func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
		if jobs++; jobs == 1 {
			return nil, kv.ErrFull
		}
		if jobs == 2 && j.Segments != nil {
			t.Error("the prompt is computed again with what does not fit")
		}
		return do(ctx, j)
	}
	got := must(s.Recommend(t.Context(), &Request{UserID: "u", User: s.user, N: 10, Width: 20}))
	sameItems(t, got, want)
}

// There is nothing to recommend for an empty prompt, for an empty catalog, or if all items were deleted.
func TestNothingToRecommend(t *testing.T) {
	s := newSite(t, rand.New(rand.NewPCG(12, 12)), modeltest.Qwen3, 2, 20, false)
	b := must(prompt.New(prompt.Config{Codes: prompt.Codes{FirstToken: []int32{100, 140}, Size: s.sizes}}, nil, 400))
	g := &Generator{Prompt: b, Do: s.Do, Shape: s.Shape}
	g.Use(s.Snapshot())
	if _, err := g.Recommend(t.Context(), &Request{N: 1, Width: 1}); !errors.Is(err, ErrEmpty) {
		t.Errorf("an empty prompt: %v", err)
	}
	if r, err := g.Recommend(t.Context(), &Request{User: s.user, N: 1, Width: 1}); err != nil || len(r.Items) != 1 {
		t.Errorf("a user: %v", err)
	}
	for name, width := range map[string]int{"a width of 0": 0, "a negative width": -1} {
		if _, err := g.Recommend(t.Context(), &Request{User: s.user, N: 1, Width: width}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	h := newShelf(t)
	h.put("i1", 1, 1)
	h.open()
	must(h.catalog.DeleteItem("i1"))
	h.keeper.Renew()
	for _, m := range h.models {
		if n := m.Snapshot().Len(); n != 0 {
			t.Errorf("%d items of an empty catalog", n)
		}
		if _, err := m.Recommend(t.Context(), &Request{N: 1, Width: 1}); !errors.Is(err, ErrNoCodes) {
			t.Errorf("an empty catalog: %v", err)
		}
	}
	h.packed.left = 4 // they are packed anew
	h.put("i2", 2, 2)
	h.keeper.Renew()
	if got := h.codes("a", "i2"); got != "[2 2]" {
		t.Errorf("the next item has the codes %s", got)
	}
}
