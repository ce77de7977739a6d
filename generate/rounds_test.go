package generate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"grebe/dispatch"
	"grebe/engine"
	"grebe/model/modeltest"
	"grebe/schedule"
)

// queued puts a dispatcher between a site and what runs its jobs.
func (s *site) queued(t *testing.T, e dispatch.Engine) {
	t.Helper()
	var samples []schedule.Sample
	for i := 1; i < 30; i++ { // of a machine on which company saves much
		samples = append(samples, schedule.Sample{Rows: i, Keys: i * (1 + i%5), Requests: 1 + i%3, Ms: 20 + float64(i)/100})
	}
	d := must(dispatch.New([]dispatch.Engine{e}, dispatch.Options{SLO: time.Hour, Model: must(schedule.Fit(samples))}))
	t.Cleanup(func() { d.Close() })
	s.Do = d.Do
}

// A round goes from the beginning of one job to that of the next: the pass through the model, the selection, the
// moves and the next plan. After some requests it allocates nothing, with and without a queue.
func TestRoundsAllocateNothing(t *testing.T) {
	for _, queue := range []bool{false, true} {
		t.Run(fmt.Sprint("queue ", queue), func(t *testing.T) {
			s := newSite(t, rand.New(rand.NewPCG(5, 5)), modeltest.Qwen3, 5, 3000, false)
			if queue {
				s.queued(t, s.engine)
			}
			var rounds []uint64 // allocations so far, when a job begins
			do := s.Do
			s.Do = func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				rounds = append(rounds, m.Mallocs)
				return do(ctx, j)
			}
			rounds = make([]uint64, 0, 100)
			least := []uint64{}
			for request := range 12 {
				rounds = rounds[:0]
				must(s.Recommend(t.Context(), &Request{User: s.user, N: 10, Width: 64}))
				if len(rounds) < 4 {
					t.Fatalf("%d jobs: the search tests too little", len(rounds))
				}
				for i := range rounds[:len(rounds)-1] {
					n := rounds[i+1] - rounds[i]
					if request == 0 || len(least) <= i {
						least = append(least, n)
					}
					least[i] = min(least[i], n)
				}
			}
			// The least of several: a goroutine of the test's own may allocate at any time, a round that
			// allocates does so every time.
			for i, n := range least {
				if n > 0 {
					t.Errorf("round %d allocates %d times", i, n)
				}
			}
		})
	}
}

// recorder lets the test hold a batch.
type recorder struct {
	dispatch.Engine
	before func(jobs []*engine.Job)
}

func (r *recorder) Run(jobs []*engine.Job, out []engine.Outcome) {
	r.before(jobs)
	r.Engine.Run(jobs, out)
}

// together runs the jobs of some requests as one batch, once each of them has one.
type together struct {
	engine   *engine.Engine
	requests int

	mu    sync.Mutex
	jobs  []*engine.Job
	done  []chan engine.Outcome
	beams int // most jobs of one batch that were rounds of beams
}

func (g *together) Do(_ context.Context, j *engine.Job) (*engine.Result, error) {
	done := make(chan engine.Outcome, 1)
	g.mu.Lock()
	g.jobs, g.done = append(g.jobs, j), append(g.done, done)
	if len(g.jobs) == g.requests {
		g.run()
	}
	g.mu.Unlock()
	if j.Meanwhile != nil {
		j.Meanwhile()
	}
	out := <-done
	return j.Deliver(&out)
}

func (g *together) run() {
	out := make([]engine.Outcome, len(g.jobs))
	g.engine.Run(g.jobs, out)
	beams := 0
	for i := range out {
		if g.jobs[i].Beams != nil {
			beams++
		}
		g.done[i] <- out[i]
	}
	g.beams = max(g.beams, beams)
	g.jobs, g.done = g.jobs[:0], g.done[:0]
}

