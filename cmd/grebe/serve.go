package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"grebe/internal/config"
	"grebe/server"
	"grebe/server/guard"
)

type serveCmd struct {
	Config      string   `short:"c" type:"path" help:"Configuration file." placeholder:"FILE"`
	PrintConfig bool     `help:"Print the configuration with the origin of each value, and exit."`
	Model       string   `type:"path" help:"Folder of the (first) model: models[0].path." placeholder:"DIR"`
	Listen      *string  `help:"Address of HTTP." placeholder:"HOST:PORT"`
	AdminListen *string  `help:"Address of /debug and admin calls; empty for none." placeholder:"HOST:PORT"`
	GRPCListen  *string  `name:"grpc-listen" help:"Address of gRPC; empty for none." placeholder:"HOST:PORT"`
	Device      *string  `want:"one of auto, cpu, cuda, none" help:"auto, cpu or cuda; none computes nothing, to measure the rest."`
	Threads     *int     `want:"at least 0 and at most 1024" help:"Threads of the CPU; 0: one for each core, less one of eight or more."`
	DataDir     *string  `type:"path" help:"Folder for what the server keeps." placeholder:"DIR"`
	SLOMS       *int     `name:"slo-ms" want:"at least 1 and at most 3600000" help:"Default deadline of a request in milliseconds." placeholder:"MS"`
	Set         []string `sep:"none" help:"Set any key of the configuration, such as models[0].dtype=f32." placeholder:"KEY=VALUE"`
	logFlags
}

type logFlags struct {
	LogFormat string `default:"text" enum:"text,json" help:"Format of the log: ${enum}."`
	LogLevel  string `default:"info" enum:"debug,info,warn,error" help:"Least severe level that is logged: ${enum}."`
}

func (serveCmd) Help() string {
	return `Values come from the file, then from the environment (GREBE_LISTEN, GREBE_MODELS_0_PATH, ...), then
from flags; later ones win. Ctrl-C or SIGTERM finishes the requests under way and stops. SIGHUP reads the
configuration again: keys, certificates and deadlines change at once, everything else at the next start.

Examples:

    grebe serve -c grebe.yaml
    grebe serve --model ./Qwen2-0.5B --set 'models[0].prompt.instruction= Choose: '
    grebe serve -c grebe.yaml --listen 0.0.0.0:8080 --print-config`
}

func (f *logFlags) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.LogLevel)); err != nil {
		panic(err) // the parser allows only the levels that slog knows
	}
	opt := &slog.HandlerOptions{Level: level}
	if f.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opt))
	}
	return slog.New(slog.NewTextHandler(w, opt))
}

func (c *serveCmd) Run(w *world) error {
	flags, err := c.settings()
	if err != nil {
		return err
	}
	if c.Config == "" && c.Model == "" && !hasModel(w.env) {
		return usagef("serve what? Give a configuration with -c FILE, or a checkpoint with --model DIR")
	}
	cfg, err := config.Load(config.Source{File: c.Config, Env: w.env, Flags: flags})
	if err != nil {
		return err
	}
	if c.PrintConfig {
		return cfg.Print(w.stdout)
	}
	log := c.logger(w.stderr)
	for _, name := range cfg.Unknown {
		log.Warn("a variable of the environment names no key of the configuration", "name", name)
	}
	again := func() (*config.Config, error) {
		l, err := config.Load(config.Source{File: c.Config, Env: w.env, Flags: flags})
		if err != nil {
			return nil, err
		}
		return &l.Config, nil
	}
	return serve(w, &cfg.Config, log, serveHooks{again: again})
}

func hasModel(env []string) bool {
	for _, kv := range env {
		if strings.HasPrefix(kv, config.EnvName("models[0].path")+"=") {
			return true
		}
	}
	return false
}

// settings turns flags into settings of the configuration; --set comes first, so that a flag of its
// own wins over it.
func (c *serveCmd) settings() ([]config.Setting, error) {
	var out []config.Setting
	for _, kv := range c.Set {
		key, value, ok := strings.Cut(kv, "=")
		if !ok {
			return nil, usagef("--set %q: want KEY=VALUE", kv)
		}
		out = append(out, config.Setting{Path: key, Value: value, Origin: "flag --set " + key})
	}
	add := func(path, flag string, value *string) {
		if value != nil {
			out = append(out, config.Setting{Path: path, Value: *value, Origin: "flag --" + flag})
		}
	}
	number := func(v *int) *string {
		if v == nil {
			return nil
		}
		s := strconv.Itoa(*v)
		return &s
	}
	if c.Model != "" {
		add("models[0].path", "model", &c.Model)
	}
	add("listen", "listen", c.Listen)
	add("admin_listen", "admin-listen", c.AdminListen)
	add("grpc_listen", "grpc-listen", c.GRPCListen)
	add("device", "device", c.Device)
	add("threads", "threads", number(c.Threads))
	add("data_dir", "data-dir", c.DataDir)
	add("slo_ms", "slo-ms", number(c.SLOMS))
	return out, nil
}

