package rank

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/bench/load"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/compute/cuda"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/kv"
	"grebe/model"
	"grebe/model/modeltest"
	_ "grebe/model/qwen" // the architecture that is measured
	"grebe/plan"
	"grebe/pool"
	"grebe/prompt"
	"grebe/residency"
	"grebe/reuse"
	"grebe/schedule"
	"grebe/serve"
	"grebe/workload"
)

// models are the shapes there are. Small and medium have the widths of Qwen2-1.5B, the paper's first
// model, ×0.25 and ×0.5: with lengths scaled by the same factor attention keeps its share of the
// FLOPs, which decides what reuse saves, since cached keys are attended to all the same.
var models = map[string]modeltest.Spec{
	"tiny": {Architecture: modeltest.Qwen2, Hidden: 64, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 32, Inter: 128,
		Vocab: 2048},
	"small": {Architecture: modeltest.Qwen2, Hidden: 384, Layers: 4, Heads: 6, KVHeads: 2, HeadDim: 64, Inter: 2240,
		Vocab: 16384},
	"medium": {Architecture: modeltest.Qwen2, Hidden: 768, Layers: 8, Heads: 12, KVHeads: 2, HeadDim: 64, Inter: 4480,
		Vocab: 16384},
	"qwen2-0.5b": modeltest.Qwen2Half(),
	"qwen2-1.5b": {Architecture: modeltest.Qwen2, Hidden: 1536, Layers: 28, Heads: 12, KVHeads: 2, HeadDim: 128,
		Inter: 8960, Vocab: 151936, RopeTheta: 1e6},
}

// system is a model on a device, which all variants share.
type system struct {
	name   string
	device compute.Device
	model  model.Model
	shape  compute.Shape
	slo    time.Duration // that batches are made for; 0: the server's default
}

func open(o *Options) (*system, error) {
	spec, ok := models[o.Model]
	if !ok {
		return nil, fmt.Errorf("model %q is not one of tiny, small, medium, qwen2-0.5b, qwen2-1.5b", o.Model)
	}
	spec.MaxPositions, spec.Tied, spec.DType = 131072, true, compute.BF16
	dir := o.Dir
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			base = os.TempDir()
		}
		dir = filepath.Join(base, "grebe", "bench-rank-1-"+o.Model)
	}
	if err := ensure(dir, spec); err != nil {
		return nil, err
	}
	s, err := openDir(dir, o.Model, o.Format, o.Device, o.Threads)
	if err == nil {
		s.slo = o.SLO
	}
	return s, err
}

