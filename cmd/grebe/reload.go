package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"grebe/compute"
	"grebe/internal/config"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/plan"
	"grebe/pool"
	"grebe/server"
	"grebe/server/dispatch"
	"grebe/server/reuse"
)

// unit is one checkpoint of a model with all that runs it. It is a part of the stack with an end of its own: Close frees it,
// but for the memory, which another checkpoint may use too.
type unit struct {
	*stack
	model   server.Model
	version plan.Key     // of all that KV depends on
	config  config.Model // that it was opened with, its folder resolved
	memory  *memory
	queue   *dispatch.Dispatcher
	like    *dispatch.Dispatcher // of a checkpoint of the same shape; nil: there is none
}

// memory is what a model keeps KV in. All checkpoints of a shape share it, each under keys of its own.
type memory struct {
	*stack
	shape   compute.Shape
	version plan.Key // of the checkpoint that it was made for
	store   *kv.Store
	pages   *pool.Pool
	disk    *disk.Store
	entries *reuse.Shared
	shared  *shared // with rows of a table; nil: it is KV's alone
}

// loadedModels are the checkpoints that are loaded.
type loadedModels struct {
	front atomic.Pointer[server.Server] // that serves them; nil: none does yet
	spare *reuse.Spare                  // when their caches compute ahead

	mu    sync.Mutex
	units map[string][]*unit // by model, the oldest first
	slo   time.Duration      // that a signal brought; 0: the configuration's

	closeBy atomic.Int64 // nanoseconds since 1970 by which all shall be closed; 0: whenever
}

// closing returns a context for what may be left undone when all is closed.
func (l *loadedModels) closing() (context.Context, context.CancelFunc) {
	if by := l.closeBy.Load(); by != 0 {
		return context.WithDeadline(context.Background(), time.Unix(0, by))
	}
	return context.WithCancel(context.Background())
}

func (l *loadedModels) of(model string) []*unit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.units[model])
}

func (l *loadedModels) add(u *unit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.units == nil {
		l.units = map[string][]*unit{}
	}
	l.units[u.model.Name] = append(l.units[u.model.Name], u)
	if l.slo > 0 {
		u.queue.SetSLO(l.slo)
	}
}

// setSLO changes the latency that batches are made for, also of checkpoints to come.
func (l *loadedModels) setSLO(slo time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slo = slo
	for _, units := range l.units {
		for _, u := range units {
			u.queue.SetSLO(slo)
		}
	}
}

// remove forgets a unit and returns those that are left of its model.
func (l *loadedModels) remove(u *unit) []*unit {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := slices.DeleteFunc(l.units[u.model.Name], func(o *unit) bool { return o == u })
	l.units[u.model.Name] = left
	return slices.Clone(left)
}

// Close frees all of them, then their memory, which keeps on disk what is there.
func (l *loadedModels) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	var memories []*memory
	for _, units := range l.units {
		for _, u := range slices.Backward(units) {
			errs = append(errs, u.Close())
			if !slices.Contains(memories, u.memory) {
				memories = append(memories, u.memory)
			}
		}
	}
	for _, m := range memories {
		err := m.Close()
		if errs = append(errs, err); errors.Is(err, errHung) {
			break // all are on one disk
		}
	}
	l.units = nil
	return errors.Join(errs...)
}

// branch is a part of the stack with closers of its own.
func (s *stack) branch() *stack {
	b := *s
	b.closers, b.models, b.targets, b.checkpoint = nil, nil, nil, 0
	return &b
}

// openUnit loads a checkpoint.
func (s *stack) openUnit(ctx context.Context, cfg *config.Config, mc *config.Model, log *slog.Logger) (*unit, error) {
	u := &unit{stack: s.branch(), memory: &memory{stack: s.branch()}}
	at, err := filepath.EvalSymlinks(mc.Path) // what a link names may change
	if errors.Is(err, fs.ErrNotExist) {
		at = mc.Path // opening it says so
	} else if err != nil {
		return nil, err
	}
	own := *mc
	own.Path = at
	if u.version, err = checkpointVersion(ctx, cfg, &own); err != nil {
		return nil, err
	}
	u.config = own
	if u.model, err = u.openModel(ctx, cfg, &own, log); err != nil {
		err = errors.Join(err, u.Close())
		return nil, errors.Join(err, u.memory.leave(s.loaded.of(mc.Name)))
	}
	u.model.Origin, u.model.Version = at, versionName(u.version, &own)
	s.loaded.add(u)
	return u, nil
}

