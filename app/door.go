package app

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"grebe/cluster/mtls"
	"grebe/internal/config"
	"grebe/serve/tracing"
	"grebe/server"
	"grebe/server/guard"
)

// door has the keys and certificates that admit clients. They can change while the server runs.
type door struct {
	guard        *guard.Guard        // nil: no key is needed
	certificates *guard.Certificates // nil: no TLS
	identity     *mtls.Identity      // among members of a cluster; nil: none
}

// openDoor reads keys and certificates.
func (a *App) openDoor(cfg *config.Config, sc *server.Config) error {
	if cfg.Auth.Keys != "" {
		keys, err := ReadKeys(cfg.Auth.Keys)
		if err != nil {
			return err
		}
		if a.door.guard, err = guard.New(keys); err != nil {
			return err
		}
		sc.Guard = a.door.guard
	}
	if cfg.TLS.Cert != "" {
		c, err := guard.LoadCertificates(cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.ClientCA)
		if err != nil {
			return err
		}
		a.door.certificates, sc.TLS = c, c.Config()
	}
	return nil
}

// openTracer opens a tracer; nil: the configuration has no endpoint.
func (a *App) openTracer(cfg *config.Config) (*tracing.Tracer, error) {
	if cfg.Tracing.Endpoint == "" {
		return nil, nil
	}
	t, err := tracing.New(context.Background(), tracing.Options{
		Endpoint: cfg.Tracing.Endpoint, Share: float64(cfg.Tracing.Sample.Percent) / 100, Version: a.version,
	})
	if err != nil {
		return nil, err
	}
	a.closers.add(func() error { return closeTracer(t) })
	return t, nil
}

// warnOfOpenDoors warns of listeners that other machines can use without a key.
func (a *App) warnOfOpenDoors(cfg *config.Config) {
	if cfg.Auth.Keys == "" && cfg.TLS.ClientCA == "" && (!loopback(cfg.Listen) || !loopback(cfg.GRPCListen)) {
		a.log.Warn("other machines can send requests and change the catalog without a key: set auth.keys (see " +
			"`grebe key --help`)")
	}
	if !loopback(cfg.AdminListen) {
		a.log.Warn("other machines can reach the admin listener, which needs no key", "admin_listen", cfg.AdminListen)
	}
}

// hostsOf returns the names by which clients reach the server: the configured ones and those it listens on.
func hostsOf(cfg *config.Config) []string {
	hosts := slices.Clone(cfg.Hosts)
	for _, addr := range []string{cfg.Listen, cfg.GRPCListen, cfg.AdminListen} {
		if host, _, err := net.SplitHostPort(addr); err == nil && host != "" && net.ParseIP(host) == nil {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// closeTracer sends the last spans if the collector takes them soon. It is not an error if it does not.
func closeTracer(t *tracing.Tracer) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := t.Close(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// ReadKeys reads the keys of a file.
func ReadKeys(file string) ([]guard.Key, error) {
	list, err := config.ReadKeys(file)
	keys := make([]guard.Key, len(list))
	for i, k := range list {
		keys[i] = guard.Key{Name: k.Name, SHA256: k.SHA256, Rate: k.Rate, Burst: k.Burst}
		for _, r := range k.Roles {
			keys[i].Roles = append(keys[i].Roles, guard.Role(r))
		}
	}
	return keys, err
}

// loopback reports whether an address can be reached only from this machine. "" cannot be reached at all.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if addr == "" || err != nil || host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// lookEvery is the time between two looks at the files of keys and certificates. Kubernetes replaces files that it
// mounts, and sends no signal.
const lookEvery = 30 * time.Second

// followHangups reads the configuration again at each signal, and when a file of keys or certificates has changed,
// until stop is called. stop returns the configuration in force.
func (a *App) followHangups(hangup <-chan os.Signal, old *config.Config, again func() (*config.Config, error),
	apply func(old, next *config.Config) error) (stop func() *config.Config) {
	if hangup == nil || again == nil {
		return func() *config.Config { return old }
	}
	done, seen := make(chan struct{}), secrets(old)
	look := time.NewTicker(lookEvery)
	var owner sync.WaitGroup
	owner.Go(func() {
		defer look.Stop()
		for {
			select {
			case <-done:
				return
			case <-hangup:
			case <-look.C:
				if secrets(old) == seen {
					continue
				}
			}
			before := secrets(old)
			next, err := again()
			if err == nil {
				err = apply(old, next)
			}
			if err != nil {
				a.log.Error("the configuration was read again and is invalid: the old one stays", "error", err)
				continue // the next look tries again, if files have changed
			}
			old, seen = next, before
		}
	})
	return func() *config.Config {
		close(done)
		owner.Wait()
		return old
	}
}

// secrets returns a digest of the files of keys and certificates. A file that cannot be read counts as one with other
// content.
func secrets(cfg *config.Config) [sha256.Size]byte {
	h := sha256.New()
	for _, name := range []string{cfg.Auth.Keys, cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.ClientCA, cfg.Cluster.TLS.Cert,
		cfg.Cluster.TLS.Key, cfg.Cluster.TLS.CA} {
		if name == "" {
			continue
		}
		data, err := os.ReadFile(name)
		fmt.Fprintf(h, "%s %d %v\n", name, len(data), err)
		h.Write(data)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// reconfigure applies what can change at run time: keys, certificates, deadlines. On an error nothing changes.
func (a *App) reconfigure(old, next *config.Config) error {
	var keys []guard.Key
	if a.door.guard != nil && next.Auth.Keys != "" {
		var err error
		if keys, err = ReadKeys(next.Auth.Keys); err != nil {
			return err
		}
		if _, err = guard.New(keys); err != nil {
			return err
		}
	}
	if a.door.certificates != nil {
		if err := a.door.certificates.Reload(); err != nil {
			return err
		}
	}
	if a.door.identity != nil {
		if err := a.door.identity.Reload(); err != nil {
			return fmt.Errorf("cluster.tls: %w", err)
		}
	}
	if keys != nil {
		if err := a.door.guard.Replace(keys); err != nil {
			return err
		}
	}
	a.service.SetDeadlines(time.Duration(next.SLOMillis)*time.Millisecond,
		time.Duration(next.Limits.DeadlineMillis)*time.Millisecond)
	a.loaded.setSLO(time.Duration(next.SLOMillis) * time.Millisecond)
	a.log.Info("configuration read again", "keys", len(keys), "slo_ms", next.SLOMillis)
	if names := needRestart(old, next); len(names) > 0 {
		a.log.Warn("changed keys take effect after a restart", "keys", strings.Join(names, ", "))
	}
	return nil
}

// needRestart names the differences that reconfigure cannot apply.
func needRestart(old, next *config.Config) []string {
	a, b := *old, *next
	a.SLOMillis, a.Limits.DeadlineMillis = b.SLOMillis, b.Limits.DeadlineMillis
	if a.Auth.Keys != "" && b.Auth.Keys != "" {
		a.Auth.Keys = b.Auth.Keys
	}
	var out []string
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		if !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			out = append(out, x.Type().Field(i).Tag.Get("yaml"))
		}
	}
	slices.Sort(out)
	return out
}
