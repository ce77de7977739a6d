// Package app assembles a server. It opens the devices, models, memory and catalog that a configuration names and
// serves them. While it serves it can open other checkpoints. If a device is lost, it opens everything again.
//
// Ownership: an App has Models. Models on the same folder share a checkpoint (weights, engines and queue), and those of
// one shape share a Memory. Each closes what it opened, in reverse order: a Model when it is retired, a checkpoint and
// a Memory when their last Model is gone, the App at the end.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/app/divide"
	"grebe/catalog"
	"grebe/cluster"
	"grebe/compute"
	"grebe/dispatch"
	"grebe/embed"
	"grebe/generate"
	"grebe/internal/config"
	"grebe/internal/datadir"
	"grebe/internal/record"
	"grebe/model/hstu"
	"grebe/serve"
	"grebe/server"
)

// closers are the close functions of what an owner opened, in the order of opening.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

// run runs f in the background until the owner closes it. f MUST return when its context ends.
func (c *closers) run(f func(context.Context)) {
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f(ctx) })
	c.add(func() error {
		stop()
		wg.Wait()
		return nil
	})
}

// close closes in reverse order of opening. It does not close what a hung disk still uses.
func (c *closers) close() error {
	var errs []error
	for i := len(*c) - 1; i >= 0; i-- {
		err := (*c)[i]()
		if errs = append(errs, err); errors.Is(err, errHung) {
			break
		}
	}
	*c = nil
	return errors.Join(errs...)
}

// App is everything that serves requests behind the listeners.
type App struct {
	log      *slog.Logger
	version  string                                // of the program
	progress func(model string, done, total int64) // reports the progress of loading; may be nil
	page     int                                   // bytes of a page of pools; 0: pageFor chooses

	device      compute.Device                     // the first of devices
	devices     []compute.Device                   // more than one: one GPU per worker, as far as there are GPUs
	turns       map[compute.Device]*dispatch.Turns // of GPUs
	service     *serve.Service                     // answers requests
	server      *server.Server                     // takes them
	catalog     *catalog.Catalog
	users       *catalog.Users       // nil: they are in the catalog
	first       []serve.Model        // as first loaded; nil once they serve, because they may be retired
	tables      *embed.Tables        // nil: the configuration has none
	divided     *divide.Metrics      // memory that KV and rows share, and caches that are refilled
	rows        *rowCaches           // in devices' memory
	keeper      *generate.Keeper     // keeps up to date what models can generate; nil: no model generates
	checkpoint  int64                // bytes of all checkpoints
	freeAtStart int64                // bytes of the first device's own memory, ahead of weights; 0: it has none
	door        door                 // keys and certificates
	registry    *prometheus.Registry // metrics
	lost        chan error           // receives the reason when the device is lost
	loaded      *models
	early       map[string]*early // by model, while an App is loaded; see readEarly
	loader      *loader
	record      *record.Log      // of decisions; nil: none are recorded
	cluster     *cluster.Cluster // nil: the process is alone
	inSync      func() []string  // nodes with all of the cluster's catalog; nil: the process is alone
	class       string           // of the KV that it holds, if it computes none itself; "": the device's
	closers     closers
}

// ErrInUse means that another process uses the data_dir.
var ErrInUse = errors.New("in use by another process")

func inUse(cfg *config.Config) error { return fmt.Errorf("data_dir %s is %w", cfg.DataDir, ErrInUse) }

// Options are an App's inputs besides its configuration.
type Options struct {
	Log     *slog.Logger
	Version string                                // of the program, for answers and traces
	Open    Opener                                // nil: OpenDevices
	Tell    func(model string, done, total int64) // reports the progress of loading; may be nil
}

// Opener opens the devices that a configuration names, at least one.
type Opener func(*config.Config, *slog.Logger) ([]compute.Device, error)

// Load opens the devices, models and catalog that cfg names. The caller MUST Close the App. On an error Load closes
// what it opened.
func Load(ctx context.Context, cfg *config.Config, opt Options) (*App, error) {
	a := newApp(opt)
	return a, a.openAll(ctx, cfg, opt.Open)
}

func newApp(opt Options) *App {
	return &App{
		log: opt.Log, version: opt.Version, progress: opt.Tell,
		registry: prometheus.NewRegistry(), lost: make(chan error, 1), loaded: newModels(), rows: newRowCaches(),
		divided: &divide.Metrics{},
	}
}

// Close closes everything in reverse order of opening. It does not close what a hung disk still uses.
func (a *App) Close() error { return a.closers.close() }

// Service returns what answers requests to the App's models.
func (a *App) Service() *serve.Service { return a.service }

// Catalog returns the App's catalog.
func (a *App) Catalog() *catalog.Catalog { return a.catalog }

