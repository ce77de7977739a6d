package serve

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/blend"
	"grebe/compute"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
	"grebe/reuse"
	"grebe/schedule"
)

// gate is a tier whose reads wait until a test lets them succeed or fail.
type gate struct {
	kv.Disk
	read atomic.Pointer[func(key plan.Key) bool]
}

func (g *gate) Get(key plan.Key, place func([]byte, int64) ([][]byte, error)) ([]byte, bool, error) {
	if read := g.read.Load(); read != nil && !(*read)(key) {
		return nil, false, nil
	}
	return g.Disk.Get(key, place)
}

func (g *gate) set(read func(key plan.Key) bool) { g.read.Store(&read) }

// beginning is an engine that signals when it begins a batch.
type beginning struct {
	dispatch.Engine
	begins func([]*engine.Job)
}

func (b *beginning) Run(jobs []*engine.Job, out []engine.Outcome) {
	b.begins(jobs)
	b.Engine.Run(jobs, out)
}

// perRow is the prefill model of an engine that takes so many milliseconds per row.
func perRow(t *testing.T, ms float64) schedule.PrefillModel {
	t.Helper()
	var samples []schedule.Sample
	for i := 1; i < 40; i++ {
		samples = append(samples, schedule.Sample{Rows: 5 * i, Keys: 5 * i * (1 + i%7), Requests: 1 + i%4,
			Ms: ms * float64(1+5*i)})
	}
	m, err := schedule.Fit(samples)
	must(t, err)
	return m
}

// newDiskWorld has memory for so many tokens above a disk with a gate. queue opens a server whose requests go through
// another queue to the same engines.
func newDiskWorld(t *testing.T, where farMemory, seed uint64,
	tokens int) (w *cacheWorld, g *gate, queue func(dispatch.Options, ...dispatch.Engine) *Service) {
	t.Helper()
	g = &gate{}
	w = newCacheWorldOver(t, where, seed, false, func(m compute.Memory, s compute.Shape) (*pool.Pool, error) {
		return pool.Over(m, int64(s.ChunkBytes(tokens, false)), 256)
	}, func(d kv.Disk) kv.Disk { g.Disk = d; return g })
	m := w.model
	m.Blend = &reuse.Blend{Budget: blend.Budget{Items: 0.3, History: 0.3}}
	queue = func(opt dispatch.Options, engines ...dispatch.Engine) *Service {
		t.Helper()
		if len(engines) == 0 {
			engines = w.engines
		}
		d, err := dispatch.New(engines, opt)
		must(t, err)
		t.Cleanup(func() { d.Close() })
		queued := m
		queued.Runner = d
		s, err := New(Config{Models: []Model{queued}, SLO: time.Minute})
		must(t, err)
		return s
	}
	plain := m
	plain.Cache = nil
	var err error
	w.plain, err = New(Config{Models: []Model{plain}, SLO: time.Minute})
	must(t, err)
	w.cached, err = New(Config{Models: []Model{m}, SLO: time.Minute})
	must(t, err)
	return w, g, queue
}

// lower moves all cached KV to the disk.
func (w *cacheWorld) lower(t *testing.T) {
	t.Helper()
	w.store.Flush()
	if w.host != nil { // KV that leaves the device finds no room in the host's memory
		var taken []pool.Run
		for r, err := w.host.Alloc(1); err == nil; r, err = w.host.Alloc(1) {
			taken = append(taken, r)
		}
		defer func() {
			for _, r := range taken {
				w.host.Free(r)
			}
		}()
	}
	for range 2 { // KV in the host's memory makes room for KV from the device
		for all := int(w.pool.Stats().Total); all > 0; all /= 2 {
			e, err := w.store.Reserve(kv.Exact, max(1, all/w.shape.ChunkBytes(1, false)), nil)
			if err == nil {
				e.Release()
				break
			}
		}
	}
}

