// Package server is the front door: HTTP with JSON, gRPC, the endpoints of other servers, limits,
// deadlines, health and metrics.
//
// HTTP and gRPC carry the same messages onto the same methods of Server. A mistake of a client ends
// in an error that names the field, a panic in a handler in a 500 and a count; neither costs another
// request anything. The server starts no goroutine before Serve, and none outlives it.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"grebe/catalog"
	"grebe/dispatch"
	"grebe/embed"
	"grebe/engine"
	"grebe/generate"
	"grebe/kv/disk"
	"grebe/model/hstu"
	"grebe/prompt"
	"grebe/reuse"
	"grebe/schedule"
	"grebe/server/guard"
	"grebe/server/tracing"
)

// Runner runs the jobs of a model. An engine.Engine is one.
type Runner interface {
	Do(context.Context, *engine.Job) (*engine.Result, error)
}

// Kind says how a model scores.
type Kind uint8

const (
	// Identifier scores by the logits of the candidates' identifiers after one instruction.
	Identifier Kind = iota
	// Pointwise scores each candidate by the logits of Yes and No after its own instruction.
	Pointwise
)

func (k Kind) String() string {
	if k == Pointwise {
		return "pointwise"
	}
	return "identifier"
}

// Scoring says how a model scores, and by which tokens.
type Scoring struct {
	Kind    Kind
	Yes, No int32 // of Pointwise
}

// Model is one model to serve.
type Model struct {
	Name   string
	Runner Runner
	// Admit takes a place for a request before anything is computed for it, as dispatch.Dispatcher does; nil: everyone is let in.
	Admit    func(kind dispatch.Kind, size int, deadline time.Time) (*dispatch.Place, error)
	Prompt   *prompt.Builder
	Cache    *reuse.Cache        // nil: everything is computed
	Disk     *disk.Store         // what is kept below memory; nil: nothing
	Generate *generate.Generator // nil: the model has no codes, and cannot recommend
	Scoring  Scoring
	Orders   schedule.Orders // that prefix auto may choose, those of Cache; empty: both
	// Blend is nil, or says how prompts are blended; without a Cache nothing is, and they are computed whole.
	Blend *reuse.Blend
	// Events is nil, or the model of events that Runner runs: then there are no texts, and no codes.
	Events *hstu.Model
	// Served is told what each answered request of a model of events was like; nil: nobody is.
	Served    func(Served)
	Vocab     int // tokens that the model knows
	Positions int // positions that it has; 0: do not check
	// Shown by /v1/models.
	Architecture, DType string
	// Version names the checkpoint, and Origin is the folder where it was: a Loader opens it again from there.
	Version, Origin string
	// Retire frees all of it, once it serves no more; nil: nothing is to be freed. When ctx ends it leaves what it keeps on
	// disk for later, and MUST return soon.
	Retire func(ctx context.Context) error
}

// scoring names the way in which the model scores.
func (m *Model) scoring() string {
	if m.Events != nil {
		return "tasks"
	}
	return m.Scoring.Kind.String()
}