// Device returns the device that computes; the first if there are several.
func (a *App) Device() compute.Device { return a.device }

// Models returns the models of an App that does not serve yet, in the configuration's order.
func (a *App) Models() []serve.Model { return a.first }

func (a *App) openAll(ctx context.Context, cfg *config.Config, open Opener) error {
	if open == nil {
		open = OpenDevices
	}
	if err := a.open(ctx, cfg, open); err != nil {
		return errors.Join(err, a.Close())
	}
	return nil
}

func (a *App) open(ctx context.Context, cfg *config.Config, open Opener) error {
	err := datadir.Check(cfg.DataDir)
	if err != nil {
		return err
	}
	if err := catalog.CheckFree(datadir.Catalog(cfg.DataDir)); errors.Is(err, catalog.ErrLocked) {
		return inUse(cfg) // before weights are loaded
	} else if err != nil {
		return err
	}
	if a.record, err = a.openRecord(cfg.Record); err != nil {
		return err
	}
	end := a.phase("device")
	if a.devices, err = open(cfg, a.log); err != nil {
		return err
	}
	end()
	describeGPUs(a.devices, a.log)
	a.device = a.devices[0]
	a.openTurns(cfg.Workers)
	if err := a.countDevices(); err != nil {
		return err
	}
	if m := a.device.Memory(); m.Host() != m {
		a.freeAtStart, _ = m.Sizes()
	}
	for _, d := range a.devices {
		a.closers.add(d.Close)
	}
	front, sc := serverConfig(cfg), serviceConfig(cfg)
	front.Version, sc.Logger, sc.Registry = a.version, a.log, a.registry
	if err := a.openDoor(cfg, &front); err != nil {
		return err
	}
	if sc.Tracer, err = a.openTracer(cfg); err != nil {
		return err
	}
	a.warnOfOpenDoors(cfg)
	if a.tables, err = a.openTables(cfg); err != nil {
		return err
	}
	sc.Tables = a.tables
	if err := a.joinCluster(ctx, cfg, &sc); err != nil {
		return err
	}
	a.closers.add(a.loaded.Close)
	a.readEarly(ctx, cfg)
	var targets []generate.Target // models that recommend
	for i := range cfg.Models {
		if err := ctx.Err(); err != nil {
			return err
		}
		if mc := &cfg.Models[i]; mc.CannotRank() && !hstu.Is(mc.Path) {
			a.log.Warn("requests that rank are refused: the prompt has no instruction", "model", mc.Name, "key",
				fmt.Sprintf("models[%d].prompt.instruction", i))
		}
		m, err := a.openModel(ctx, cfg, &cfg.Models[i], a.progress)
		if err != nil {
			return fmt.Errorf("model %s: %w", cfg.Models[i].Name, err)
		}
		sc.Models = append(sc.Models, m.served)
		a.checkpoint += m.checkpoint
		if m.target != nil {
			targets = append(targets, *m.target)
		}
	}
	a.early = nil // all are taken
	end = a.phase("catalog")
	if a.catalog, err = a.openCatalog(cfg); err != nil {
		return err
	}
	end()
	if err := removeLeftovers(cfg); err != nil {
		return fmt.Errorf("remove files that a crash left incomplete: %w", err)
	}
	sc.Catalog, a.first = a.catalog, sc.Models
	a.openUsers(cfg, &sc)
	end = a.phase("items that can be generated")
	if err := a.keepSnapshots(cfg, targets); err != nil {
		return err
	}
	end()
	sc.Versions = a.keeper
	a.loader = newLoader(a, cfg)
	sc.Loader = a.loader
	if a.cluster != nil {
		a.closers.add(a.cluster.Close) // before the models
	}
	return a.openServer(ctx, cfg, sc, front)
}

