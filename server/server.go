// Package server is the front door: HTTP with JSON, gRPC, the endpoints of other servers, keys, limits,
// health and pages. It knows nothing of models and their caches: package serve answers.
//
// HTTP and gRPC carry the same messages onto the same methods of serve.Service. A mistake of a client ends
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
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"

	"grebe/serve"
	"grebe/server/guard"
)

// Config says within which limits to serve, and whom. Zero values mean the default in the comment.
type Config struct {
	MaxBody     int64 // bytes of a request's body; 16 MiB
	MaxInFlight int   // requests under way, and as many of the catalog's, more are shed; 1024
	MaxBuffered int64 // bytes of bodies under way, more are shed; 512 MiB

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
	// TLS is spoken on the listeners of HTTP and gRPC; nil: not.
	TLS *tls.Config

	Version string // shown on the page
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
		return fmt.Errorf("largest body %d, %d in flight: too small", c.MaxBody, c.MaxInFlight)
	}
	return nil
}

// Server serves a Service on listeners.
type Server struct {
	cfg      Config
	service  *serve.Service
	log      *slog.Logger
	metrics  *metrics
	slots    chan struct{} // one for each request under way
	writes   chan struct{} // likewise of the catalog's requests, which have places of their own
	lists    line          // of requests for lists
	bodies   atomic.Int64  // bytes of bodies under way
	intake   intake
	guard    *guard.Guard
	site     site
	hideSeed maphash.Seed
	state    atomic.Int32
	health   *health.Server

	handlers atomic.Int64    // of HTTP and gRPC, under way
	cut      context.Context // ends when requests under way shall
	cutOff   context.CancelFunc
	watching context.Context // ends when nobody need watch the server's health any more
	unwatch  context.CancelFunc
	reading  atomic.Int64 // calls of gRPC whose message is not read yet
	slow     atomic.Int64 // of those, since longer than patience
	patience time.Duration
}

// States of a server.
const (
	starting int32 = iota // answers 503
	ready
	draining // finishes what comes, but tells balancers to go elsewhere
)

// New checks the configuration. The server answers 503 until SetReady(true). Serve closes the service.
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
	}
	s.cut, s.cutOff = context.WithCancel(context.Background())
	s.watching, s.unwatch = context.WithCancel(context.Background())
	s.setState(starting)
	return s, nil
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

	s.service.RunAhead()
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
	s.service.EndReloads()
	if failed == nil && s.cfg.DrainDelay > 0 {
		time.Sleep(s.cfg.DrainDelay) // balancers notice, and send what comes elsewhere
	}
	s.shutdown(web, admin, shared, alone)
	for ; running > 0; running-- {
		failed = errors.Join(failed, <-done)
	}
	s.service.Close()
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