// Config says what to serve and within which limits. Zero values mean the default in the comment.
type Config struct {
	Models  []Model          // at least one, with different names
	Catalog *catalog.Catalog // an empty one
	Node    string           // name in responses; n0
	// Versions keeps the versions of the catalog that models generate; nil: there are none to choose from.
	Versions *generate.Keeper

	// UserDeleted is called when a user is deleted, to remove KV that may be theirs and that none of the models has; nil: there is none.
	UserDeleted func() error

	// Tables of embeddings, whose rows /v1/tables reads and changes; nil: there are none. They stay the caller's.
	Tables *embed.Tables

	// Loader brings up other checkpoints of the models; nil: they cannot be reloaded.
	Loader Loader
	Trial  time.Duration // in which a checkpoint that fails a request is taken back, and the one before it stays loaded; none
	Warm   float64       // share of the cache that a new checkpoint's items may take before it serves; none

	SLO         time.Duration // deadline of a request that names none; 200 ms
	MaxDeadline time.Duration // longest deadline a request may name; 60 s
	MaxBody     int64         // bytes of a request's body; 16 MiB
	MaxInFlight int           // requests under way, and as many of the catalog's, more are shed; 1024
	MaxBuffered int64         // bytes of bodies under way, more are shed; 512 MiB

	HeaderTimeout   time.Duration // to read a request's header; 10 s
	ReadTimeout     time.Duration // to read a whole request; 60 s
	WriteTimeout    time.Duration // from the header's end to the end of the response; 180 s
	IdleTimeout     time.Duration // of a connection between requests; 120 s
	ShutdownTimeout time.Duration // for requests under way when Serve's context ends; 10 s
	DrainDelay      time.Duration // from then on ready is false, but requests are taken; none

	// Guard decides who may ask; nil: everyone. The admin listener asks nobody.
	Guard *guard.Guard
	// Hosts are names, besides loopback and the address that a client connected to, under which the server is
	// reached; "*": any. While there are no keys, and on the admin listener, others are refused; none.
	Hosts []string
	// ShowUsers lets /v1/hot and the dashboard name users; otherwise they see a stand-in for each.
	ShowUsers bool
	// Tracer is told where the time of requests went; nil: nobody is.
	Tracer *tracing.Tracer
	// TLS is spoken on the listeners of HTTP and gRPC; nil: not.
	TLS *tls.Config

	Version  string               // shown on the page
	Logger   *slog.Logger         // nothing is logged
	Registry *prometheus.Registry // one of its own
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
	orDefault(&c.MaxBody, 16<<20)
	orDefault(&c.MaxInFlight, 1024)
	orDefault(&c.MaxBuffered, 512<<20)
	c.MaxBuffered = max(c.MaxBuffered, c.MaxBody)
	orDefault(&c.HeaderTimeout, 10*time.Second)
	orDefault(&c.ReadTimeout, time.Minute)
	orDefault(&c.WriteTimeout, 3*time.Minute)
	orDefault(&c.IdleTimeout, 2*time.Minute)
	orDefault(&c.ShutdownTimeout, 10*time.Second)
	if c.Catalog == nil {
		c.Catalog = catalog.New(catalog.Options{})
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Guard == nil {
		c.Guard = new(guard.Guard)
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
	if c.SLO < time.Millisecond || c.MaxBody < 1 || c.MaxInFlight < 1 {
		return fmt.Errorf("SLO %v, largest body %d, %d in flight: too small", c.SLO, c.MaxBody, c.MaxInFlight)
	}
	return nil
}

// Server serves models.
type Server struct {
	cfg     Config
	models  map[string]*slot
	served  []*slot // in the order of the configuration
	catalog *catalog.Catalog
	refused atomic.Int64 // changes of a catalog whose disk failed
	log     *slog.Logger
	metrics *metrics
	created int64         // seconds since 1970
	slots   chan struct{} // one for each request under way
	writes  chan struct{} // likewise of the catalog's requests, which have places of their own
	lists   line          // of requests for lists
	bodies  atomic.Int64  // bytes of bodies under way
	intake  intake
	guard   *guard.Guard
	site    site
	times   atomic.Pointer[deadlines]

	hotUsers, hotItems *hot
	present            present
	drops              drops
	hideSeed           maphash.Seed
	state              atomic.Int32
	health             *health.Server
	now                func() time.Time

	lifecycle  *lifecycleMetrics
	life       context.Context // of what runs in the background
	changing   context.Context // of reloads, which end when the server begins to stop
	die        context.CancelFunc
	endChanges context.CancelFunc
	background sync.WaitGroup
	handlers   atomic.Int64    // of HTTP and gRPC, under way
	cut        context.Context // ends when requests under way shall
	cutOff     context.CancelFunc
	watching   context.Context // ends when nobody need watch the server's health any more
	unwatch    context.CancelFunc
	reading    atomic.Int64 // calls of gRPC whose message is not read yet
	slow       atomic.Int64 // of those, since longer than patience
	patience   time.Duration
}

// States of a server.
const (
	starting int32 = iota // answers 503
	ready
	draining // finishes what comes, but tells balancers to go elsewhere
)

// New checks the configuration. The server answers 503 until SetReady(true).
func New(cfg Config) (*Server, error) {
	cfg.Models = slices.Clone(cfg.Models)
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("server: %w", err)
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
		return nil, fmt.Errorf("server: %w", err)
	}
	s := &Server{
		cfg: cfg, models: map[string]*slot{}, served: slots, lifecycle: lifecycle, catalog: cfg.Catalog, log: cfg.Logger, metrics: m,
		created: time.Now().Unix(), now: time.Now, slots: make(chan struct{}, cfg.MaxInFlight), writes: make(chan struct{}, cfg.MaxInFlight), health: health.NewServer(),
		guard: cfg.Guard, site: newSite(cfg.Hosts), hotUsers: newHot(), hotItems: newHot(), hideSeed: maphash.MakeSeed(),
		patience: defaultPatience,
	}
	for _, c := range s.degradedMetrics() {
		if err := cfg.Registry.Register(c); err != nil {
			return nil, fmt.Errorf("server: %w", err)
		}
	}
	s.SetDeadlines(cfg.SLO, cfg.MaxDeadline)
	s.cfg.Models = nil // nothing shall hold a checkpoint that is retired
	s.life, s.die = context.WithCancel(context.Background())
	s.changing, s.endChanges = context.WithCancel(s.life)
	s.cut, s.cutOff = context.WithCancel(context.Background())
	s.watching, s.unwatch = context.WithCancel(context.Background())
	for _, sl := range slots {
		s.models[sl.name] = sl
	}
	s.setState(starting)
	s.catalog.Subscribe(s.changed)
	return s, nil
}

// trace has the model's passes traced.
func (m *Model) trace(t *tracing.Tracer) {
	if t == nil {
		return
	}
	m.Runner = runner(t.Rounds(m.Runner.Do))
	if m.Generate != nil {
		m.Generate.Do = t.Rounds(m.Generate.Do)
	}
}

// runner is a function that runs jobs.
type runner tracing.Do

// Do implements Runner.
func (r runner) Do(ctx context.Context, job *engine.Job) (*engine.Result, error) { return r(ctx, job) }

// deadlines are what a request may take.
type deadlines struct{ usual, longest time.Duration }

// SetDeadlines changes SLO and MaxDeadline of requests to come. The latter is never below the former.
func (s *Server) SetDeadlines(slo, longest time.Duration) {
	s.times.Store(&deadlines{usual: slo, longest: max(slo, longest)})
}

// SetReady says whether requests are answered. They are not before the first call.
func (s *Server) SetReady(ok bool) {
	if ok {
		s.setState(ready)
	} else {
		s.setState(starting)
	}
}

// Listeners are what Serve serves on; nil ones are left out. Serve closes them.
type Listeners struct {
	HTTP  net.Listener // HTTP/1.1, and HTTP/2 without TLS: JSON and gRPC on one port
	GRPC  net.Listener // gRPC alone, which is faster there
	Admin net.Listener // AdminHandler
}

// Serve serves until ctx ends, then says that it is not ready, stops accepting after DrainDelay, finishes what is under way within
// ShutdownTimeout and returns nil. It returns early when a listener fails. A Server serves once.
func (s *Server) Serve(ctx context.Context, l Listeners) error {
	shared := s.newGRPC(nil) // behind net/http: its connections cannot be drained, only closed
	alone := s.newGRPC(s.cfg.TLS)
	web := s.newHTTP(s.framed(s.screened(s.frontDoor(shared), false)))
	admin := s.newHTTP(s.framed(s.screened(s.AdminHandler(), true)))
	web.Protocols = new(http.Protocols)
	web.Protocols.SetHTTP1(true)
	web.Protocols.SetUnencryptedHTTP2(s.cfg.TLS == nil)
	web.Protocols.SetHTTP2(s.cfg.TLS != nil)
	web.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: min(s.cfg.MaxInFlight, maxStreams)}
	// pprof's profiles take as long as they are asked to.
	admin.WriteTimeout = 0

	running := 0
	done := make(chan error, 3)
	start := func(name string, ln net.Listener, serve func(net.Listener) error) {
		if ln == nil {
			return
		}
		running++
		go func() {
			err := serve(ln)
			if errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
				err = nil
			}
			if err != nil {
				err = fmt.Errorf("server: %s on %s: %w", name, ln.Addr(), err)
			}
			done <- err
		}()
	}
	start("HTTP", l.HTTP, func(ln net.Listener) error {
		if s.cfg.TLS == nil {
			return web.Serve(framedListener{ln})
		}
		web.TLSConfig = s.cfg.TLS
		return web.ServeTLS(ln, "", "")
	})
	start("admin", l.Admin, func(ln net.Listener) error { return admin.Serve(framedListener{ln}) })
	start("gRPC", l.GRPC, alone.Serve)

	var failed error
	if running > 0 {
		select {
		case <-ctx.Done():
		case failed = <-done:
			running--
		}
	}
	s.setState(draining)
	s.endChanges()
	if failed == nil && s.cfg.DrainDelay > 0 {
		time.Sleep(s.cfg.DrainDelay) // balancers notice, and send what comes elsewhere
	}
	s.shutdown(web, admin, shared, alone)
	for ; running > 0; running-- {
		failed = errors.Join(failed, <-done)
	}
	s.drops.close()
	s.die()
	s.background.Wait()
	return failed
}

