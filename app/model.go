package app

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"

	"grebe/compute"
	"grebe/dispatch"
	"grebe/generate"
	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/kv"
	"grebe/plan"
	"grebe/prompt"
	"grebe/reuse"
	"grebe/serve"
)

// Model is one checkpoint of a model and everything that runs it. Retiring it closes all of that except its memory,
// which another checkpoint may use.
type Model struct {
	app        *App
	config     config.Model // with which it was opened; the path has its links resolved
	version    plan.Key     // hash of everything that its KV depends on
	keep       []string     // patterns of matrices that are not quantised
	served     serve.Model
	target     *generate.Target // nil: it does not generate
	checkpoint int64            // bytes
	memory     *Memory
	queue      *dispatch.Dispatcher
	like       *dispatch.Dispatcher                  // of a checkpoint of the same shape, or nil
	progress   func(model string, done, total int64) // may be nil
	closers    closers
}

// openModel loads a checkpoint.
func (a *App) openModel(ctx context.Context, cfg *config.Config, mc *config.Model,
	progress func(model string, done, total int64)) (*Model, error) {
	at, err := filepath.EvalSymlinks(mc.Path) // a link may later name another folder
	if errors.Is(err, fs.ErrNotExist) {
		at = mc.Path // opening it returns the error
	} else if err != nil {
		return nil, err
	}
	m := &Model{app: a, config: *mc, memory: newMemory(a), progress: progress}
	m.config.Path = at
	if e := a.earlyOf(cfg, mc); e != nil {
		m.version, m.keep, err = e.version, e.keep, e.err
	} else {
		m.version, m.keep, err = a.versionOf(ctx, cfg, &m.config)
	}
	if err != nil {
		return nil, err
	}
	if m.served, err = m.open(ctx, cfg, &m.config); err != nil {
		err = errors.Join(err, m.closers.close())
		return nil, errors.Join(err, m.memory.leave())
	}
	m.served.Version = versionName(m.version, &m.config)
	own := m.config // not m, which would keep a retired checkpoint's memory
	m.served.Reopen = func(ctx context.Context, progress func(done, total int64)) (*serve.Model, error) {
		return a.loader.open(ctx, func() (*config.Model, error) { return &own, nil }, progress)
	}
	m.served.Retire = m.retire
	a.loaded.add(m)
	return m, nil
}

// versionName is a short name for a checkpoint and the settings it is used with.
func versionName(version plan.Key, mc *config.Model) string {
	asked := *mc
	asked.Path = ""
	all := kv.KeyOf(version, nil, fmt.Sprintf("%+v", asked))
	return hex.EncodeToString(all[:6])
}

// openMemory shares the memory of another checkpoint of the same shape, or opens one.
func (m *Model) openMemory(cfg *config.Config, mc *config.Model, shape compute.Shape, at compute.Memory) error {
	if err := m.checkRows(mc.Name, &shape); err != nil {
		return err
	}
	others := m.app.loaded.of(mc.Name)
	for _, o := range others {
		if o.memory.store != nil && reflect.DeepEqual(o.memory.shape, shape) {
			if !o.memory.join() {
				continue // it is being freed
			}
			m.memory, m.like = o.memory, o.queue
			return nil
		}
	}
	m.memory = newMemory(m.app)
	m.memory.shape, m.memory.version = shape, m.version
	if len(others) > 0 { // the folder of the other one is in use until the next start
		if !sharesBudget(cfg, mc) { // otherwise both share what there is
			if err := m.checkRoom(cfg, mc, at); err != nil {
				return err
			}
		}
		without := *cfg
		without.Cache.Disk = config.Size{}
		own := *mc
		own.Disk = config.Size{}
		cfg, mc = &without, &own
	}
	return m.memory.openStore(cfg, mc, shape, at)
}

// checkRows refuses a checkpoint that needs other memory than the one that serves, if that memory also holds rows of a
// table. It would be freed while the table is in use. A nil shape means that no KV is kept.
func (m *Model) checkRows(model string, shape *compute.Shape) error {
	for _, o := range m.app.loaded.of(model) {
		if o.memory.shared != nil && o.memory.shared.divided && (shape == nil || !reflect.DeepEqual(o.memory.shape, *shape)) {
			return errors.New("the checkpoint's KV has another shape, and its item table shares memory with the current " +
				"checkpoint: restart the server to load it")
		}
	}
	return nil
}

// checkRoom refuses KV of another shape if the host has no room for it beside that of the checkpoint that serves. Pages
// are taken only as they are filled, so the shortage would show late. In a device's memory the pool takes only what is
// free.
func (m *Model) checkRoom(cfg *config.Config, mc *config.Model, at compute.Memory) error {
	have, need := freeHost(), hostBytes(cfg, mc)
	if at.Host() == at && m.app.loader != nil {
		have = m.app.loader.freeOn(m.app.device)
	}
	if have >= 0 && have < need {
		return fmt.Errorf("%w: its KV has another shape and takes %s of the host's memory beside that of the one that "+
			"serves, and %s are free",
			serve.ErrNoMemory, human.Bytes(need), human.Bytes(have))
	}
	return nil
}

// options returns the options of the Model's cache.
func (m *Model) options(d *dispatch.Dispatcher, shape compute.Shape) reuse.Options {
	return reuse.Options{Store: m.memory.store, Pool: m.memory.pages, Load: d, Shape: shape, Model: m.version,
		Shared: m.memory.entries, Spare: m.app.loaded.spare}
}

// retire frees a checkpoint that no longer serves, and its KV. KV that is not deleted when ctx ends is deleted when the
// disk is opened again, because it has another version.
func (m *Model) retire(ctx context.Context) error {
	if m.app.keeper != nil && m.served.Generate != nil {
		m.app.keeper.Remove(m.served.Generate)
	}
	left := m.app.loaded.remove(m)
	err := m.closers.close()
	if cache := m.served.Cache; cache != nil {
		end := func() error { return cache.Clear(ctx) }
		if slices.ContainsFunc(left, func(o *Model) bool { return o.memory == m.memory && o.version == m.version }) {
			end = cache.Leave
		}
		err = errors.Join(err, unlessHung(m.memory.disk, "delete the KV of a checkpoint from its disk", end))
	}
	if errors.Is(err, errHung) { // the disk still uses the memory
		return err
	}
	return errors.Join(err, m.memory.leave())
}

// openCache opens the cache that decides what to reuse, and starts its background work. do is nil if nothing is
// computed.
func (m *Model) openCache(b *prompt.Builder, opt reuse.Options, do reuse.Do) *reuse.Cache {
	opt.Record = m.app.record.Room("reuse")
	c := reuse.New(b, opt)
	if k := m.app.cluster; k != nil {
		release := k.Hold(m.config.Name, c)
		m.closers.add(func() error { release(); return nil })
	}
	var settled error
	m.closers.add(func() error { return settled }) // closed after both below have ended
	m.closers.run(func(ctx context.Context) { settled = c.Run(ctx) })
	if do != nil {
		m.closers.run(func(ctx context.Context) {
			c.Refresh(ctx, do, func(err error) { m.app.log.Warn("items were not computed ahead", "error", err) })
		})
	}
	return c
}
