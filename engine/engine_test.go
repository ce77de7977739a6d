package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cpu"
	"grebe/kv"
	"grebe/model"
	"grebe/model/modeltest"
	"grebe/plan"
	"grebe/pool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cpuDevices opens the processor at every level that this machine has, on two threads, and at its best
// one with memory that the host cannot see.
func cpuDevices(t *testing.T) map[string]compute.Device {
	t.Helper()
	out := map[string]compute.Device{}
	for _, level := range []string{"plain", "avx2", "avx512", "amx"} {
		dev, err := cpu.New(cpu.Options{Level: level, Threads: 2})
		if err != nil {
			t.Logf("%s is not tested: %v", level, err)
			continue
		}
		t.Cleanup(func() { dev.Close() })
		out[level] = dev
	}
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	far := computetest.Far(dev, false)
	t.Cleanup(func() {
		if err := far.Close(); err != nil {
			t.Error(err)
		}
	})
	out["far"] = far
	return out
}

// tiny is an engine over a small random model, with a cache.
type tiny struct {
	*Engine
	store *kv.Store
	pool  *pool.Pool
}

// newTiny computes in dtype; the format of KV may follow a +.
func newTiny(t *testing.T, dev compute.Device, dtype string, opt Options) *tiny {
	t.Helper()
	return newTinyOf(t, dev, dtype, opt, 2)
}

// newTinyOf has so many layers.
func newTinyOf(t *testing.T, dev compute.Device, dtype string, opt Options, layers int) *tiny {
	t.Helper()
	dtype, kvDType, _ := strings.Cut(dtype, "+")
	dir := t.TempDir()
	spec := modeltest.Spec{Architecture: "Qwen3ForCausalLM", Hidden: 96, Layers: layers, Heads: 6, KVHeads: 2, HeadDim: 32,
		Inter: 160,
		Vocab: 200, Seed: 7}
	if err := modeltest.Write(dir, spec); err != nil {
		t.Fatal(err)
	}
	m, err := model.Open(dir, dev, model.Options{DType: dtype, KV: kvDType})
	if err != nil {
		t.Fatal(err)
	}
	p, err := pool.Over(dev.Memory(), 64<<20, 4096)
	if err != nil {
		t.Fatal(err)
	}
	opt.Cache = kv.New(m.Shape(), p)
	e, err := New(m, dev, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(e.Close(), m.Close()); err != nil {
			t.Error(err)
		}
		opt.Cache.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return &tiny{e, opt.Cache, p}
}

func randomTokens(r *rand.Rand, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(r.IntN(200))
	}
	return out
}

// randomPlan is user-first or item-first with random lengths, the empty user among them.
func randomPlan(r *rand.Rand) *plan.Plan {
	p := &plan.Plan{}
	add := func(kind plan.Kind, n, start int, sees ...int32) int32 {
		p.Segments = append(p.Segments, plan.Segment{Kind: kind, Tokens: randomTokens(r, n), Start: start, Sees: sees})
		return int32(len(p.Segments) - 1)
	}
	user := []int{0, 1, 17, 64, 65, 150}[r.IntN(6)]
	items := 1 + r.IntN(8)
	if r.IntN(2) == 0 {
		u := add(plan.User, user, 0)
		all := []int32{u}
		for range items {
			all = append(all, add(plan.Item, 1+r.IntN(12), user, u))
		}
		add(plan.Instruction, 3, user+13, all...)
		return p
	}
	var all []int32
	for range items {
		all = append(all, add(plan.Item, 1+r.IntN(12), 0))
	}
	u := add(plan.User, user, 13, all...)
	add(plan.Instruction, 3, 13+user, append(slices.Clone(all), u)...)
	return p
}

