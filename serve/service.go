// Package serve answers requests for models: rankings, recommendations, scores and changes of the catalog. It takes a
// message and returns an answer, or an error with a code and the path of the field. It knows no protocol; package
// server does.
//
// A model is served by a checkpoint, which can be replaced while it serves. Deletes take precedence over requests in
// flight: no KV of a deleted user stays cached. Close ends all goroutines of a Service.
//
// Lock order: a slot's lock, then its reload's; the lock of drops, then that of present.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/ahead"
	"grebe/catalog"
	"grebe/embed"
	"grebe/generate"
	"grebe/internal/contain"
	"grebe/serve/tracing"
)

// Config configures a Service. A zero value means the default that the comment gives last.
type Config struct {
	Models  []Model          // at least one, with different names
	Catalog *catalog.Catalog // an empty one
	Node    string           // name in responses; n0
	// Users are the users, if they lie in a store of their own; nil: they are the Catalog's.
	Users *catalog.Users
	// Versions keeps the versions of the catalog that models generate; nil: there are none to choose from.
	Versions *generate.Keeper

	// UserDeleted is called when a user is deleted. It removes KV that may be theirs and that no model here has; nil:
	// there is none.
	UserDeleted func() error

	// Cluster is the cluster that this process belongs to; nil: it answers all requests itself.
	Cluster Fleet

	// Tables are embedding tables whose rows can be read and changed; nil: there are none. The caller closes them.
	Tables *embed.Tables

	// Loader opens other checkpoints of the models; nil: they cannot be reloaded.
	Loader Loader
	// for which the old checkpoint stays loaded, to roll back if a request fails on the new one; none
	Trial      time.Duration
	Warm       float64       // share of the cache that a new checkpoint's items may take before it serves; none
	ReloadWait time.Duration // longest wait of a request for the end of a reload; 2 min

	// Rests says that this process computes nothing. Checkpoints are not tried before they serve, and nothing is indexed.
	Rests bool

	// AheadOff turns indexing off. Items are then computed by the requests that need them.
	AheadOff bool

	SLO         time.Duration // deadline of a request that names none; 200 ms
	MaxDeadline time.Duration // longest deadline that a request may name; 60 s

	// Tracer records spans of requests; nil: none.
	Tracer   *tracing.Tracer
	Logger   *slog.Logger         // nothing is logged
	Registry *prometheus.Registry // a new one
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (c *Config) setDefaults() {
	orDefault(&c.Node, "n0")
	orDefault(&c.SLO, 200*time.Millisecond)
	orDefault(&c.MaxDeadline, time.Minute)
	c.MaxDeadline = max(c.MaxDeadline, c.SLO)
	orDefault(&c.ReloadWait, 2*time.Minute)
	if c.Catalog == nil {
		c.Catalog = catalog.New(catalog.Options{})
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
}

func (c *Config) validate() error {
	if len(c.Models) == 0 {
		return errors.New("no model")
	}
	names := map[string]bool{}
	for i := range c.Models {
		m := &c.Models[i]
		switch {
		case m.Name == "":
			return fmt.Errorf("model %d has no name", i)
		case names[m.Name]:
			return fmt.Errorf("two models are named %q", m.Name)
		case m.Runner == nil || m.Prompt == nil:
			return fmt.Errorf("model %q: needs a runner and a prompt", m.Name)
		case m.Vocab <= 0 || m.Positions < 0:
			return fmt.Errorf("model %q: vocabulary of %d, %d positions", m.Name, m.Vocab, m.Positions)
		case m.Scoring.Kind > Pointwise:
			return fmt.Errorf("model %q: no scoring kind %d", m.Name, m.Scoring.Kind)
		}
		names[m.Name] = true
		if m.Scoring.Kind == Pointwise {
			for _, id := range []int32{m.Scoring.Yes, m.Scoring.No} {
				if id < 0 || int(id) >= m.Vocab {
					return fmt.Errorf("model %q: scoring token %d is outside the vocabulary of %d", m.Name, id, m.Vocab)
				}
			}
			if m.Scoring.Yes == m.Scoring.No {
				return fmt.Errorf("model %q: yes and no are the same token %d", m.Name, m.Scoring.Yes)
			}
		}
	}
	if c.SLO < time.Millisecond {
		return fmt.Errorf("SLO %v: too small", c.SLO)
	}
	return nil
}

// Service answers requests for models.
type Service struct {
	cfg      Config
	models   map[string]*slot
	served   []*slot // in the order of the configuration
	catalog  *catalog.Catalog
	people   users
	refused  atomic.Int64 // changes refused because the catalog's disk failed
	underWay atomic.Int64 // requests of models in flight
	log      *slog.Logger
	metrics  *metrics
	times    atomic.Pointer[deadlines]

	hotUsers, hotItems *hot
	popular            popular
	ahead              *ahead.Indexer
	present            present
	items              itemChanges
	drops              drops
	now                func() time.Time

	lifecycle  *lifecycleMetrics
	life       context.Context // of background work
	changing   context.Context // of reloads and indexing, which end first
	die        context.CancelFunc
	endChanges context.CancelFunc
	background sync.WaitGroup
}

// New returns a Service. The caller MUST close it.
func New(cfg Config) (*Service, error) {
	cfg.Models = slices.Clone(cfg.Models)
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	slots := make([]*slot, len(cfg.Models))
	for i := range cfg.Models {
		m := cfg.Models[i]
		m.trace(cfg.Tracer)
		slots[i] = &slot{name: m.Name, now: newCheckpoint(&m)}
	}
	m, err := newMetrics(cfg.Registry)
	if err == nil {
		err = cfg.Registry.Register(newCacheMetrics(slots))
	}
	lifecycle := newLifecycleMetrics(slots)
	if err == nil {
		err = cfg.Registry.Register(lifecycle)
	}
	if err == nil {
		err = cfg.Registry.Register(newTableMetrics(cfg.Tables))
	}
	if err == nil {
		err = cfg.Registry.Register(newSnapshotMetrics(slots, cfg.Versions))
	}
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	s := &Service{
		cfg: cfg, models: map[string]*slot{}, served: slots, lifecycle: lifecycle, catalog: cfg.Catalog, people: people(&cfg),
		log: cfg.Logger, metrics: m,
		now: time.Now, hotUsers: newHot(), hotItems: newHot(),
	}
	s.ahead = s.newIndexer()
	for _, c := range append(s.degradedMetrics(), s.ahead) {
		if err := cfg.Registry.Register(c); err != nil {
			return nil, fmt.Errorf("serve: %w", err)
		}
	}
	s.SetDeadlines(cfg.SLO, cfg.MaxDeadline)
	s.cfg.Models = nil // a reference would keep a retired checkpoint in memory
	s.life, s.die = context.WithCancel(context.Background())
	s.changing, s.endChanges = context.WithCancel(s.life)
	for _, sl := range slots {
		s.models[sl.name] = sl
	}
	s.catalog.Subscribe(s.changed)
	return s, nil
}

// EndReloads ends reloads and indexing, and refuses new reloads. Requests are still answered.
func (s *Service) EndReloads() { s.endChanges() }

// Close ends background work. No requests may be in flight. After Close, a change of the catalog removes outdated KV
// before it returns.
func (s *Service) Close() {
	s.drops.close()
	s.die()
	s.background.Wait()
}

// Node returns the name in responses.
func (s *Service) Node() string { return s.cfg.Node }

// Catalog returns the catalog of users and items. Requests change it through the Service's methods.
func (s *Service) Catalog() *catalog.Catalog { return s.catalog }

// Log returns the Service's logger.
func (s *Service) Log() *slog.Logger { return s.log }

// Registry returns the registry of the Service's metrics.
func (s *Service) Registry() *prometheus.Registry { return s.cfg.Registry }

// Tracer returns the tracer of requests, or nil.
func (s *Service) Tracer() *tracing.Tracer { return s.cfg.Tracer }

// Rescue turns a panic into an internal error. It must be deferred.
func (s *Service) Rescue(op string, err *error) {
	if p := recover(); p != nil {
		s.Panicked(op, contain.Of(p))
		*err = Errorf(Internal, "", "internal error")
	}
}

// Panicked counts and logs a contained panic. op is an operation, or "engine".
func (s *Service) Panicked(op string, p *contain.Panic) {
	s.metrics.panics.Inc()
	s.log.Error("panic", "op", op, "panic", p.String(), "stack", string(p.Stack))
}

// deadlines are the default and the longest deadline of a request.
type deadlines struct{ usual, longest time.Duration }

// SetDeadlines changes SLO and MaxDeadline for later requests. MaxDeadline is raised to SLO if it is lower.
func (s *Service) SetDeadlines(slo, longest time.Duration) {
	s.times.Store(&deadlines{usual: slo, longest: max(slo, longest)})
}

// SLO returns the deadline of a request that names none.
func (s *Service) SLO() time.Duration { return s.times.Load().usual }
