package app

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/plan"
)

// early is a model whose weights are read while others are opened.
type early struct {
	done    chan struct{} // closed when the rest is set
	version plan.Key
	keep    []string    // as Model.keep
	weights model.Model // nil: none, or a Model has taken them
	err     error
}

// readEarly begins to read the weights of all models of texts, side by side. Models that share a checkpoint read it
// once. The App's closers close what no Model has taken.
func (a *App) readEarly(ctx context.Context, cfg *config.Config) {
	if !cfg.Computes() {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	a.early = map[string]*early{}
	for i := range cfg.Models {
		mc := cfg.Models[i]
		at, err := filepath.EvalSymlinks(mc.Path)
		if err != nil || hstu.Is(at) || sharesWith(cfg, &mc).Name != mc.Name {
			continue // opening it returns the error
		}
		mc.Path = at
		e := &early{done: make(chan struct{})}
		a.early[mc.Name] = e
		wg.Go(func() {
			defer close(e.done)
			e.version, e.keep, e.weights, e.err = a.readWeights(ctx, cfg, &mc)
		})
	}
	a.closers.add(func() error {
		stop()
		wg.Wait()
		var errs []error
		for _, e := range a.early {
			if e.weights != nil {
				errs = append(errs, e.weights.Close())
			}
		}
		a.early = nil
		return errors.Join(errs...)
	})
}

// readWeights returns the version of a checkpoint, the patterns of what is not quantised, and its weights.
func (a *App) readWeights(ctx context.Context, cfg *config.Config,
	mc *config.Model) (plan.Key, []string, model.Model, error) {
	end := a.phase("checksum of the checkpoint", "model", mc.Name)
	version, keep, err := a.versionOf(ctx, cfg, mc)
	if err != nil {
		return version, nil, nil, err
	}
	end()
	weights, err := a.openWeights(ctx, mc, keep, a.progress)
	return version, keep, weights, err
}

// openWeights reads the weights of a model of texts to the first device.
func (a *App) openWeights(ctx context.Context, mc *config.Model, keep []string,
	progress func(model string, done, total int64)) (model.Model, error) {
	defer a.phase("weights", "model", mc.Name)()
	opt := model.Options{DType: mc.DType, KV: mc.KVDType, Weights: mc.Weights, Keep: keep, Context: ctx}
	opt.Progress = a.telling(ctx, mc.Name, progress)
	opt.Warn = func(text string) { a.log.Warn(text, "model", mc.Name) }
	return model.Open(mc.Path, a.device, opt)
}

// earlyOf waits for what readEarly reads of a model, or of the one that it shares a checkpoint with. It returns nil if
// that is nothing.
func (a *App) earlyOf(cfg *config.Config, mc *config.Model) *early {
	e := a.early[sharesWith(cfg, mc).Name]
	if e != nil {
		<-e.done
	}
	return e
}

// quiet waits until no weights are read any more: they take memory and disturb measurements.
func (a *App) quiet() {
	for _, e := range a.early {
		<-e.done
	}
}

// briefPhase is how long a phase takes that is logged for debugging only.
const briefPhase = 100 * time.Millisecond

// phase returns a function that logs how long a phase of the start, or of a reload, took since phase was called.
func (a *App) phase(name string, attrs ...any) func() {
	start := time.Now()
	return func() {
		took, level := time.Since(start), slog.LevelInfo
		if took < briefPhase {
			level = slog.LevelDebug
		}
		all := append([]any{"phase", name, "seconds", human.Seconds(took)}, attrs...)
		a.log.Log(context.Background(), level, "phase of the start ended", all...)
	}
}