func ids(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

// A job yields the same bits computed alone, among others, and with any part of it cached.
func TestSameBitsCachedOrBatched(t *testing.T) {
	for name, dev := range cpuDevices(t) {
		for _, dtype := range []string{"f32", "bf16"} {
			t.Run(name+"/"+dtype, func(t *testing.T) {
				e := newTiny(t, dev, dtype, Options{})
				r := rand.New(rand.NewPCG(3, 4))
				for round := range 12 {
					sameBits(t, e, r, round)
				}
			})
		}
	}
}

func sameBits(t *testing.T, e *tiny, r *rand.Rand, round int) {
	t.Helper()
	p := randomPlan(r)
	last := len(p.Segments) - 1
	job := func() *Job {
		return &Job{Plan: p, Want: []Want{{Segment: last, IDs: ids(50)}}, Hidden: []int{last}}
	}
	alone, err := e.Do(t.Context(), job())
	if err != nil {
		t.Fatal(err)
	}
	// Keep everything, then give random parts of it back as cached.
	keep := job()
	keep.Segments = slices.Repeat(keeping(true), len(p.Segments))
	kept, err := e.Do(t.Context(), keep)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, fmt.Sprintf("round %d, KV kept", round), kept, alone)
	for try := range 4 {
		cached := job()
		cached.Segments = make([]Segment, len(p.Segments))
		for i := range cached.Segments[:last] {
			if r.IntN(3) > 0 {
				cached.Segments[i].Entry = kept.Kept[i]
			}
		}
		jobs := []*Job{{Plan: randomPlan(r)}, cached, {Plan: randomPlan(r)}}
		out := make([]Outcome, len(jobs))
		e.Run(jobs, out)
		for i := range out {
			if out[i].Err != nil {
				t.Fatalf("round %d, try %d, job %d: %v", round, try, i, out[i].Err)
			}
		}
		got := &out[1].Result
		compare(t, fmt.Sprintf("round %d, try %d, %d of %d tokens cached", round, try, got.Cached, got.Cached+got.Computed),
			got, alone)
	}
	for _, k := range kept.Kept {
		if k != nil {
			k.Release()
		}
	}
}

func compare(t *testing.T, what string, got, want *Result) {
	t.Helper()
	if !slices.Equal(got.Logits[0], want.Logits[0]) {
		t.Errorf("%s: logits differ: %v, want %v", what, got.Logits[0][:4], want.Logits[0][:4])
	}
	if !slices.Equal(got.Hidden[0], want.Hidden[0]) {
		t.Errorf("%s: hidden states differ: %v, want %v", what, got.Hidden[0][:4], want.Hidden[0][:4])
	}
}

// A history that grows token by token, each step on the KV of the step before, yields the bits of
// one computed at once.
func TestGrowingUser(t *testing.T) {
	for name, dev := range cpuDevices(t) {
		t.Run(name, func(t *testing.T) {
			e := newTiny(t, dev, "bf16", Options{})
			tokens := randomTokens(rand.New(rand.NewPCG(5, 6)), 140)
			var have *kv.Entry
			for n := 1; n <= len(tokens); n += 1 + n%7 {
				p := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: tokens[:n]}}}
				job := &Job{Plan: p, Want: []Want{{Segment: 0, IDs: ids(50)}}, Hidden: []int{0}}
				want, err := e.Do(t.Context(), job)
				if err != nil {
					t.Fatal(err)
				}
				job.Segments = []Segment{{Entry: have, Keep: true}}
				got, err := e.Do(t.Context(), job)
				if err != nil {
					t.Fatal(err)
				}
				compare(t, fmt.Sprintf("%d tokens", n), got, want)
				if have != nil {
					have.Release()
				}
				have = got.Kept[0]
			}
			have.Release()
		})
	}
}

// doubtful is a model whose inputs are incomplete as long as it says so.
type doubtful struct {
	Model
	incomplete bool
	count      uint64
}

func (d *doubtful) Incomplete() uint64 { return d.count }

func (d *doubtful) Forward(r compute.Runner, b *compute.Batch, keep []int32) error {
	if d.incomplete {
		d.count++
	}
	return d.Model.Forward(r, b, keep)
}

