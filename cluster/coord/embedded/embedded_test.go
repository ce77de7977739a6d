package embedded

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"grebe/cluster/coord/coordtest"
	"grebe/cluster/coord/etcd"
)

func start(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func client(t testing.TB, o etcd.Options) *etcd.Client {
	t.Helper()
	c, err := etcd.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// lines collects a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// A second start on the folder finds what the first one had, on the same port. Etcd's information is not in the log,
// nor is its end an error.
func TestSecondStart(t *testing.T) {
	var log lines
	o := Options{Dir: filepath.Join(coordtest.Dir(t), "etcd"), Log: slog.New(slog.NewTextHandler(&log, nil))}
	began := time.Now()
	s := start(t, o)
	first := time.Since(began)
	o.Listen = s.Addr()
	c := client(t, etcd.Options{Endpoints: []string{s.Addr()}, Root: "/x/"})
	if _, err := c.Swap(t.Context(), "a", []byte("1"), 0, nil); err != nil {
		t.Fatal(err)
	}
	for range c.Watch(t.Context(), "a") { // an open watch does not delay the end
		break
	}
	began = time.Now()
	s.Close()
	s.Close()
	closing := time.Since(began)
	if closing > 3*time.Second {
		t.Errorf("Close took %v", closing)
	}
	began = time.Now()
	s = start(t, o)
	t.Logf("ready after %v, closed after %v, ready again after %v", first, closing, time.Since(began))
	if s.Addr() != o.Listen {
		t.Errorf("it listens on %s, want %s", s.Addr(), o.Listen)
	}
	e, err := c.Get(t.Context(), "a")
	if err != nil || string(e.Data) != "1" {
		t.Errorf("after the second start: %q, %v", e.Data, err)
	}
	if strings.Contains(log.b.String(), "level=ERROR") { // nothing failed: it was closed
		t.Errorf("etcd logs errors when it is closed:\n%s", log.b.String())
	}
	if strings.Contains(log.b.String(), "level=INFO") || strings.Count(log.b.String(), "\n") > 20 {
		t.Errorf("etcd logs:\n%s", log.b.String())
	}
	for _, begin := range quiet {
		if strings.Contains(log.b.String(), begin) {
			t.Errorf("etcd warns: %q", begin)
		}
	}
}

// While a server is closed, an error of a listener that ended is no error; others stay.
func TestErrorsWhileClosing(t *testing.T) {
	var log lines
	closing := new(atomic.Bool)
	l := zap.New(&core{log: slog.New(slog.NewTextHandler(&log, nil)), closing: closing})
	accept := &net.OpError{Op: "accept", Err: net.ErrClosed}
	l.Error("first", zap.Error(accept))
	closing.Store(true)
	l.Error("second", zap.Error(accept))
	l.Warn("third", zap.Error(http.ErrServerClosed))
	l.Error("fourth", zap.Error(errors.New("mux: server closed")))
	l.Error("fifth", zap.Error(syscall.ENOSPC))
	l.Warn("sixth")
	for text, want := range map[string]bool{
		"first": true, "second": false, "third": false, "fourth": false, "fifth": true, "sixth": true,
	} {
		if got := strings.Contains(log.b.String(), "msg="+text); got != want {
			t.Errorf("%s is logged: %v, want %v:\n%s", text, got, want, log.b.String())
		}
	}
}

// A slow request is no warning for an operator; a slow disk and errors are.
func TestSlowRequestsAreQuiet(t *testing.T) {
	var log lines
	l := zap.New(&core{log: slog.New(slog.NewTextHandler(&log, nil)), closing: new(atomic.Bool)})
	l.Warn("apply request took too long")
	l.Warn("request stats")
	if log.b.Len() > 0 {
		t.Errorf("logged:\n%s", log.b.String())
	}
	l.Warn("slow fdatasync")
	l.Error("apply request took too long", zap.Error(syscall.ENOSPC))
	for _, want := range []string{"level=WARN msg=\"slow fdatasync\"", "level=ERROR msg=\"apply request"} {
		if !strings.Contains(log.b.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, log.b.String())
		}
	}
}

// A folder that another server has: an error in time, not a second server.
func TestFolderInUse(t *testing.T) {
	o := Options{Dir: coordtest.Dir(t)}
	start(t, o)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if s, err := Start(ctx, o); err == nil {
		s.Close()
		t.Error("two servers have one folder")
	}
}

func TestOptions(t *testing.T) {
	for listen, ok := range map[string]bool{
		"": true, "127.0.0.1:0": true, "[::1]:2379": true,
		"0.0.0.0:2379": false, ":2379": false, "10.0.0.1:2379": false, "x": false, "localhost:1": false,
	} {
		if err := (Options{Dir: "d", Listen: listen}).Validate(); (err == nil) != ok {
			t.Errorf("listen on %q without certificates: %v", listen, err)
		}
	}
	if err := (Options{Dir: "d", Listen: "0.0.0.0:2379", Cert: "c", Key: "k", CA: "a"}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (Options{}).Validate(); err == nil {
		t.Error("no folder is valid")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Start(t.Context(), Options{Dir: file}); err == nil {
		s.Close()
		t.Error("it starts in a file")
	}
}
