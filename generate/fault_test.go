package generate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/engine"
	"grebe/kv"
	"grebe/model/modeltest"
)

// The version of a catalog that never had an item can be activated like any other.
func TestTheEmptyVersion(t *testing.T) {
	s := newShelf(t)
	s.open()
	empty := contentsOf(s.models["a"].Snapshot())
	s.put("one", 1, 2)
	s.keeper.Renew()
	if err := s.keeper.Rollback(""); err != nil {
		t.Fatalf("version 0 is kept, but there is no way back to it: %v", err)
	}
	s.want("rolled back", "a", empty)
	s.put("two", 3, 4)
	s.keeper.Renew()
	s.want("it stays", "a", empty)
	if !s.keeper.Pinned("a") {
		t.Error("a model that was rolled back follows the catalog")
	}
	s.open()
	s.want("after a restart", "b", empty)
	if err := s.keeper.Activate("", Auto, ""); err != nil {
		t.Fatal(err)
	}
	if n := s.models["a"].Snapshot().Len(); n != 2 || s.keeper.Pinned("a") {
		t.Errorf("following again: %d items", n)
	}
}

// Items without codes make no version, but are counted.
func TestItemsWithoutCodesAreCountedAfterARestart(t *testing.T) {
	s := newShelf(t)
	s.put("one", 1, 2)
	s.open()
	for i := range 3 {
		must(s.catalog.PutItem(&grebev1.Item{Id: fmt.Sprint("bare", i)}))
	}
	s.open()
	s.put("two", 3, 4)
	s.keeper.Renew()
	if snap := s.models["a"].Snapshot(); snap.Len() != 2 || snap.Skipped != 3 {
		t.Errorf("%d items, %d without codes; want 2 and 3", snap.Len(), snap.Skipped)
	}
}

// A version whose files cannot be opened now can be activated later.
func TestActivateWithoutFileHandles(t *testing.T) {
	s := newShelf(t)
	s.fill(80)
	s.open()
	first, want := s.models["a"].Snapshot().Version, contentsOf(s.models["a"].Snapshot())
	for i := range 120 { // another generation
		s.put(fmt.Sprint("i", i%60), int32(i%20), 3)
	}
	s.keeper.Renew()
	s.put("i1", 2, 2)
	s.keeper.Renew()
	var before syscall.Rlimit
	must(0, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	must(0, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: before.Max}))
	err := s.keeper.Activate("a", first, "")
	must(0, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
	if err == nil || errors.Is(err, ErrNoVersion) {
		t.Errorf("no file can be opened: %v", err)
	}
	if err := s.keeper.Activate("a", first, ""); err != nil {
		t.Fatal(err)
	}
	s.want("activated", "a", want)
}

// The memory for kept filters is bounded in bytes, because values may be long.
func TestLongValuesAreNotRemembered(t *testing.T) {
	s := newShelf(t)
	s.fill(80)
	s.open()
	snap := s.models["a"].Snapshot()
	long := strings.Repeat("x", 1<<20)
	for i := range 3 {
		snap.filter(anyOf(map[string][]string{"kind": {long + fmt.Sprint(i)}}))
		snap.filter(anyOf(map[string][]string{long + fmt.Sprint(i): {"1"}}))
	}
	for a := range snap.sets {
		t.Errorf("a set is kept for an attribute of %d and a value of %d bytes", len(a.name), len(a.value))
	}
	if set := snap.filter(anyOf(map[string][]string{"kind": {long, "1"}})); set.Len() != len(contentsOf(snap).kinds["1"]) {
		t.Errorf("%d items", set.Len())
	}
}

// full is a queue whose cache has no room for the first job of a request.
type full struct {
	do   func(context.Context, *engine.Job) (*engine.Result, error)
	jobs int
}

func (f *full) Do(ctx context.Context, j *engine.Job) (*engine.Result, error) {
	if f.jobs++; f.jobs == 1 {
		j.Meanwhile()
		return nil, kv.ErrFull
	}
	return f.do(ctx, j)
}