func (s *Server) newHTTP(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: s.cfg.HeaderTimeout,
		ReadTimeout:       s.cfg.ReadTimeout,
		WriteTimeout:      s.cfg.WriteTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		BaseContext:       func(net.Listener) context.Context { return s.cut },
		ConnContext:       withConn,
		MaxHeaderBytes:    64 << 10,
		// All requests reach the handler, which counts them.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// shutdown drains all servers at once and, when the time is up, cuts what is left.
func (s *Server) shutdown(web, admin *http.Server, shared, alone *grpc.Server) {
	s.unwatch()
	defer s.waitForHandlers()
	defer s.cutOff()
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.ShutdownTimeout)
	defer cancel()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		alone.GracefulStop()
	}()
	for _, h := range []*http.Server{web, admin} {
		if err := h.Shutdown(ctx); err != nil {
			s.log.Warn("requests cut off at shutdown", "error", err)
			s.cutOff()
			h.Close()
		}
	}
	select {
	case <-drained:
	case <-ctx.Done():
		alone.Stop()
		<-drained
	}
	shared.Stop()
}

// cutWithin is how long handlers have to notice that their request was cut off.
const cutWithin = 5 * time.Second

// waitForHandlers waits until no request is under way. One that does not notice that it was cut off is left behind.
func (s *Server) waitForHandlers() {
	for end := time.Now().Add(cutWithin); s.handlers.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.log.Error("requests that were cut off do not end: they are left behind", "requests", s.handlers.Load())
			return
		}
	}
}
