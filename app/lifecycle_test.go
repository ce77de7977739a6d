package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/internal/config"
)

// After its device is lost, a server reopens the checkpoint that it served, not the one it was started with. The same
// holds after a rollback.
func TestALostDeviceKeepsTheReloadedCheckpoint(t *testing.T) {
	w := newReloadWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var device atomic.Pointer[frail]
	ready, served := make(chan net.Addr, 1), make(chan error, 1)
	go func() {
		served <- Serve(ctx, w.cfg, Options{Log: slog.New(slog.NewTextHandler(w.log, nil)),
			Open: func(*config.Config, *slog.Logger) ([]compute.Device, error) {
				d, err := cpu.New(cpu.Options{Threads: 1})
				f := &frail{d, new(atomic.Bool)}
				device.Store(f)
				return []compute.Device{f}, err
			}}, Process{Started: time.Now(), Ready: func(at net.Addr) { ready <- at }})
	}()
	next := func() {
		t.Helper()
		select {
		case at := <-ready:
			w.url = "http://" + at.String()
		case err := <-served:
			t.Fatalf("serving ended: %v\n%s", err, w.log)
		}
	}
	lose := func() {
		t.Helper()
		device.Load().lost.Store(true)
		if status, text, err := w.post("/v1/rank", `{"user":{"id":"u1"},"candidates":[{"id":"i1"}]}`); err != nil ||
			status != http.StatusServiceUnavailable {
			t.Fatalf("on a lost device: %d %s %v", status, text, err)
		}
		next()
	}
	next()
	before, err := w.answer(0)
	if err != nil {
		t.Fatal(err)
	}
	w.point(t, "b")
	if status, model := w.reload(t, "reload"); status != http.StatusAccepted || model.Reload.State != "done" {
		t.Fatalf("%d %s\n%s", status, model.text, w.log)
	}
	w.point(t, "a") // a later target of the link is for the next reload
	reloaded, err := w.answer(0)
	if err != nil || reloaded == before {
		t.Fatalf("the reloaded checkpoint answers as the one before: %v", err)
	}
	lose()
	if got, err := w.answer(0); err != nil || got != reloaded {
		t.Errorf("after a lost device %s, %v; the reloaded checkpoint answered %s", got, err, reloaded)
	}
	if status, model := w.reload(t, "reload"); status != http.StatusAccepted || model.Reload.State != "done" {
		t.Fatalf("reloading what the link names: %d %s", status, model.text)
	}
	if got, err := w.answer(0); err != nil || got != before {
		t.Errorf("reloaded: %s, %v, want %s", got, err, before)
	}
	lose()
	if got, err := w.answer(0); err != nil || got != before {
		t.Errorf("after another loss: %s, %v, want %s", got, err, before)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
}

// Two checkpoints are not opened at once: the second checks for free memory after the first has taken its part.
func TestCheckpointsAreOpenedOneByOne(t *testing.T) {
	w := newReloadWorld(t)
	w.serve(t)
	w.point(t, "b")
	l := w.stack.loader
	looks, goOn := make(chan struct{}, 2), make(chan struct{})
	l.free = func(d compute.Device) int64 {
		looks <- struct{}{}
		<-goOn
		return 0 // refused
	}
	refused := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := l.Open(context.Background(), "m", func(int64, int64) {})
			refused <- err
		}()
	}
	<-looks
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Open(ctx, "m", func(int64, int64) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("who stops waiting for its turn gets %v", err)
	}
	for range 1000 { // the other one has every chance to get this far
		runtime.Gosched()
	}
	if len(looks) > 0 {
		t.Error("two checkpoints are opened at once")
	}
	close(goOn)
	for range 2 {
		if err := <-refused; err == nil {
			t.Error("a checkpoint is opened without memory")
		}
	}
}

// Loading ends when its context does, at any stage.
func TestLoadingObeysItsContext(t *testing.T) {
	w := newReloadWorld(t)
	w.serve(t)
	w.point(t, "b")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last float64
	_, err := w.stack.loader.Open(ctx, "m", func(done, total int64) {
		cancel()
		last = float64(done) / float64(total)
	})
	if !errors.Is(err, context.Canceled) || last > 0.9 {
		t.Errorf("stopped at the first matrix: %v after %.0f %%", err, 100*last)
	}
	if n := len(w.stack.loaded.of("m")); n != 1 {
		t.Errorf("%d checkpoints are loaded", n)
	}
	if _, err := checkpointVersion(ctx, w.cfg, &config.Model{Path: filepath.Join(w.dir, "b")}, nil); !errors.Is(err,
		context.Canceled) {
		t.Errorf("the digest of a checkpoint: %v", err)
	}
	if _, err := w.answer(0); err != nil {
		t.Error(err)
	}
}

// A store that is closed when no time is left writes nothing more.
func TestClosingIsBounded(t *testing.T) {
	var l models
	ctx, cancel := l.closing()
	if _, bounded := ctx.Deadline(); bounded {
		t.Error("closing is bounded though nobody said so")
	}
	cancel()
	l.closeBy.Store(time.Now().Add(-time.Second).UnixNano())
	ctx, cancel = l.closing()
	defer cancel()
	if ctx.Err() == nil {
		t.Error("there is time left after the end")
	}
}