// A search that cannot begin fails its request, also if the prompt is computed twice.
func TestASearchThatCannotBegin(t *testing.T) {
	s := newSite(t, rand.New(rand.NewPCG(3, 9)), modeltest.Qwen2, 3, 50, false)
	f := &full{do: s.Do}
	s.Do = f.Do
	_, err := s.Recommend(t.Context(), &Request{User: s.user, N: 5, Width: 8, Free: true,
		Filter: anyOf(map[string][]string{"kind": {"1"}})})
	if err == nil {
		t.Error("a free search was filtered")
	}
}

// quitter cancels requests at chosen moments: before a job is queued, while it waits, when its batch has begun, and
// between jobs.
type quitter struct {
	do      func(context.Context, *engine.Job) (*engine.Result, error)
	mu      sync.Mutex
	running map[*engine.Job]func() // to be called when the job's batch begins
}

// quit is the moment at which a request is canceled. It is in the request's context.
type quit struct {
	job    int // which of its jobs; negative: never
	moment int
	cancel func()
}

type quitKey struct{}

func (q *quitter) Do(ctx context.Context, j *engine.Job) (*engine.Result, error) {
	plan := ctx.Value(quitKey{}).(*quit)
	if plan.job--; plan.job != -1 {
		return q.do(ctx, j)
	}
	switch plan.moment {
	case 0:
		plan.cancel()
	case 1:
		meanwhile := j.Meanwhile
		j.Meanwhile = func() {
			plan.cancel()
			meanwhile()
		}
	case 2:
		q.mu.Lock()
		q.running[j] = plan.cancel
		q.mu.Unlock()
	default:
		defer plan.cancel()
	}
	res, err := q.do(ctx, j)
	q.mu.Lock()
	delete(q.running, j)
	q.mu.Unlock()
	return res, err
}

// begins is called for each batch. A request canceled there continues at once, and must wait for its batch.
func (q *quitter) begins(jobs []*engine.Job) {
	for _, j := range jobs {
		q.mu.Lock()
		cancel := q.running[j]
		q.mu.Unlock()
		if cancel != nil {
			cancel()
			runtime.Gosched()
		}
	}
}

// Requests canceled at any moment do not affect later ones: neither through reused memory nor through leaked
// references to KV, which the site checks at the end. Run it with the race detector.
func TestGivenUpAtAnyMoment(t *testing.T) {
	s := newSite(t, rand.New(rand.NewPCG(4, 2)), modeltest.Qwen3, 4, 3000, true)
	requests := make([]*Request, 6)
	want := make([]*Result, len(requests))
	r := rand.New(rand.NewPCG(4, 3))
	for i := range requests {
		q := &Request{UserID: fmt.Sprint("u", i), N: 10, Width: 4 << i}
		for range 5 + r.IntN(60) {
			q.User = append(q.User, r.Int32N(100))
		}
		if i%2 == 0 {
			q.Filter = anyOf(map[string][]string{"kind": {"1", "3"}})
		}
		requests[i], want[i] = q, must(s.Recommend(t.Context(), q))
	}
	quits := &quitter{running: map[*engine.Job]func(){}}
	s.queued(t, &recorder{Engine: s.engine, before: quits.begins})
	quits.do, s.Do = s.Do, quits.Do
	var done, gone atomic.Int32
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 5))
			for range 25 {
				i := r.IntN(len(requests))
				ctx, cancel := context.WithCancel(t.Context())
				plan := &quit{job: r.IntN(6) - 1, moment: r.IntN(4), cancel: cancel}
				got, err := s.Recommend(context.WithValue(ctx, quitKey{}, plan), requests[i])
				cancel()
				if errors.Is(err, context.Canceled) {
					gone.Add(1)
					continue
				}
				if err != nil {
					t.Errorf("request %d: %v", i, err)
					return
				}
				done.Add(1)
				if !slices.EqualFunc(got.Items, want[i].Items, func(a, b Item) bool { return a.ID == b.ID && a.Score == b.Score }) {
					t.Errorf("request %d: other items or scores than alone", i)
				}
			}
		})
	}
	wg.Wait()
	if done.Load() < 20 || gone.Load() < 20 {
		t.Errorf("%d requests were answered and %d given up: the test shows too little", done.Load(), gone.Load())
	}
}

