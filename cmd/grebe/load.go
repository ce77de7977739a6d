package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/catalog"
	"grebe/compute"
	"grebe/embed"
	"grebe/engine"
	"grebe/internal/config"
	"grebe/internal/record"
	"grebe/kv"
	"grebe/model"
	"grebe/model/hstu"
	_ "grebe/model/llama"
	_ "grebe/model/qwen"
	"grebe/model/tokenizer"
	"grebe/prompt"
	"grebe/server"
	"grebe/server/dispatch"
	"grebe/server/generate"
	"grebe/server/reuse"
)

// stack is everything behind the doors of a server. Close releases it in reverse order.
type stack struct {
	device     compute.Device   // the first of devices
	devices    []compute.Device // more than one: a GPU for each worker, until all are taken
	server     *server.Server
	catalog    *catalog.Catalog
	models     []server.Model    // as they were loaded first
	tables     *embed.Tables     // nil: there are none
	targets    []generate.Target // models that recommend
	keeper     *generate.Keeper  // of their snapshots; nil: there are none
	checkpoint int64             // bytes of all checkpoints
	door       door
	registry   *prometheus.Registry // of metrics
	lost       chan error           // has why the device was lost
	loaded     *loadedModels
	loader     *loader
	progress   func(model string, done, total int64) // is told how far loading is; nil: nobody is
	record     *record.Log                           // of decisions; nil: none are recorded
	page       int                                   // bytes of a page of pools; 0: pageFor chooses
	closers    []func() error
}

func (s *stack) onClose(f func() error) { s.closers = append(s.closers, f) }

// Close closes what was opened last first, and leaves what a disk that hangs still uses.
func (s *stack) Close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		err := s.closers[i]()
		if errs = append(errs, err); errors.Is(err, errHung) {
			break
		}
	}
	s.closers = nil
	return errors.Join(errs...)
}

// load opens the device, the models and the catalog that cfg names. The caller MUST Close the stack.
func load(ctx context.Context, cfg *config.Config, log *slog.Logger) (*stack, error) {
	return loadOn(ctx, cfg, log, openDevices)
}

// opener opens the devices that a configuration names, at least one.
type opener func(*config.Config, *slog.Logger) ([]compute.Device, error)

// loadOn is load on devices that open opens.
func loadOn(ctx context.Context, cfg *config.Config, log *slog.Logger, open opener) (*stack, error) {
	return loadTelling(ctx, cfg, log, open, nil)
}

// loadTelling is loadOn that tells how far it is.
func loadTelling(ctx context.Context, cfg *config.Config, log *slog.Logger, open opener, progress func(model string, done, total int64)) (*stack, error) {
	s := newStack(progress)
	return s, s.openAll(ctx, cfg, log, open)
}

func newStack(progress func(model string, done, total int64)) *stack {
	return &stack{
		registry: prometheus.NewRegistry(), lost: make(chan error, 1), progress: progress,
		loaded: &loadedModels{spare: reuse.NewSpare()},
	}
}

