package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"grebe/compute"
	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/serve"
)

// loader opens further checkpoints of an App's models.
type loader struct {
	app   *App
	cfg   *config.Config
	again func() (*config.Config, error) // reads the configuration again; nil: it does not change
	free  func(compute.Device) int64     // memory for another checkpoint; nil: freeMemory
	// holds a token while a checkpoint is opened, because the free memory is known only afterwards
	turn chan struct{}
}

func newLoader(a *App, cfg *config.Config) *loader {
	return &loader{app: a, cfg: cfg, turn: make(chan struct{}, 1)}
}

// Open implements serve.Loader. It reads the model's part of the configuration again.
func (l *loader) Open(ctx context.Context, name string, progress func(done, total int64)) (*serve.Model, error) {
	return l.open(ctx, func() (*config.Model, error) { return l.model(name) }, progress)
}

// open opens one checkpoint at a time, because each first checks for free memory. configured returns its configuration.
func (l *loader) open(ctx context.Context, configured func() (*config.Model, error), progress func(done, total int64),
) (*serve.Model, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	mc, err := configured()
	if err != nil {
		return nil, err
	}
	if err := l.worthIt(ctx, mc); err != nil {
		return nil, err
	}
	m, err := l.app.openModel(ctx, l.cfg, mc, func(_ string, done, total int64) { progress(done, total) })
	if err != nil {
		return nil, err
	}
	if m.target != nil && l.app.keeper == nil {
		err = errors.New("codes were added to the model's configuration: they need a restart")
	} else if m.target != nil {
		err = l.app.keeper.Add(*m.target)
	}
	if err != nil {
		return nil, errors.Join(err, m.retire(ctx))
	}
	served := m.served
	return &served, nil
}

// model returns a model's current configuration.
func (l *loader) model(name string) (*config.Model, error) {
	cfg := l.cfg
	if l.again != nil {
		var err error
		if cfg, err = l.again(); err != nil {
			return nil, fmt.Errorf("read the configuration again: %w", err)
		}
	}
	for i := range cfg.Models {
		if cfg.Models[i].Name == name {
			mc := cfg.Models[i]
			return &mc, nil
		}
	}
	return nil, fmt.Errorf("the configuration has no model %q any more", name)
}

// inForce returns a configuration that reopens the App as it serves now: each model with the checkpoint, and the
// settings, that it was reloaded or rolled back to.
func (a *App) inForce(cfg *config.Config) *config.Config {
	now := *cfg
	now.Models = slices.Clone(cfg.Models)
	for i := range now.Models {
		name := now.Models[i].Name
		for _, u := range a.loaded.of(name) {
			if u.served.Version == a.service.Serving(name) {
				now.Models[i] = u.config
			}
		}
	}
	return &now
}

// worthIt refuses a checkpoint that is already served, and one that does not fit into memory.
func (l *loader) worthIt(ctx context.Context, mc *config.Model) error {
	at, err := filepath.EvalSymlinks(mc.Path)
	if err != nil {
		return err
	}
	own := *mc
	own.Path = at
	version, _, err := l.app.versionOf(ctx, l.cfg, &own)
	if err != nil {
		return err
	}
	for _, u := range l.app.loaded.of(mc.Name) {
		if u.served.Version == versionName(version, &own) {
			return fmt.Errorf("%w (%s)", serve.ErrUnchanged, u.served.Version)
		}
	}
	if l.app.loaded.hasCheckpoint(own.Sharing(), version) {
		return nil // it takes no memory
	}
	files, err := filepath.Glob(filepath.Join(at, "*.safetensors"))
	if err != nil {
		return err
	}
	need := int64(0)
	for _, f := range files {
		if st, err := os.Stat(f); err == nil {
			need += st.Size()
		}
	}
	need += need / 8 // for activations and packing
	if have := l.freeOn(l.app.device); have >= 0 && have < need {
		return fmt.Errorf("%w: it takes %s, and %s are free on %s", serve.ErrNoMemory, human.Bytes(need), human.Bytes(have),
			l.app.device.Name())
	}
	return nil
}

func (l *loader) freeOn(d compute.Device) int64 {
	if l.free != nil {
		return l.free(d)
	}
	return freeMemory(d)
}