// versionName is short for a checkpoint and how it is asked.
func versionName(version plan.Key, mc *config.Model) string {
	asked := *mc
	asked.Path = ""
	all := kv.KeyOf(version, nil, fmt.Sprintf("%+v", asked))
	return hex.EncodeToString(all[:6])
}

// openMemory takes the memory of another checkpoint of the same shape, or makes one.
func (u *unit) openMemory(cfg *config.Config, mc *config.Model, shape compute.Shape, at compute.Memory, log *slog.Logger) error {
	if err := u.checkRows(mc.Name, &shape); err != nil {
		return err
	}
	others := u.loaded.of(mc.Name)
	for _, o := range others {
		if o.memory.store != nil && reflect.DeepEqual(o.memory.shape, shape) {
			u.memory, u.like = o.memory, o.queue
			return u.memory.keep(u.version)
		}
	}
	u.memory = &memory{stack: u.branch(), shape: shape, version: u.version}
	if len(others) > 0 { // its folder is in use until the next start
		if err := u.checkRoom(cfg, mc, at); err != nil {
			return err
		}
		without := *cfg
		without.Cache.Disk = config.Size{}
		own := *mc
		own.Disk = config.Size{}
		cfg, mc = &without, &own
	}
	return u.memory.openStore(cfg, mc, shape, at, log)
}

// checkRows refuses to go on in other memory than that of the checkpoint that serves where this has rows of a table too: it
// would be freed while the table is in use. Without a shape nothing is kept.
func (u *unit) checkRows(model string, shape *compute.Shape) error {
	for _, o := range u.loaded.of(model) {
		if o.memory.shared != nil && o.memory.shared.divided && (shape == nil || !reflect.DeepEqual(o.memory.shape, *shape)) {
			return errors.New("the checkpoint's KV has another shape, and rows of its item table lie in the memory of the one that serves: it needs a restart")
		}
	}
	return nil
}

// checkRoom refuses KV of another shape than that of the checkpoint that serves where the host has no room for both: pages are taken
// as they are filled, so that it would not show before. Of a device's memory a pool takes what is left.
func (u *unit) checkRoom(cfg *config.Config, mc *config.Model, at compute.Memory) error {
	have, need := freeHost(), hostBytes(cfg, mc)
	if at.Host() == at && u.loader != nil {
		have = u.loader.freeOn(u.device)
	}
	if have >= 0 && have < need {
		return fmt.Errorf("%w: its KV has another shape and takes %s of the host's memory beside that of the one that serves, and %s are free",
			server.ErrNoMemory, inBytes(need), inBytes(have))
	}
	return nil
}

// leave frees the memory unless one of these uses it, whose entries it is then for.
func (m *memory) leave(left []*unit) error {
	for _, o := range slices.Backward(left) {
		if o.memory == m {
			return m.keep(o.version)
		}
	}
	return m.Close()
}

// keep has what is written to disk from now on be that of a checkpoint.
func (m *memory) keep(version plan.Key) error {
	if m.disk == nil {
		return nil
	}
	return unlessHung(m.disk, "name the checkpoint to the disk that its KV is kept on", func() error { m.disk.SetVersion(version); return nil })
}

// options are what the unit's cache works with.
func (u *unit) options(d *dispatch.Dispatcher, shape compute.Shape) reuse.Options {
	return reuse.Options{Store: u.memory.store, Pool: u.memory.pages, Load: d, Shape: shape, Model: u.version, Shared: u.memory.entries, Spare: u.loaded.spare}
}

// retire frees a checkpoint that serves no more, and all that was kept of it. What is not deleted when ctx ends is deleted
// when the disk is opened again: it has another version.
func (u *unit) retire(ctx context.Context, s *stack) error {
	if s.keeper != nil && u.model.Generate != nil {
		s.keeper.Remove(u.model.Generate)
	}
	left := u.loaded.remove(u)
	err := u.Close()
	if cache := u.model.Cache; cache != nil {
		end := func() error { return cache.Clear(ctx) }
		if slices.ContainsFunc(left, func(o *unit) bool { return o.version == u.version }) {
			end = cache.Leave
		}
		err = errors.Join(err, unlessHung(u.memory.disk, "delete the KV of a checkpoint from its disk", end))
	}
	if errors.Is(err, errHung) { // which still uses the memory
		return err
	}
	return errors.Join(err, u.memory.leave(left))
}