// Of a batch whose inputs were incomplete results are delivered, but no KV that it computed; what was cached
// before stays.
func TestKeptNothingIncomplete(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	e := newTiny(t, dev, "f32", Options{})
	d := &doubtful{Model: e.model}
	other, err := New(d, dev, Options{Cache: e.store})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	tokens := randomTokens(rand.New(rand.NewPCG(1, 2)), 30)
	run := func(n int, cached *kv.Entry) *kv.Entry {
		t.Helper()
		p := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: tokens[:n]},
			{Kind: plan.Item, Tokens: tokens[:1], Start: n, Sees: []int32{0}}}}
		r, err := other.Do(t.Context(), &Job{Plan: p, Hidden: []int{1},
			Segments: []Segment{{Entry: cached, Keep: true}, {Keep: true}}})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Hidden) != 1 || len(r.Kept) != 2 || (r.Kept[1] == nil) != d.incomplete {
			t.Errorf("incomplete %v: %d states, kept %v", d.incomplete, len(r.Hidden), r.Kept)
		}
		if r.Kept[1] != nil {
			r.Kept[1].Release()
		}
		return r.Kept[0]
	}
	whole := run(20, nil)
	if whole == nil {
		t.Fatal("nothing is kept of a complete batch")
	}
	d.incomplete = true
	if got := run(20, nil); got != nil {
		t.Error("KV of an incomplete batch is kept")
	}
	if got := run(30, whole); got != nil {
		t.Error("KV that an incomplete batch added is kept")
	}
	if got := run(20, whole); got != whole {
		t.Error("KV that was complete is not kept")
	} else {
		got.Release()
	}
	whole.Release()
	if used := e.pool.Stats().Used; used != 0 {
		t.Errorf("%d bytes are still in use", used)
	}
}

func TestErrors(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	e := newTiny(t, dev, "bf16", Options{MaxTokens: 20})
	one := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: []int32{1, 2}}, {Kind: plan.User}}}
	big := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: make([]int32, 21)}}}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		job  *Job
		want error // nil: any error
	}{
		"too large":        {t.Context(), &Job{Plan: big}, ErrTooLarge},
		"client gone":      {gone, &Job{Plan: one}, context.Canceled},
		"no such segment":  {t.Context(), &Job{Plan: one, Want: []Want{{Segment: 5}}}, nil},
		"an empty segment": {t.Context(), &Job{Plan: one, Hidden: []int{1}}, nil},
		"no such token":    {t.Context(), &Job{Plan: one, Want: []Want{{Segment: 0, IDs: []int32{200}}}}, nil},
		"a wrong plan":     {t.Context(), &Job{Plan: &plan.Plan{Segments: []plan.Segment{{Tokens: []int32{-1}}}}}, nil},
		"too few cached":   {t.Context(), &Job{Plan: one, Segments: make([]Segment, 1)}, nil},
		"beyond the context": {t.Context(), &Job{Plan: &plan.Plan{
			Segments: []plan.Segment{{Start: 1 << 30, Tokens: []int32{1}}}}}, nil},
	} {
		_, err := e.Do(c.ctx, c.job)
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	if _, err := e.Do(t.Context(), &Job{Plan: one, Want: []Want{{Segment: 0, IDs: []int32{3}}}}); err != nil {
		t.Errorf("after all those: %v", err)
	}
	out := make([]Outcome, 3)
	fits := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: make([]int32, 19)}}}
	e.Run([]*Job{{Plan: one}, {Plan: fits}, {Plan: one}}, out)
	if out[0].Err != nil || out[1].Err != nil || out[2].Err != nil || out[0].BatchTokens == out[1].BatchTokens ||
		out[0].BatchTokens != out[2].BatchTokens {
		t.Errorf("jobs that are more than a batch together: got %v, %v, %v in batches of %d, %d and %d tokens",
			out[0].Err, out[1].Err, out[2].Err, out[0].BatchTokens, out[1].BatchTokens, out[2].BatchTokens)
	}
	e.Engine.Close()
	if _, err := e.Do(t.Context(), &Job{Plan: one}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// keeping returns segments whose KV is kept, or not.
func keeping(keep ...bool) []Segment {
	out := make([]Segment, len(keep))
	for i := range keep {
		out[i].Keep = keep[i]
	}
	return out
}
