package app

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"grebe/app/apptest"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/internal/config"
)

// A server that is loading is live but not ready. It answers as soon as it is ready.
func TestLiveWhileLoading(t *testing.T) {
	cfg := lostConfig(t, t.TempDir(), apptest.FreeAddress(t))
	at := "http://" + cfg.Listen
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	opening, ready, served := make(chan struct{}), make(chan net.Addr, 1), make(chan error, 1)
	loading := make(chan struct{})
	go func() {
		served <- Serve(ctx, cfg, Options{Log: slog.New(slog.DiscardHandler),
			Open: func(*config.Config, *slog.Logger) ([]compute.Device, error) {
				close(loading)
				<-opening
				d, err := cpu.New(cpu.Options{Threads: 1})
				return []compute.Device{d}, err
			}}, Process{Started: time.Now(), Ready: func(at net.Addr) { ready <- at }})
	}()
	<-loading
	for path, want := range map[string]int{"/v2/health/live": 200, "/livez": 200, "/v2/health/ready": 503, "/readyz": 503,
		"/v1/models": 503} {
		resp, err := http.Get(at + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want || (want == 503) != (resp.Header.Get("Retry-After") != "") {
			t.Errorf("%s while loading: %d, Retry-After %q", path, resp.StatusCode, resp.Header.Get("Retry-After"))
		}
	}
	close(opening)
	select {
	case at := <-ready:
		if body, status := rankAt(t, at); status != http.StatusOK {
			t.Errorf("once it is ready: %d %s", status, body)
		}
	case err := <-served:
		t.Fatalf("serving ended: %v", err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := http.Get(at + "/livez"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("after the end: %v", err)
	}
}