// A ranking whose blocks are on disk is computed while they are read: all but the first arrive after its batch began.
// Its scores and its usage equal those with blocks read ahead.
func TestBlocksFromDiskBesideTheBatch(t *testing.T) {
	w, g, queue := newDiskWorld(t, near, 4, 4000)
	const slow = 10 // milliseconds per token, so that reads are near after the first one
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	hooked := &beginning{w.engines[0], func([]*engine.Job) { begin() }}
	beside := queue(dispatch.Options{SLO: time.Minute, Model: perRow(t, slow)}, hooked)
	ahead := queue(dispatch.Options{SLO: time.Minute, Model: perRow(t, 0.01), ReadAhead: true})
	req := w.request("item")
	for len(req.Candidates) < 6 {
		req = w.request("item")
	}
	req.User.Id = ""
	_, err := w.cached.Rank(t.Context(), req) // makes the blocks
	must(t, err)
	req.Prefix = "blend"
	w.lower(t)
	want, err := ahead.Rank(t.Context(), req)
	must(t, err)
	w.lower(t)
	if n := want.Usage.BySource.Disk; n == 0 {
		t.Fatalf("nothing came from disk: %v", want.Usage)
	}
	var reads atomic.Int32
	guard := time.AfterFunc(time.Minute, func() { t.Error("the batch waits for what waits for it"); begin() })
	defer guard.Stop()
	g.set(func(plan.Key) bool {
		if reads.Add(1) > 1 {
			<-begun
		}
		return true
	})
	got, err := beside.Rank(t.Context(), req)
	must(t, err)
	if got.Usage.String() != want.Usage.String() {
		t.Errorf("the account is %v, read ahead %v", got.Usage, want.Usage)
	}
	for i, logit := range spread(got) {
		if logit != spread(want)[i] {
			t.Errorf("candidate %d has the logit %v, read ahead %v", i, logit, spread(want)[i])
		}
	}
	if reads.Load() < 2 {
		t.Errorf("%d blocks were read", reads.Load())
	}
}

// A request whose deadline is near, or whose client leaves, does not wait for a hung disk, and nobody waits for that
// request. Entries that arrive later are released.
func TestNobodyWaitsForADiskThatHangs(t *testing.T) {
	w, g, _ := newDiskWorld(t, near, 6, 4000)
	req := w.request("item")
	_, err := w.cached.Rank(t.Context(), req)
	must(t, err)
	w.lower(t)
	hangs, reading := make(chan struct{}), make(chan struct{}, 100)
	g.set(func(plan.Key) bool { reading <- struct{}{}; <-hangs; return true })
	req.Prefix, req.User.Id = "blend", ""
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-reading; cancel() }()
	if _, err := w.cached.Rank(ctx, req); err == nil {
		t.Errorf("a client that left: %v", err)
	}
	req.DeadlineMs = 20
	answers := int32(1)
	if got, err := w.cached.Rank(t.Context(), req); err == nil { // there was time to compute what did not arrive
		if answers++; got.Usage.BySource.Disk > 0 {
			t.Errorf("a disk hangs, and tokens came from it: %v", got.Usage)
		}
	}
	req.DeadlineMs, req.Prefix = 0, "user"
	_, err = w.cached.Rank(t.Context(), req)
	must(t, err)
	close(hangs)
	w.cache.Settle()
	req.Prefix = "blend" // what is on disk is computed now
	got, err := w.cached.Rank(t.Context(), req)
	must(t, err)
	_, after, _ := strings.Cut(exposed(t, w.cached), "\ngrebe_late_tokens_total ")
	late := 0
	if _, err := fmt.Sscan(after, &late); err != nil || late == 0 || int32(late) > answers*got.Usage.ItemTokens {
		t.Errorf("%d tokens are said to be late, %v", late, err)
	}
}