// ensure writes the checkpoint unless it is there: complete, since it is moved into place.
func ensure(dir string, spec modeltest.Spec) error {
	if _, err := os.Stat(filepath.Join(dir, model.ConfigFile)); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "bench-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := modeltest.Write(tmp, spec); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

func openDir(dir, name, format, device string, threads int) (*system, error) {
	dev, err := openDevice(device, threads)
	if err != nil {
		return nil, err
	}
	m, err := model.Open(dir, dev, model.Options{DType: format})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return &system{name: name, device: dev, model: m, shape: m.Shape()}, nil
}

func openDevice(name string, threads int) (compute.Device, error) {
	switch name {
	case "", "cpu":
		return cpu.New(cpu.Options{Threads: threads})
	case "cuda":
		return cuda.New(cuda.Options{})
	}
	return nil, fmt.Errorf("device %q is neither cpu nor cuda", name)
}

// close ends the system. A benchmark has no use for what may fail there.
func (s *system) close() {
	_ = s.model.Close()
	_ = s.device.Close()
}

func (s *system) describe() string {
	return fmt.Sprintf("%s (Qwen2-shaped, random weights: hidden %d, %d layers, %d/%d heads of %d, %d B of KV per token)",
		s.name, s.shape.Hidden, s.shape.Layers, s.shape.Heads, s.shape.KVHeads, s.shape.HeadDim, s.shape.ChunkBytes(1, false))
}

// builder makes prompts whose instruction has as many tokens as the workload's.
func (s *system) builder(w *workload.Workload) (*prompt.Builder, error) {
	return prompt.New(prompt.Config{Instruction: prompt.Text{Tokens: w.Instruction()}}, nil, s.model.Vocab())
}

// variant is a server with one policy and a cache of its own.
type variant struct {
	policy  schedule.Policy
	name    string
	source  *source
	runner  runner
	warming *warming // nil: it is dry for ever
	server  *serve.Service
	cache   *reuse.Cache // nil: RE
	store   *kv.Store
	closers []func() error

	now atomic.Int64 // the stream's time, for frequencies

	mu    sync.Mutex // guards what is below
	total tally
}

// runner runs jobs and knows how long they take.
type runner interface {
	serve.Runner
	reuse.Load
}

// tally counts what requests took.
type tally struct {
	requests, userFirst      int
	prompt, cached, computed int
}

func (t tally) minus(u tally) tally {
	return tally{t.requests - u.requests, t.userFirst - u.userFirst, t.prompt - u.prompt, t.cached - u.cached,
		t.computed - u.computed}
}

// newVariant opens a server of one policy for a stream, with that much memory. Its jobs run on the
// device, or dry when times is not nil.
func (s *system) newVariant(ctx context.Context, p schedule.Policy, src *source, memory int64,
	times *schedule.PrefillModel) (*variant, error) {
	b, err := s.builder(src.w)
	if err != nil {
		return nil, err
	}
	v, err := s.newCached(ctx, b, p, memory, times)
	if err == nil {
		v.source = src
	}
	return v, err
}

// newCached opens a server of one policy for prompts of b.
func (s *system) newCached(ctx context.Context, b *prompt.Builder, p schedule.Policy, memory int64,
	times *schedule.PrefillModel) (v *variant, err error) {
	v = &variant{policy: p, name: display(p)}
	defer func() {
		if err != nil {
			v.close()
		}
	}()
	sm := serve.Model{Name: "bench", Prompt: b, Vocab: s.model.Vocab(), Positions: s.model.MaxPositions()}
	var pages *pool.Pool
	if p != schedule.None {
		if pages, err = pool.Over(s.device.Memory(), memory, pageFor(&s.shape)); err != nil {
			return v, err
		}
		v.onClose(pages.Close)
		if times == nil {
			if err = clearPool(pages); err != nil {
				return v, err
			}
		}
		v.store = kv.New(s.shape, pages)
		v.onClose(func() error { v.store.Close(); return nil })
		if err = v.store.SetHotness(residency.HotnessConfig{}); err != nil {
			return v, err
		}
	}
	if times != nil {
		v.runner = &dry{store: v.store, model: *times}
	} else if err = s.compute(ctx, v); err != nil {
		return v, err
	}
	sm.Runner = v.runner
	if p != schedule.None {
		v.cache = reuse.New(b, reuse.Options{
			Store: v.store, Pool: pages, Load: v.runner, Shape: s.shape, Policy: p,
			Now: func() time.Duration { return time.Duration(v.now.Load()) },
		})
		sm.Cache = v.cache
	}
	v.server, err = serve.New(serve.Config{Models: []serve.Model{sm}, SLO: time.Minute})
	return v, err
}

// batchTokens are computed in one batch at most: of the longest prompts, four.
const batchTokens = 32768

// compute opens an engine for the variant's jobs.
func (s *system) compute(ctx context.Context, v *variant) error {
	e, err := engine.New(s.model, s.device, engine.Options{MaxTokens: batchTokens, Cache: v.store, Now: time.Now})
	if err != nil {
		return err
	}
	v.onClose(e.Close)
	times, err := dispatch.Profile(ctx, e, s.model.MaxPositions())
	if err != nil {
		return err
	}
	d, err := dispatch.New([]dispatch.Engine{e}, dispatch.Options{Model: times, SLO: s.slo})
	if err != nil {
		return err
	}
	v.onClose(d.Close)
	v.warming = &warming{runner: d, dry: dry{store: v.store}}
	v.runner = v.warming
	return nil
}

// flops is a prefill model whose milliseconds are the FLOPs of rows and of keys, at a TFLOP/s: the same
// on every run, for counting.
func (s *system) flops() schedule.PrefillModel {
	sh := &s.shape
	heads := sh.HeadDim * (2*sh.Heads + 2*sh.KVHeads) // q, k, v and the output
	const ms = 1e9
	return schedule.PrefillModel{
		Row: float64(2*sh.Layers*sh.Hidden*(heads+3*sh.Inter)) / ms,
		Key: float64(4*sh.Layers*sh.Heads*sh.HeadDim) / ms,
	}
}

func (v *variant) onClose(f func() error) { v.closers = append(v.closers, f) }

func (v *variant) close() {
	for _, f := range slices.Backward(v.closers) {
		_ = f()
	}
	v.closers = nil
}

// usesItems reports whether the policy can take items from the cache.
func usesItems(p schedule.Policy) bool { return p != schedule.None && p != schedule.User }

// do sends request i of the stream, with time enough.
func (v *variant) do(ctx context.Context, i int) error {
	return v.send(ctx, i, deadlineMs*time.Millisecond)
}

// within sends requests that have so much time, as clients do who do not wait for longer.
func (v *variant) within(slo time.Duration) load.Do {
	return func(ctx context.Context, i int) error { return v.send(ctx, i, slo) }
}

func (v *variant) send(ctx context.Context, i int, deadline time.Duration) error {
	r := v.source.at(i)
	v.advance(r.at)
	resp, err := v.server.Rank(ctx, &grebev1.RankRequest{
		User: r.msg.User, Candidates: r.msg.Candidates, TopK: r.msg.TopK, DeadlineMs: int32(deadline.Milliseconds()),
	})
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.total.requests++
	if resp.Prefix != plan.ItemFirst.String() {
		v.total.userFirst++
	}
	v.total.prompt += int(resp.Usage.PromptTokens)
	v.total.cached += int(resp.Usage.CachedTokens)
	v.total.computed += int(resp.Usage.ComputedTokens)
	return nil
}

// advance sets the stream's time, which never goes back, and has earlier accesses counted.
func (v *variant) advance(at time.Duration) {
	for {
		now := v.now.Load()
		if now >= int64(at) || v.now.CompareAndSwap(now, int64(at)) {
			break
		}
	}
	if v.store != nil {
		v.store.Count(time.Duration(v.now.Load()))
	}
}

func (v *variant) tally() tally {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.total
}

// names of the policies as the paper calls them.
func display(p schedule.Policy) string {
	switch p {
	case schedule.None:
		return "RE"
	case schedule.User:
		return "UP"
	case schedule.Item:
		return "IP"
	case schedule.Longer:
		return "agnostic"
	case schedule.BAT:
		return "BAT"
	}
	return "auto"
}