func millis(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// serviceConfig returns the service's part of a configuration.
func serviceConfig(cfg *config.Config) serve.Config {
	return serve.Config{
		SLO:         millis(cfg.SLOMillis),
		MaxDeadline: millis(cfg.Limits.DeadlineMillis),
		UserDeleted: func() error { return removeUnused(cfg) },
		Warm:        cfg.Reload.Warm.Percent / 100,
		Trial:       millis(cfg.Reload.TrialMillis),
		AheadOff:    cfg.Cache.Ahead == "off",
		Rests:       !cfg.Computes(),
	}
}

// serverConfig returns the server's own part of a configuration.
func serverConfig(cfg *config.Config) server.Config {
	return server.Config{
		ShutdownTimeout: millis(cfg.Limits.ShutdownMillis),
		MaxBody:         cfg.Limits.Body.Bytes,
		MaxInFlight:     cfg.Limits.InFlight,
		DrainDelay:      millis(cfg.Limits.DrainMillis),
		Hosts:           hostsOf(cfg),
		ShowUsers:       cfg.Dashboard.UserIDs == "shown",
		Story:           cfg.Dashboard.Story,
	}
}

// openServer opens the service and the server before it, and finishes deletions that an earlier process began.
func (a *App) openServer(ctx context.Context, cfg *config.Config, sc serve.Config, front server.Config) error {
	var err error
	if a.service, err = serve.New(sc); err != nil {
		return err
	}
	a.loaded.service.Store(a.service)
	if a.cluster != nil {
		front.Fleet = a.cluster
	}
	front.Backup = a.backup(cfg)
	if cfg.Computes() {
		front.BatchDir = datadir.Batches(cfg.DataDir)
	}
	if a.server, err = server.New(a.service, front); err != nil {
		return err
	}
	a.loaded.front.Store(a.server)
	a.closers.add(func() error { // for servers that never served
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return a.service.Settle(ctx)
	})
	// Finish deletions by an import, and deletions that a crash interrupted. A failure is logged, and the next start
	// tries again.
	if ids := a.catalog.PendingDeletions(); len(ids) > 0 {
		_ = a.service.FinishDeletion(ids...)
	}
	if cfg.Computes() {
		end := a.phase("check")
		if err := a.service.Check(ctx); err != nil {
			return err
		}
		end()
		if err := a.warmUp(ctx); err != nil {
			return err
		}
	}
	if err := forgetDeleted(cfg.DataDir, a.service); err != nil || a.cluster == nil {
		return err
	}
	return a.takePart(ctx, cfg)
}

// openCatalog opens the catalog in the data folder and loads the files that the configuration names.
func (a *App) openCatalog(cfg *config.Config) (*catalog.Catalog, error) {
	clustered := cfg.Cluster.Name != ""
	items, err := catalog.Open(datadir.Catalog(cfg.DataDir), catalog.Options{
		Logger: a.log, TrackDeletions: true, Replicated: clustered, TrackUnknown: clustered,
	})
	if err != nil {
		return nil, err
	}
	a.closers.add(items.Close)
	if clustered { // the files are loaded once the other members have been heard
		return items, nil
	}
	if err := loadFiles(cfg, items, nil, a.log); err != nil {
		return nil, err
	}
	if n, users, _ := items.Counts(); n+users > 0 {
		a.log.Info("catalog loaded", "items", n, "users", users)
	}
	return items, nil
}

// loadFiles loads the changes in the configuration's files of items and users since they were last loaded.
func loadFiles(cfg *config.Config, c *catalog.Catalog, users *catalog.Users, log *slog.Logger) error {
	files := &loadedFiles{path: filepath.Join(cfg.DataDir, "catalog.loaded.json"), log: log,
		shared: cfg.Cluster.Name != ""}
	err := files.once(cfg.Catalog.Items, func(id string) (has, deleted bool, err error) {
		_, has = c.Item(id)
		deleted, err = c.BuriedItem(id)
		return has, deleted, err
	}, c.LoadItemsIf)
	if err != nil {
		return fmt.Errorf("catalog.items: %w", err)
	}
	load := c.LoadUsersIf
	if users != nil {
		load = users.LoadUsersIf
	}
	err = files.once(cfg.Catalog.Users, func(id string) (has, deleted bool, err error) {
		if users != nil {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_, has, err = users.UserWithin(ctx, id)
		} else {
			_, has = c.User(id)
		}
		if err == nil {
			deleted, err = c.Buried(id)
		}
		return has, deleted && !has, err // a store has users who were put again, and the catalog does not hear of it
	}, load)
	if err != nil {
		return fmt.Errorf("catalog.users: %w", err)
	}
	return nil
}

// keepSnapshots lets models that have codes generate the catalog's items. It follows changes of the catalog in the
// background.
func (a *App) keepSnapshots(cfg *config.Config, targets []generate.Target) error {
	if len(targets) == 0 {
		return nil
	}
	k, err := generate.NewKeeper(a.catalog, generate.KeeperOptions{
		Dir: datadir.Versions(cfg.DataDir), Keep: cfg.Catalog.Versions, Logger: a.log,
	}, targets...)
	if err != nil {
		return err
	}
	a.keeper = k
	a.closers.add(k.Close)
	for i := range targets {
		snap := targets[i].Generator.Snapshot()
		if snap.Len()+snap.Skipped == 0 { // members of a cluster get the catalog later
			continue
		}
		a.log.Info("items that can be generated", "model", targets[i].Name, "items", snap.Len(),
			"without_codes", snap.Skipped)
		if snap.Len() == 0 && snap.Skipped > 0 {
			a.log.Warn("a model can generate no item: no item of the catalog has codes of this model; grebe doctor says why",
				"model", targets[i].Name, "items", snap.Skipped)
		}
	}
	a.closers.run(k.Run)
	return nil
}