// A rollback skips a version that is found damaged.
func TestRollBackOverADamagedVersion(t *testing.T) {
	s := newShelf(t)
	s.fill(80)
	s.open()
	first := contentsOf(s.models["a"].Snapshot())
	s.put("i1", 2, 2)
	s.keeper.Renew()
	for i := range 120 { // another generation
		s.put(fmt.Sprint("i", i%60), int32(i%20), 3)
	}
	s.keeper.Renew()
	s.put("i1", 7, 7)
	s.keeper.Renew()
	if err := s.keeper.Rollback(""); err != nil {
		t.Fatal(err)
	}
	logs := must(filepath.Glob(filepath.Join(s.dir, "log-*")))
	slices.Sort(logs)
	must(0, os.Truncate(logs[0], 10))
	if err := s.keeper.Rollback(""); err != nil {
		t.Fatal(err)
	}
	s.want("past the damaged version", "a", first)
	s.want("past the damaged version", "b", first)
	if s.keeper.Damaged() == 0 || len(s.keeper.Versions()) != 3 {
		t.Errorf("%d damaged, versions %v", s.keeper.Damaged(), s.keeper.Versions())
	}
	if err := s.keeper.Rollback(""); !errors.Is(err, ErrOldest) {
		t.Errorf("at the oldest: %v", err)
	}
}

// Cached KV with NaN fails no request: the prompt is computed without it, and it is dropped.
func TestCachedNaNIsDropped(t *testing.T) {
	s := newSite(t, rand.New(rand.NewPCG(9, 9)), modeltest.Qwen3, 3, 50, true)
	request := &Request{UserID: "u", User: s.user, N: 5, Width: 16}
	want := must(s.Recommend(t.Context(), request))
	do, spoilt := s.Do, 0
	s.Do = func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
		for _, seg := range j.Segments {
			if seg.Entry == nil || spoilt > 0 {
				continue
			}
			for _, c := range seg.Entry.AppendChunks(nil) {
				for i := range c.Bytes {
					c.Bytes[i] = 0xff
				}
				spoilt += len(c.Bytes)
			}
		}
		return do(ctx, j)
	}
	got := must(s.Recommend(t.Context(), request))
	if spoilt == 0 {
		t.Fatal("the job used no cached KV: the test shows nothing")
	}
	s.Do = do
	next := must(s.Recommend(t.Context(), request))
	for _, r := range []*Result{got, next} {
		if r.Cached != 0 || !slices.EqualFunc(r.Items, want.Items, func(a, b Item) bool { return a.ID == b.ID }) {
			t.Errorf("%d tokens were cached; items %v, want %v", r.Cached, r.Items, want.Items)
		}
	}
	if again := must(s.Recommend(t.Context(), request)); again.Cached == 0 {
		t.Error("KV of a good prompt is not used again")
	}
}

// KV of a prompt whose logits are not finite is neither published nor leaked. The user's next request computes
// everything and gets the right answer. The site checks for leaked references at the end.
func TestKVOfAPromptWithoutFiniteLogitsIsDropped(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		s := newSite(t, rand.New(rand.NewPCG(9, 9)), modeltest.Qwen3, 3, 50, true)
		request := &Request{UserID: "u", User: s.user, N: 5, Width: 16}
		do, kept := s.Do, 0
		s.Do = func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
			res, err := do(ctx, j)
			if err == nil {
				j.Into[len(j.Into)-1] = bad
				for _, e := range res.Kept {
					if e != nil {
						kept++
					}
				}
			}
			return res, err
		}
		if got, err := s.Recommend(t.Context(), request); err == nil {
			t.Errorf("a logit of %v: answered with %d items", bad, len(got.Items))
		}
		if kept == 0 {
			t.Fatal("the engine kept no KV: the test shows nothing")
		}
		s.Do = do
		next := must(s.Recommend(t.Context(), request))
		if next.Cached != 0 {
			t.Errorf("a logit of %v: %d tokens of its KV were used again", bad, next.Cached)
		}
		want := must(s.Recommend(t.Context(), &Request{User: s.user, N: 5, Width: 16}))
		if !slices.EqualFunc(next.Items, want.Items, func(a, b Item) bool { return a.ID == b.ID }) {
			t.Errorf("a logit of %v: items %v afterwards, want %v", bad, next.Items, want.Items)
		}
		if again := must(s.Recommend(t.Context(), request)); again.Cached == 0 {
			t.Error("KV of a good prompt is not used again: the test shows nothing")
		}
	}
}
