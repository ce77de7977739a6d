package beam

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/generate"
	"grebe/kv"
	"grebe/model"
	"grebe/model/modeltest"
	_ "grebe/model/qwen" // the architecture that is measured
	"grebe/pool"
	"grebe/prompt"
	"grebe/residency"
	"grebe/reuse"
)

// models are the shapes there are. Their vocabularies are no larger than what is asked of them: prompts
// and codes.
var models = map[string]modeltest.Spec{
	"tiny": {Architecture: modeltest.Qwen3, Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 32, Inter: 128,
		Vocab: 4096},
	"small": {Architecture: modeltest.Qwen3, Hidden: 384, Layers: 4, Heads: 6, KVHeads: 3, HeadDim: 64, Inter: 1152,
		Vocab: 4096},
	"qwen3-0.6b": {Architecture: modeltest.Qwen3, Hidden: 1024, Layers: 28, Heads: 16, KVHeads: 8, HeadDim: 128,
		Inter: 3072, Vocab: 4096},
}

// system generates items with a model of random weights. Close it.
type system struct {
	name      string
	device    compute.Device
	model     model.Model
	shape     compute.Shape
	prompt    *prompt.Builder
	queue     *dispatch.Dispatcher
	cache     *reuse.Cache
	generator *generate.Generator
	engine    *observed
	closers   []func() error
}

// openSystem opens a model for prompts of a configuration, with memory bytes for cached users.
func openSystem(ctx context.Context, name, dir string, threads int, cfg prompt.Config,
	memory int64) (s *system, err error) {
	spec, ok := models[name]
	if !ok {
		return nil, fmt.Errorf("no model %q: want tiny, small or qwen3-0.6b", name)
	}
	spec.MaxPositions, spec.Tied, spec.DType = 32768, true, compute.BF16
	s = &system{name: name}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if dir, err = checkpoint(dir, name, spec); err != nil {
		return s, err
	}
	if s.device, err = cpu.New(cpu.Options{Threads: threads}); err != nil {
		return s, err
	}
	s.onClose(s.device.Close)
	if s.model, err = model.Open(dir, s.device, model.Options{}); err != nil {
		return s, err
	}
	s.onClose(s.model.Close)
	s.shape = s.model.Shape()
	if s.prompt, err = prompt.New(cfg, nil, s.model.Vocab()); err != nil {
		return s, err
	}
	return s, s.serve(ctx, memory)
}

// serve opens the engine and the cache.
func (s *system) serve(ctx context.Context, memory int64) error {
	token := s.shape.ChunkBytes(1, false)
	pages, err := pool.New(memory, min(max(token&-token, 256), 64<<10))
	if err != nil {
		return err
	}
	s.onClose(pages.Close)
	store := kv.New(s.shape, pages)
	s.onClose(func() error { store.Close(); return nil })
	e, err := engine.New(s.model, s.device, engine.Options{Cache: store, Now: time.Now})
	if err != nil {
		return err
	}
	s.onClose(e.Close)
	s.engine = &observed{Engine: e}
	times, err := dispatch.Profile(ctx, e, s.model.MaxPositions())
	if err != nil {
		return err
	}
	if s.queue, err = dispatch.New([]dispatch.Engine{s.engine},
		dispatch.Options{SLO: time.Minute, Model: times}); err != nil {
		return err
	}
	s.onClose(s.queue.Close)
	if err := store.SetHotness(residency.HotnessConfig{}); err != nil {
		return err
	}
	s.cache = reuse.New(s.prompt, reuse.Options{Store: store, Pool: pages, Load: s.queue, Shape: s.shape})
	s.generator = &generate.Generator{Prompt: s.prompt, Do: s.queue.Do, Cache: s.cache, Shape: s.shape}
	return nil
}

// checkpoint returns the folder of a checkpoint, which it writes unless it is there: complete, since it
// is moved into place.
func checkpoint(dir, name string, spec modeltest.Spec) (string, error) {
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			base = os.TempDir()
		}
		dir = filepath.Join(base, "grebe", "bench-beam-1-"+name)
	}
	if _, err := os.Stat(filepath.Join(dir, model.ConfigFile)); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "bench-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := modeltest.Write(tmp, spec); err != nil {
		return "", err
	}
	return dir, os.Rename(tmp, dir)
}

func (s *system) onClose(f func() error) { s.closers = append(s.closers, f) }

// close ends the system. A benchmark has no use for what may fail there.
func (s *system) close() {
	for _, f := range slices.Backward(s.closers) {
		_ = f()
	}
	s.closers = nil
}

func (s *system) describe() string {
	return fmt.Sprintf("%s (Qwen3-shaped, random weights, bf16: hidden %d, %d layers, %d/%d heads of %d)",
		s.name, s.shape.Hidden, s.shape.Layers, s.shape.Heads, s.shape.KVHeads, s.shape.HeadDim)
}

// observed is an engine whose batches are counted.
type observed struct {
	*engine.Engine
	mu    sync.Mutex
	total activity
}

// activity is what an engine did.
type activity struct {
	busy            time.Duration
	batches, rounds int // batches with rounds of beams, and rounds in them
}

func (e *observed) Run(jobs []*engine.Job, out []engine.Outcome) {
	rounds := 0
	for _, j := range jobs {
		if j.Beams != nil {
			rounds++
		}
	}
	start := time.Now()
	e.Engine.Run(jobs, out)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.total.busy += time.Since(start)
	if rounds > 0 {
		e.total.batches++
		e.total.rounds += rounds
	}
}

// take returns what was done since the last call.
func (e *observed) take() activity {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.total
	e.total = activity{}
	return a
}