// Rounds of several requests run as one batch, and each request gets exactly what it gets alone.
func TestRequestsShareBatches(t *testing.T) {
	for _, width := range []int{8, 40} { // 40 rows are projected into the request's own memory
		s := newSite(t, rand.New(rand.NewPCG(6, 6)), modeltest.Qwen2, 4, 2000, false)
		request := &Request{User: s.user, N: 20, Width: width}
		want := must(s.Recommend(t.Context(), request))
		const requests = 5
		all := &together{engine: s.engine, requests: requests}
		s.Do = all.Do
		got := make([]*Result, requests)
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() { got[i] = must(s.Recommend(t.Context(), request)) })
		}
		wg.Wait()
		for i, g := range got {
			if !slices.EqualFunc(g.Items, want.Items, func(a, b Item) bool { return a.ID == b.ID && a.Score == b.Score }) {
				t.Errorf("width %d, request %d: other items or scores than alone", width, i)
			}
		}
		if all.beams != requests {
			t.Errorf("width %d: at most %d rounds in a batch, want %d", width, all.beams, requests)
		}
	}
}

// While a round of one request is computed, another request selects: the engine finishes the first round only after
// the second request has selected and returned with its next round.
func TestSelectionRunsWhileAnotherComputes(t *testing.T) {
	s := newSite(t, rand.New(rand.NewPCG(7, 7)), modeltest.Qwen2, 3, 1000, false)
	rec := &recorder{Engine: s.engine}
	both := make(chan struct{})      // both prompts are in the queue
	selected := make(chan struct{})  // the one whose prompt was first has selected
	var prompts, rounds, batches int // batches: those with a prompt
	rec.before = func(jobs []*engine.Job) {
		if jobs[0].Beams != nil { // no prompt: its deadline is later
			return
		}
		switch batches++; batches {
		case 1:
			<-both // so that the second prompt is next
		case 2:
			<-selected
		}
	}
	// One job per batch: company saves nothing.
	var samples []schedule.Sample
	for i := 1; i < 30; i++ {
		samples = append(samples, schedule.Sample{Rows: i, Keys: i * (1 + i%5), Requests: 1 + i%3, Ms: float64(i)})
	}
	d := must(dispatch.New([]dispatch.Engine{rec}, dispatch.Options{SLO: time.Hour, Model: must(schedule.Fit(samples))}))
	t.Cleanup(func() { d.Close() })
	var mu sync.Mutex
	s.Do = func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
		meanwhile, prompt := j.Meanwhile, j.Beams == nil
		j.Meanwhile = func() {
			meanwhile()
			mu.Lock()
			defer mu.Unlock()
			if prompt {
				if prompts++; prompts == 2 {
					close(both)
				}
			} else if rounds++; rounds == 1 {
				close(selected) // its selection is over: this is its next round
			}
		}
		return d.Do(ctx, j)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { must(s.Recommend(t.Context(), &Request{User: s.user, N: 5, Width: 40})) })
	}
	wg.Wait() // hangs if selection waited for the engine
}

// The continuations of the beams, and a new filter, are looked up while the job is queued or computed, not before.
func TestMasksAreBuiltMeanwhile(t *testing.T) {
	s := newSite(t, rand.New(rand.NewPCG(9, 9)), modeltest.Llama, 3, 500, false)
	filter := anyOf(map[string][]string{"kind": {"2", "4"}})
	built := func() bool { return !s.Snapshot().mustBuild(&Request{Filter: filter}) }
	do := s.Do
	jobs := 0
	s.Do = func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
		if jobs++; jobs == 1 {
			if built() {
				t.Error("the filter was built before the prompt's job")
			}
			meanwhile := j.Meanwhile
			j.Meanwhile = func() {
				if meanwhile(); !built() {
					t.Error("the filter was not built meanwhile")
				}
			}
		}
		if j.Meanwhile == nil {
			t.Error("nothing is done meanwhile")
		}
		return do(ctx, j)
	}
	request := &Request{User: s.user, N: 30, Width: 50, Filter: filter}
	late := must(s.Recommend(t.Context(), request))
	again := must(s.Recommend(t.Context(), request)) // built before
	if len(late.Items) == 0 || !slices.EqualFunc(late.Items, again.Items,
		func(a, b Item) bool { return a.ID == b.ID && a.Score == b.Score }) {
		t.Error("a filter that is built late gives other items")
	}
	// Nothing eligible: the prompt was computed for nothing, and the answer is empty.
	none := must(s.Recommend(t.Context(), &Request{User: s.user, N: 5, Width: 8,
		Filter: anyOf(map[string][]string{"kind": {"nobody"}})}))
	if len(none.Items) != 0 || !none.Short {
		t.Errorf("%d items of a filter that no item passes", len(none.Items))
	}
}