// openAll opens a new stack. If it fails, it closes what it opened.
func (s *stack) openAll(ctx context.Context, cfg *config.Config, log *slog.Logger, open opener) error {
	if err := s.open(ctx, cfg, log, open); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

func (s *stack) open(ctx context.Context, cfg *config.Config, log *slog.Logger, open opener) error {
	var err error
	if s.record, err = s.openRecord(cfg.Record, log); err != nil {
		return err
	}
	if s.devices, err = open(cfg, log); err != nil {
		return err
	}
	s.device = s.devices[0]
	for _, d := range s.devices {
		s.onClose(d.Close)
	}
	sc := server.Config{
		Version: versionText(), Logger: log,
		SLO:             time.Duration(cfg.SLOMillis) * time.Millisecond,
		MaxDeadline:     time.Duration(cfg.Limits.DeadlineMillis) * time.Millisecond,
		ShutdownTimeout: time.Duration(cfg.Limits.ShutdownMillis) * time.Millisecond,
		MaxBody:         cfg.Limits.Body.Bytes,
		MaxInFlight:     cfg.Limits.InFlight,
		DrainDelay:      time.Duration(cfg.Limits.DrainMillis) * time.Millisecond,
		Hosts:           hostsOf(cfg),
	}
	sc.Registry = s.registry
	sc.UserDeleted = func() error { return removeUnused(cfg) }
	sc.ShowUsers = cfg.Dashboard.UserIDs == "shown"
	if err := s.openDoor(cfg, &sc, log); err != nil {
		return err
	}
	if s.tables, err = s.openTables(cfg, log); err != nil {
		return err
	}
	sc.Tables = s.tables
	s.onClose(s.loaded.Close)
	for i := range cfg.Models {
		if err := ctx.Err(); err != nil {
			return err
		}
		u, err := s.openUnit(ctx, cfg, &cfg.Models[i], log)
		if err != nil {
			return fmt.Errorf("model %s: %w", cfg.Models[i].Name, err)
		}
		u.model.Retire = func(ctx context.Context) error { return u.retire(ctx, s) }
		sc.Models, s.targets = append(sc.Models, u.model), append(s.targets, u.targets...)
		s.checkpoint += u.checkpoint
	}
	if s.catalog, err = s.openCatalog(cfg, log); err != nil {
		return err
	}
	if err := removeLeftovers(cfg); err != nil {
		return fmt.Errorf("remove what a crash left half-written: %w", err)
	}
	sc.Catalog, s.models = s.catalog, sc.Models
	if err := s.keepSnapshots(cfg, log); err != nil {
		return err
	}
	sc.Versions = s.keeper
	s.loader = newLoader(s, cfg, log)
	sc.Loader, sc.Warm, sc.Trial = s.loader, cfg.Reload.Warm.Percent/100, time.Duration(cfg.Reload.TrialMillis)*time.Millisecond
	s.server, err = server.New(sc)
	s.loaded.front.Store(s.server)
	if err != nil {
		return err
	}
	s.onClose(func() error { // of servers that never served
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return s.server.Settle(ctx)
	})
	// Users whom an import deleted, or whose deletion a crash cut short. A failure is logged, and tried again at the next start.
	if ids := s.catalog.PendingDeletions(); len(ids) > 0 {
		_ = s.server.FinishDeletion(ids...)
	}
	if err := s.server.Check(ctx); err != nil {
		return err
	}
	return forgetDeleted(cfg.DataDir, s.server)
}

// openCatalog opens the catalog in the data folder and adds what the configuration's files name.
func (s *stack) openCatalog(cfg *config.Config, log *slog.Logger) (*catalog.Catalog, error) {
	items, err := catalog.Open(filepath.Join(cfg.DataDir, "catalog"), catalog.Options{Logger: log, TrackDeletions: true})
	if err != nil {
		return nil, err
	}
	s.onClose(items.Close)
	if err := loadFiles(cfg, items, log); err != nil {
		return nil, err
	}
	if n, users, _ := items.Counts(); n+users > 0 {
		log.Info("catalog loaded", "items", n, "users", users)
	}
	return items, nil
}

// loadFiles adds what changed in the configuration's files of items and users since they were last loaded.
func loadFiles(cfg *config.Config, c *catalog.Catalog, log *slog.Logger) error {
	files := &loadedFiles{path: filepath.Join(cfg.DataDir, "catalog.loaded.json"), log: log}
	err := files.once(cfg.Catalog.Items, func(id string) (has, deleted bool, err error) {
		_, has = c.Item(id)
		return has, false, nil
	}, c.LoadItemsIf)
	if err != nil {
		return fmt.Errorf("catalog.items: %w", err)
	}
	err = files.once(cfg.Catalog.Users, func(id string) (has, deleted bool, err error) {
		_, has = c.User(id)
		deleted, err = c.Buried(id)
		return has, deleted, err
	}, c.LoadUsersIf)
	if err != nil {
		return fmt.Errorf("catalog.users: %w", err)
	}
	return nil
}

func (s *unit) openModel(ctx context.Context, cfg *config.Config, mc *config.Model, log *slog.Logger) (server.Model, error) {
	if hstu.Is(mc.Path) {
		return s.openEvents(ctx, cfg, mc, log)
	}
	var none server.Model
	start := time.Now()
	described, err := model.ReadConfig(mc.Path)
	if err != nil {
		return none, err
	}
	tok, err := openTokenizer(mc.Path)
	if err != nil {
		return none, err
	}
	builder, err := prompt.New(promptConfig(mc), tok, described.Vocab)
	if err != nil {
		return none, err
	}
	scoring, err := scoringOf(&mc.Scoring, tok)
	if err != nil {
		return none, err
	}
	m, err := model.Open(mc.Path, s.device, model.Options{DType: mc.DType, KV: mc.KVDType, Progress: s.telling(ctx, mc.Name, log), Context: ctx})
	if err != nil {
		return none, err
	}
	s.onClose(m.Close)
	s.checkpoint += m.CheckpointBytes()
	replicas, err := s.replicas(ctx, mc, m, builder.Depth() > 0, log)
	if err != nil {
		return none, err
	}
	if err := s.openMemory(cfg, mc, m.Shape(), cacheMemory(replicas), log); err != nil {
		return none, err
	}
	d, err := s.openDispatcher(ctx, cfg, replicas)
	if err != nil {
		return none, err
	}
	policy, orders, err := prefixOf(cfg, mc)
	if err != nil {
		return none, err
	}
	var cache *reuse.Cache
	if s.memory.store != nil {
		opt := s.options(d, m.Shape())
		opt.Policy, opt.Orders = policy, orders
		cache = s.openCache(builder, opt, d.Do, log)
	}
	blending, err := s.openBlend(cfg, mc, m, cache, log)
	if err != nil {
		return none, err
	}
	generator := &generate.Generator{Prompt: builder, Do: d.Do, Cache: cache, Shape: m.Shape(), Widths: mc.Codes.BeamWidths}
	if builder.Depth() == 0 {
		generator = nil
	} else {
		s.targets = append(s.targets, generate.Target{Name: mc.Name, Generator: generator, Model: m})
	}
	log.Info("model loaded", "model", mc.Name, "architecture", described.Architecture, "dtype", m.DType(), "kv", m.Shape().KV,
		"checkpoint", inBytes(m.CheckpointBytes()), "weights", inBytes(m.Bytes()), "seconds", seconds(time.Since(start)))
	return server.Model{
		Name: mc.Name, Runner: d, Admit: d.Admit, Prompt: builder, Cache: cache, Disk: s.memory.disk, Generate: generator, Scoring: scoring,
		Orders: orders, Blend: blending, Vocab: m.Vocab(), Positions: m.MaxPositions(), Architecture: described.Architecture, DType: m.DType().String(),
	}, nil
}

// openDispatcher opens a model's engines, measures them and puts a queue before them.
func (s *unit) openDispatcher(ctx context.Context, cfg *config.Config, replicas []replica) (*dispatch.Dispatcher, error) {
	m := replicas[0].model
	engines, err := s.openEngines(cfg, replicas, s.memory.store)
	if err != nil {
		return nil, err
	}
	times, err := dispatch.Profile(ctx, engines[0], m.MaxPositions())
	if err != nil {
		return nil, err
	}
	if s.like != nil { // under load its times are better known than those of the first batches
		times, s.like = s.like.Model(), nil
	}
	d, err := dispatch.New(engines, dispatch.Options{
		Queue: cfg.Engine.Queue, SLO: time.Duration(cfg.SLOMillis) * time.Millisecond, Model: times, Lost: s.noteLost,
		Panicked: s.notePanic, Record: s.record.Room("dispatch"),
	})
	if err != nil {
		return nil, err
	}
	s.onClose(d.Close)
	s.queue = d
	return d, nil
}

// openEngines opens one engine per worker. Workers take turns with the replicas, and those of one share its
// weights and GPU, or divide the cores.
func (s *stack) openEngines(cfg *config.Config, replicas []replica, store *kv.Store) ([]dispatch.Engine, error) {
	var out []dispatch.Engine
	for i := range cfg.Workers {
		r := &replicas[i%len(replicas)]
		dev, err := s.workerDevice(cfg, r, i)
		if err != nil {
			return nil, err
		}
		e, err := engine.New(r.model, dev, engine.Options{MaxTokens: cfg.Engine.MaxTokens, Cache: store, Now: time.Now})
		if err != nil {
			return nil, err
		}
		s.onClose(e.Close)
		out = append(out, e)
	}
	return out, nil
}

// openTokenizer reads the checkpoint's tokenizer.json; nil when it has none.
func openTokenizer(dir string) (prompt.Tokenizer, error) {
	name := filepath.Join(dir, "tokenizer.json")
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	t, err := tokenizer.Load(name)
	if err != nil {
		return nil, err
	}
	return t, nil
}

func promptConfig(mc *config.Model) prompt.Config {
	text := func(t config.Text) prompt.Text { return prompt.Text(t) }
	p := &mc.Prompt
	return prompt.Config{
		Preamble: text(p.Preamble), LeadIn: text(p.LeadIn), Instruction: text(p.Instruction),
		GenerateInstruction: text(p.GenerateInstruction),
		User:                p.User, Query: p.Query, Item: p.Item, History: p.History, HistoryItem: p.HistoryItem, Separator: p.Separator,
		Codes: prompt.Codes{FirstToken: mc.Codes.FirstToken, Size: mc.Codes.Size, Pattern: mc.Codes.Pattern},
	}
}

func scoringOf(c *config.Scoring, tok prompt.Tokenizer) (server.Scoring, error) {
	if c.Kind != "pointwise" {
		return server.Scoring{Kind: server.Identifier}, nil
	}
	yes, err := answer("yes", c.Yes, tok)
	if err != nil {
		return server.Scoring{}, err
	}
	no, err := answer("no", c.No, tok)
	return server.Scoring{Kind: server.Pointwise, Yes: yes, No: no}, err
}

// answer finds the one token that an answer of pointwise scoring is.
func answer(key string, t config.Token, tok prompt.Tokenizer) (int32, error) {
	if t.ByID {
		return t.ID, nil
	}
	if tok == nil {
		return 0, fmt.Errorf("scoring.%s: the text %s needs the checkpoint's tokenizer.json, which is missing: give the token's number", key, t)
	}
	id, ok := tok.TokenID(t.Text)
	if !ok {
		return 0, fmt.Errorf("scoring.%s: %s is not one token of the vocabulary", key, t)
	}
	return id, nil
}

// telling tells, and every few seconds logs, how far a large checkpoint is.
func (s *stack) telling(ctx context.Context, name string, log *slog.Logger) func(done, total int64) {
	last := time.Now()
	return func(done, total int64) {
		if s.progress != nil {
			s.progress(name, done, total)
		}
		if time.Since(last) < 3*time.Second || ctx.Err() != nil {
			return
		}
		last = time.Now()
		log.Info("loading", "model", name, "percent", 100*done/max(total, 1))
	}
}