// loader opens further checkpoints of a stack's models.
type loader struct {
	stack *stack
	cfg   *config.Config
	log   *slog.Logger
	again func() (*config.Config, error) // reads the configuration again; nil: it stays
	free  func(compute.Device) int64     // memory for another checkpoint; nil: freeMemory
	turn  chan struct{}                  // holds one while a checkpoint is opened: what is free is known again when it is
}

func newLoader(s *stack, cfg *config.Config, log *slog.Logger) *loader {
	return &loader{stack: s, cfg: cfg, log: log, turn: make(chan struct{}, 1)}
}

// Open implements server.Loader. The model's part of the configuration is read again. Checkpoints are opened one after the
// other, since each looks first whether there is memory for it.
func (l *loader) Open(ctx context.Context, name, folder string, progress func(done, total int64)) (*server.Model, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	mc, err := l.model(name)
	if err != nil {
		return nil, err
	}
	if folder != "" {
		mc.Path = folder
	}
	if err := l.worthIt(ctx, mc); err != nil {
		return nil, err
	}
	s := l.stack.branch()
	s.progress = func(_ string, done, total int64) { progress(done, total) }
	u, err := s.openUnit(ctx, l.cfg, mc, l.log)
	if err != nil {
		return nil, err
	}
	if len(u.targets) > 0 && s.keeper == nil {
		err = errors.New("codes were added to the model's configuration: they need a restart")
	} else if len(u.targets) > 0 {
		err = s.keeper.Add(u.targets[0])
	}
	if err != nil {
		return nil, errors.Join(err, u.retire(ctx, l.stack))
	}
	u.model.Retire = func(ctx context.Context) error { return u.retire(ctx, l.stack) }
	m := u.model
	return &m, nil
}

// model returns what the configuration says of a model now.
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

// inForce is the configuration with which a stack is opened again as it serves now: each model with the checkpoint that it
// was reloaded to, or rolled back to, and the way in which that is asked.
func (s *stack) inForce(cfg *config.Config) *config.Config {
	now := *cfg
	now.Models = slices.Clone(cfg.Models)
	for i := range now.Models {
		name := now.Models[i].Name
		for _, u := range s.loaded.of(name) {
			if u.model.Version == s.server.Serving(name) {
				now.Models[i] = u.config
			}
		}
	}
	return &now
}

// worthIt refuses a checkpoint that serves already, and one that there is no memory for.
func (l *loader) worthIt(ctx context.Context, mc *config.Model) error {
	at, err := filepath.EvalSymlinks(mc.Path)
	if err != nil {
		return err
	}
	own := *mc
	own.Path = at
	version, err := checkpointVersion(ctx, l.cfg, &own)
	if err != nil {
		return err
	}
	for _, u := range l.stack.loaded.of(mc.Name) {
		if u.model.Version == versionName(version, &own) {
			return fmt.Errorf("%w (%s)", server.ErrUnchanged, u.model.Version)
		}
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
	need += need / 8 // activations, and what packing adds
	if have := l.freeOn(l.stack.device); have >= 0 && have < need {
		return fmt.Errorf("%w: it takes %s, and %s are free on %s", server.ErrNoMemory, inBytes(need), inBytes(have), l.stack.device.Name())
	}
	return nil
}

func (l *loader) freeOn(d compute.Device) int64 {
	if l.free != nil {
		return l.free(d)
	}
	return freeMemory(d)
}

// freeMemory is what a device has left, or the host where it computes; negative when the system does not tell.
func freeMemory(d compute.Device) int64 {
	if m := d.Memory(); m.Host() != m {
		free, _ := m.Sizes()
		return free
	}
	return freeHost()
}

// freeHost is what the host has left; negative when the system does not tell.
func freeHost() int64 {
	free, known := number("/proc/meminfo", "MemAvailable:")
	if known {
		free <<= 10 // it is in KiB
	} else {
		free = -1
	}
	// In a container the system's free memory is not all ours. What files take there is given back when needed.
	limit, bounded := number("/sys/fs/cgroup/memory.max", "")
	used, _ := number("/sys/fs/cgroup/memory.current", "")
	files, _ := number("/sys/fs/cgroup/memory.stat", "file ")
	if left := max(0, limit-used+files); bounded && (free < 0 || left < free) {
		free = left
	}
	return free
}

// number reads the number behind a word that begins a line of a file.
func number(file, word string) (int64, bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, word); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