// serveHooks are what a caller of serve may want.
type serveHooks struct {
	ready func(http net.Addr)            // called once requests are answered; may be nil
	again func() (*config.Config, error) // reads the configuration again at a SIGHUP; nil: it cannot
	open  opener                         // nil: openDevices
}

// serve binds the addresses, loads the models and serves until the world's context ends.
func serve(w *world, cfg *config.Config, log *slog.Logger, hooks serveHooks) error {
	open := hooks.open
	if open == nil {
		open = openDevices
	}
	doors, err := listen(w.ctx, cfg)
	if err != nil {
		return err
	}
	s, err := loadBehind(w.ctx, cfg, log, open, doors)
	if err != nil {
		closeAll(doors)
		if w.ctx.Err() != nil {
			log.Info("stopped while loading")
			return nil
		}
		return err
	}
	for n := lossesBefore(w.env); ; {
		yieldCores(cfg, s.device)
		began := time.Now()
		lost, now, err := s.serve(w, cfg, log, hooks, doors)
		if !lost || err != nil {
			log.Info("stopped")
			return errors.Join(err, s.Close())
		}
		cfg = s.sameDevice(now)
		again := s.inForce(cfg)
		if err := s.Close(); err != nil {
			log.Warn("closing what was on the lost device", "error", err)
		}
		if n, err = n.after(time.Since(began)); err != nil {
			return err
		}
		if s, doors, err = reopen(w, again, log, doors, open, n); err != nil || s == nil {
			return err // or it was stopped meanwhile
		}
		s.loader.cfg = cfg // a reload takes what the configuration names
	}
}

// loadBehind loads a stack while its doors tell that it is being loaded, and how far it is.
func loadBehind(ctx context.Context, cfg *config.Config, log *slog.Logger, open opener, doors server.Listeners) (*stack, error) {
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
	return loadTelling(ctx, cfg, log, open, func(model string, done, total int64) {
		lobby.Say(fmt.Sprintf("loading model %s, %d %%", model, 100*done/max(total, 1)))
	})
}

// serve serves a loaded stack until the world's context ends, or its device is lost. It returns the configuration that holds
// then, which signals may have changed.
func (s *stack) serve(w *world, cfg *config.Config, log *slog.Logger, hooks serveHooks, doors server.Listeners) (lost bool, now *config.Config, err error) {
	s.loader.again = hooks.again
	s.models = nil // nothing shall hold a checkpoint that is retired
	s.server.SetReady(true)
	resident := residentBytes()
	attrs := []any{"device", s.device.Name(), "http", address(doors.HTTP), "grpc", address(doors.GRPC), "admin", address(doors.Admin),
		"seconds", seconds(time.Since(w.started)), "checkpoint", inBytes(s.checkpoint)}
	if resident > 0 {
		attrs = append(attrs, "resident", inBytes(resident), "resident_per_checkpoint", round(float64(resident)/float64(max(s.checkpoint, 1)), 2))
	}
	log.Info("serving", attrs...)
	if hooks.ready != nil {
		hooks.ready(doors.HTTP.Addr())
	}
	stop := s.followHangups(w, cfg, log, hooks.again)
	defer func() { now = stop() }()
	ctx, unwatch := s.watch(w.ctx, log)
	defer unwatch()
	within := time.Duration(cfg.Limits.DrainMillis+cfg.Limits.ShutdownMillis) * time.Millisecond
	context.AfterFunc(w.ctx, func() { s.loaded.closeBy.Store(time.Now().Add(within).UnixNano()) })
	err = s.server.Serve(ctx, doors)
	return context.Cause(ctx) == errLost && w.ctx.Err() == nil, cfg, err
}

// listen binds what the configuration names, before anything slow is done.
func listen(ctx context.Context, cfg *config.Config) (server.Listeners, error) {
	var l server.Listeners
	for _, d := range []struct {
		key, addr string
		dst       *net.Listener
	}{{"listen", cfg.Listen, &l.HTTP}, {"admin_listen", cfg.AdminListen, &l.Admin}, {"grpc_listen", cfg.GRPCListen, &l.GRPC}} {
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

// residentBytes returns the memory that the process holds, mapped files included; 0 when the system
// does not tell.
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

// inBytes shows an amount of memory to people.
func inBytes(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%d bytes", n)
}

func seconds(d time.Duration) float64 { return round(d.Seconds(), 3) }

func round(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}