// Many concurrent requests, whose blocks are read, missing, delayed, evicted and deleted and whose clients may leave,
// get exact scores where they ask for them and near ones otherwise. Token counts add up, and nothing stays pinned.
func TestBlendFromAFaultyDisk(t *testing.T) {
	for _, where := range []farMemory{near, far, pinned} {
		t.Run(fmt.Sprint(where), func(t *testing.T) {
			w, g, queue := newDiskWorld(t, where, 20+uint64(where), 500)
			s := queue(dispatch.Options{SLO: time.Minute, Model: perRow(t, 0.01)})
			var asked []*grebev1.RankRequest
			var want []map[int32]float64
			for range 120 {
				req := w.request("blend")
				full, err := w.plain.Rank(t.Context(), req)
				must(t, err)
				asked, want = append(asked, req), append(want, spread(full))
				if w.rand.IntN(3) == 0 {
					req.Budget = &grebev1.Budget{Items: new(1.0), History: new(1.0)}
				}
			}
			for _, req := range asked[:20] {
				item := &grebev1.RankRequest{Prefix: "item", User: req.User, Candidates: req.Candidates}
				_, err := w.cached.Rank(t.Context(), item)
				must(t, err)
			}
			w.lower(t)
			var turn atomic.Uint64
			g.set(func(plan.Key) bool {
				n := turn.Add(1) * 0x9e3779b97f4a7c15 >> 56
				for range n { // the others continue
					runtime.Gosched()
				}
				return n%8 != 0
			})
			var wg sync.WaitGroup
			var disk, near, left atomic.Int64
			for part := range 6 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(part), 1))
					for i := part; i < len(asked); i += 6 {
						switch r.IntN(8) {
						case 0:
							must(t, w.cache.DropItem(w.items[r.IntN(len(w.items))]))
						case 1:
							w.store.Flush()
							if e, err := w.store.Reserve(kv.Exact, 100+r.IntN(300), nil); err == nil {
								e.Release()
							}
						}
						ctx, cancel := context.WithCancel(t.Context())
						if r.IntN(6) == 0 {
							go cancel()
						}
						got, err := s.Rank(ctx, asked[i])
						cancel()
						if err != nil {
							left.Add(1)
							if t.Context().Err() == nil && ctx.Err() == nil {
								t.Error(err)
							}
							continue
						}
						u, by := got.Usage, got.Usage.BySource
						if u.CachedTokens+u.ComputedTokens != u.PromptTokens ||
							by.Device+by.Host+by.Disk+by.Prototype != u.CachedTokens || by.Recomputed > u.ComputedTokens {
							t.Errorf("request %d: the account does not add up: %v", i, u)
						}
						checkParts(t, i, got)
						disk.Add(int64(by.Disk))
						for k, logit := range spread(got) {
							d := math.Abs(logit - want[i][k])
							if math.IsNaN(d) || asked[i].Budget != nil && d > 1e-6 {
								t.Errorf("request %d: candidate %d has the logit %v, want %v", i, k, logit, want[i][k])
							} else if d > 0 {
								near.Add(1)
							}
						}
					}
				})
			}
			wg.Wait()
			if disk.Load() == 0 || near.Load() == 0 || left.Load() == 0 {
				t.Errorf("%d tokens came from disk, %d scores are near, %d requests were left: nothing was tried", disk.Load(),
					near.Load(), left.Load())
			}
		})
	}
}

// broken is a queue with a fault.
type broken struct{}

func (broken) Do(context.Context, *engine.Job) (*engine.Result, error) { panic("broken") }

// A request that panics leaves nothing pinned: all memory can be used afterwards.
func TestAPanicPinsNothing(t *testing.T) {
	w, _, _ := newDiskWorld(t, near, 4, 4000)
	m := w.model
	m.Runner, m.Blend = broken{}, &reuse.Blend{Budget: blend.Budget{Items: 0.3, History: 0.3}}
	s, err := New(Config{Models: []Model{m}, SLO: time.Minute})
	must(t, err)
	req := w.request("item")
	for _, prefix := range []string{"user", "item"} {
		req.Prefix = prefix
		_, err := w.cached.Rank(t.Context(), req)
		must(t, err)
	}
	for _, prefix := range []string{"user", "item", "blend"} {
		req.Prefix = prefix
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("prefix %s: no panic", prefix)
				}
			}()
			_, _ = s.Rank(t.Context(), req)
		}()
	}
	score := &grebev1.ScoreRequest{Query: &grebev1.Input{Tokens: w.tokens(40)},
		Items: []*grebev1.Input{{Tokens: w.tokens(5)}}, LabelTokenIds: []int32{3, 4}, ApplySoftmax: true}
	_, err = w.cached.Score(t.Context(), score)
	must(t, err)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("score: no panic")
			}
		}()
		_, _ = s.Score(t.Context(), score)
	}()
	w.cache.Settle()
	w.lower(t)
	if used := w.pool.Stats().Used; used > 0 {
		t.Errorf("%d bytes cannot be had any more", used)
	}
}
