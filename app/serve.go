package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/server"
	"grebe/server/guard"
)

// Process is the interface to the process that serves. All fields but Started are optional.
type Process struct {
	Started time.Time
	Env     []string
	Hangup  <-chan os.Signal               // a signal means to read the configuration again; nil: never
	Again   func() (*config.Config, error) // reads it again; nil: it cannot be read again
	Ready   func(http net.Addr)            // called once requests are answered
	// replaces the process by a new one with the same command line; nil: not possible
	Exec func(env []string) error
}

// Serve binds the addresses, loads the models and serves until ctx ends.
func Serve(ctx context.Context, cfg *config.Config, opt Options, p Process) error {
	doors, err := listen(ctx, cfg)
	if err != nil {
		return err
	}
	a, err := loadBehind(ctx, cfg, opt, doors)
	if err != nil {
		closeAll(doors)
		if ctx.Err() != nil {
			opt.Log.Info("stopped while loading")
			return nil
		}
		return err
	}
	for n := lossesBefore(p.Env); ; {
		yieldCores(cfg, a.device)
		began := time.Now()
		lost, now, err := a.serve(ctx, cfg, p, doors)
		if !lost || err != nil {
			opt.Log.Info("stopped")
			return errors.Join(err, a.Close())
		}
		cfg = a.sameDevice(now)
		again := a.inForce(cfg)
		if err := a.Close(); err != nil {
			opt.Log.Warn("the lost device could not be closed", "error", err)
		}
		if n, err = n.after(time.Since(began)); err != nil {
			return err
		}
		if a, doors, err = reopen(ctx, again, opt, p, doors, n); err != nil || a == nil {
			return err // nil if the App was stopped meanwhile
		}
		a.loader.cfg = cfg // so that a reload uses the configuration's checkpoints
	}
}

// loadBehind loads an App. Meanwhile the listeners answer that it is loading, and report the progress.
func loadBehind(ctx context.Context, cfg *config.Config, opt Options, doors server.Listeners) (*App, error) {
	var secure *tls.Config
	if cfg.TLS.Cert != "" {
		c, err := guard.LoadCertificates(cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.ClientCA)
		if err != nil {
			return nil, err
		}
		secure = c.Config()
	}
	lobby := server.OpenLobby(doors, secure)
	defer lobby.Leave()
	opt.Tell = func(model string, done, total int64) {
		lobby.Say(fmt.Sprintf("loading model %s, %d %%", model, 100*done/max(total, 1)))
	}
	return Load(ctx, cfg, opt)
}

// serve serves a loaded App until ctx ends or its device is lost. It returns the configuration in force, which signals
// may have changed.
func (a *App) serve(stopped context.Context, cfg *config.Config, p Process,
	doors server.Listeners) (lost bool, now *config.Config, err error) {
	a.loader.again = p.Again
	a.first = nil // do not keep a checkpoint alive after it is retired
	a.server.SetReady(true)
	resident := residentBytes()
	attrs := []any{"device", a.device.Name(), "http", address(doors.HTTP), "grpc", address(doors.GRPC),
		"admin", address(doors.Admin),
		"seconds", human.Seconds(time.Since(p.Started)), "checkpoint", human.Bytes(a.checkpoint)}
	if resident > 0 {
		attrs = append(attrs, "resident", human.Bytes(resident))
	}
	a.log.Info("serving", attrs...)
	if p.Ready != nil {
		p.Ready(doors.HTTP.Addr())
	}
	stop := a.followHangups(p.Hangup, cfg, p.Again, a.reconfigure)
	defer func() { now = stop() }()
	ctx, unwatch := a.watch(stopped)
	defer unwatch()
	if a.cluster != nil {
		context.AfterFunc(stopped, a.cluster.Leave)
	}
	within := time.Duration(cfg.Limits.DrainMillis+cfg.Limits.ShutdownMillis) * time.Millisecond
	context.AfterFunc(stopped, func() { a.loaded.closeBy.Store(time.Now().Add(within).UnixNano()) })
	err = a.server.Serve(ctx, doors)
	return context.Cause(ctx) == errLost && stopped.Err() == nil, cfg, err
}

// listen binds the configured addresses, before any slow work.
func listen(ctx context.Context, cfg *config.Config) (server.Listeners, error) {
	var l server.Listeners
	for _, d := range []struct {
		key, addr string
		dst       *net.Listener
	}{{"listen", cfg.Listen, &l.HTTP}, {"admin_listen", cfg.AdminListen, &l.Admin},
		{"grpc_listen", cfg.GRPCListen, &l.GRPC}} {
		if d.addr == "" {
			continue
		}
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", d.addr)
		if err != nil {
			closeAll(l)
			return l, fmt.Errorf("%s: %w (give another address with --%s)", d.key, err, strings.ReplaceAll(d.key, "_", "-"))
		}
		*d.dst = ln
	}
	return l, nil
}

func closeAll(l server.Listeners) {
	for _, ln := range []net.Listener{l.HTTP, l.GRPC, l.Admin} {
		if ln != nil {
			ln.Close()
		}
	}
}

func address(ln net.Listener) string {
	if ln == nil {
		return "off"
	}
	return ln.Addr().String()
}

// residentBytes returns the resident memory of the process, including mapped files, or 0 if unknown.
func residentBytes() int64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
