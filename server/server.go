// Package server answers clients over HTTP and gRPC: the API, endpoints compatible with other servers, health,
// metrics and the dashboard. It checks keys and limits and leaves the work to package serve. It knows nothing about
// models and KV.
//
// HTTP and gRPC call the same methods of serve.Service with the same messages. A client's mistake returns an error
// that names the field. A panic in a handler returns 500 and is counted. Neither affects other requests.
//
// The server starts no goroutine before Serve, and none outlives it, except a handler that ignores its canceled
// context.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"grebe/serve"
	"grebe/server/batch"
	"grebe/server/guard"
)

// Config has the limits of a Server. A zero value means the default that the comment gives last.
type Config struct {
	MaxBody     int64 // bytes of a request's body; 16 MiB
	MaxInFlight int   // rankings and the like in flight, and as many requests of the catalog; more are refused; 1024
	MaxBuffered int64 // bytes of all bodies in memory; more are refused; 512 MiB

	HeaderTimeout   time.Duration // to read a request's header; 10 s
	ReadTimeout     time.Duration // to read a whole request; 60 s
	WriteTimeout    time.Duration // from the end of the header to the end of the response; 180 s
	IdleTimeout     time.Duration // of a connection between requests; 120 s
	ShutdownTimeout time.Duration // for requests in flight when Serve's context ends; 10 s
	DrainDelay      time.Duration // from the end of the context, while the server is not ready but accepts requests; none

	// Guard checks keys; nil: everyone is allowed. The admin listener checks no keys.
	Guard *guard.Guard
	// Hosts are further host names of this server, besides loopback and the address that the client connected to. "*"
	// allows any. Requests for other hosts are refused on the admin listener, and everywhere if there are no keys.
	Hosts []string
	// ShowUsers lets /v1/hot and the dashboard show the ids of users. Otherwise they show random ones.
	ShowUsers bool
	// Story lets the dashboard's first screen lead through a ranking, and change a user in it.
	Story bool
	// TLS is used by the HTTP and gRPC listeners; nil: no TLS.
	TLS *tls.Config

	// Fleet is the cluster that this process belongs to; nil: none.
	Fleet Fleet
	// Backup prepares a backup, and returns what writes it; nil: backups are refused.
	Backup func(context.Context) (write func(context.Context, io.Writer) error, err error)

	// BatchDir is the folder of batches; empty: there are none.
	BatchDir string
	MaxBatch int64 // bytes of the requests of a batch; 1 GiB

	Version string // shown on the dashboard
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (c *Config) setDefaults() {
	orDefault(&c.MaxBody, 16<<20)
	orDefault(&c.MaxInFlight, 1024)
	orDefault(&c.MaxBuffered, 512<<20)
	c.MaxBuffered = max(c.MaxBuffered, c.MaxBody)
	orDefault(&c.HeaderTimeout, 10*time.Second)
	orDefault(&c.ReadTimeout, time.Minute)
	orDefault(&c.WriteTimeout, 3*time.Minute)
	orDefault(&c.IdleTimeout, 2*time.Minute)
	orDefault(&c.ShutdownTimeout, 10*time.Second)
	if c.Guard == nil {
		c.Guard = new(guard.Guard)
	}
}

func (c *Config) validate() error {
	if c.MaxBody < 1 || c.MaxInFlight < 1 {
		return fmt.Errorf("MaxBody %d and MaxInFlight %d: want at least 1", c.MaxBody, c.MaxInFlight)
	}
	return nil
}

// Server serves a Service on listeners.
type Server struct {
	cfg      Config
	service  *serve.Service
	log      *slog.Logger
	metrics  *metrics
	slots    chan struct{} // one for each request in flight
	writes   chan struct{} // the same for requests of the catalog
	lists    line          // requests for lists
	batches  *batch.Jobs   // nil: none
	history  history       // readings of metrics, for the dashboard
	backup   chan struct{} // holds a value while a backup is written
	bodies   atomic.Int64  // bytes of all bodies in memory
	intake   intake
	guard    *guard.Guard
	site     site
	hideSeed maphash.Seed
	state    atomic.Int32
	health   *health.Server

	handlers atomic.Int64    // handlers of HTTP and gRPC that run
	cut      context.Context // of all requests; ends when they are cut off
	cutOff   context.CancelFunc
	watching context.Context // of health and reflection streams; ends at shutdown
	unwatch  context.CancelFunc
	reading  atomic.Int64 // gRPC calls whose message is not read yet
	slow     atomic.Int64 // those of reading that take longer than patience
	patience time.Duration
}

// States of a server.
const (
	starting int32 = iota // answers 503
	ready
	draining // answers requests, but health checks fail so that balancers go elsewhere
)

// New returns a Server that answers 503 until SetReady(true). Serve closes the service.
func New(service *serve.Service, cfg Config) (*Server, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	m, err := newMetrics(service.Registry())
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s := &Server{
		cfg: cfg, service: service, log: service.Log(), metrics: m,
		slots: make(chan struct{}, cfg.MaxInFlight), writes: make(chan struct{}, cfg.MaxInFlight), health: health.NewServer(),
		guard: cfg.Guard, site: newSite(cfg.Hosts), hideSeed: maphash.MakeSeed(), patience: defaultPatience,
		backup: make(chan struct{}, 1),
	}
	s.cut, s.cutOff = context.WithCancel(context.Background())
	s.watching, s.unwatch = context.WithCancel(context.Background())
	s.setState(starting)
	if err := s.openBatches(); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	return s, nil
}

// SetReady sets whether the server answers requests. It does not before the first call.
func (s *Server) SetReady(ok bool) {
	if ok {
		s.setState(ready)
	} else {
		s.setState(starting)
	}
}

// Listeners are the listeners of Serve, which closes them. Each may be nil.
type Listeners struct {
	HTTP  net.Listener // JSON and gRPC on one port: HTTP/1.1 and HTTP/2, with or without TLS
	GRPC  net.Listener // gRPC alone, which is faster than on the shared port
	Admin net.Listener // AdminHandler
}

// Serve serves until ctx ends. It then reports not ready, accepts requests for DrainDelay, waits up to
// ShutdownTimeout for those in flight, and returns nil. If a listener fails, it returns early with the error. Call
// Serve once.
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
	// A client of pprof chooses how long a profile takes.
	admin.WriteTimeout = 0

	s.service.RunAhead()
	endBatches := s.runBatches()
	endHistory := s.runHistory()
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
	start("gRPC", l.GRPC, func(ln net.Listener) error { return alone.Serve(silentListener{ln, newSilent()}) })

	var failed error
	if running > 0 {
		select {
		case <-ctx.Done():
		case failed = <-done:
			running--
		}
	}
	s.setState(draining)
	endBatches()
	endHistory()
	s.service.EndReloads()
	if failed == nil && s.cfg.DrainDelay > 0 {
		time.Sleep(s.cfg.DrainDelay) // until balancers have noticed
	}
	s.shutdown(web, admin, shared, alone)
	for ; running > 0; running-- {
		failed = errors.Join(failed, <-done)
	}
	s.service.Close()
	return failed
}

func (s *Server) newHTTP(h http.Handler) *http.Server {
	quiet := newSilent()
	srv := &http.Server{
		Handler:           h,
		ConnState:         quiet.follow,
		ReadHeaderTimeout: s.cfg.HeaderTimeout,
		ReadTimeout:       s.cfg.ReadTimeout,
		WriteTimeout:      s.cfg.WriteTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		BaseContext:       func(net.Listener) context.Context { return s.cut },
		ConnContext:       withConn,
		MaxHeaderBytes:    64 << 10,
		// OPTIONS * reaches the handler too, which counts it.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	srv.RegisterOnShutdown(quiet.close)
	return srv
}

// shutdown drains all servers at once, within ShutdownTimeout, and cuts off the requests that are left.
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

// cutWithin is the time that handlers have to end after their request was cut off.
const cutWithin = 5 * time.Second

// waitForHandlers waits until all handlers have returned. It gives up on those that ignore their canceled context.
func (s *Server) waitForHandlers() {
	for end := time.Now().Add(cutWithin); s.handlers.Load() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.log.Error("handlers still run after their requests were canceled", "requests", s.handlers.Load())
			return
		}
	}
}
