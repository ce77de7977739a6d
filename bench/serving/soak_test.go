package serving

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"grebe/app"
	"grebe/internal/config"
)

// serve serves what Make wrote, on the CPU, until the test ends, and returns the address.
func serve(t *testing.T, dir string, settings ...config.Setting) string {
	t.Helper()
	settings = append([]config.Setting{
		{Path: "device", Value: "cpu"}, {Path: "threads", Value: "1"}, {Path: "listen", Value: "127.0.0.1:0"},
		{Path: "admin_listen", Value: ""}, {Path: "grpc_listen", Value: ""}, {Path: "slo_ms", Value: "60000"},
		{Path: "reload.trial_ms", Value: "0"},
	}, settings...)
	loaded, err := config.Load(config.Source{File: dir + "/" + configFile, Flags: settings})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ready, done := make(chan net.Addr, 1), make(chan error, 1)
	go func() {
		done <- app.Serve(ctx, &loaded.Config, app.Options{Log: slog.New(slog.DiscardHandler)},
			app.Process{Started: time.Now(), Ready: func(a net.Addr) { ready <- a }})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case a := <-ready:
		return "http://" + a.String()
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return ""
}

// made writes files of a tiny model.
func made(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := Make(dir, Files{Shape: "tiny", Items: 300, Codes: 8, Users: 20, Memory: "64MiB"}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Beside the load another checkpoint and other items come to serve, and the server's memory is reported.
func TestSoak(t *testing.T) {
	dir := made(t)
	o := SoakOptions{Options: Options{URL: serve(t, dir), Users: 20, Width: 8, Rates: []float64{5}, Items: 300,
		Length: 3 * time.Second, Warmup: time.Millisecond, SLO: time.Minute}, Folder: dir, Reload: 900 * time.Millisecond,
		Swap: 700 * time.Millisecond, Change: 50}
	s, err := Soak(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Err(); err != nil {
		t.Error(err)
	}
	if s.Reloads.Done < 2 || len(s.Versions) != 2 || s.Swaps.Done < 2 || s.Requests == 0 {
		t.Errorf("%+v; want two reloads or more to two versions, two swaps or more, and requests", s)
	}
	if len(s.Memory) != 1 || s.Memory[0].Name != "resident" || s.Memory[0].End == 0 {
		t.Errorf("memory %+v, want that of the process", s.Memory)
	}
}

// A reload that the server refuses, because the files are not what its configuration names, is an error.
func TestSoakOfAnotherFolder(t *testing.T) {
	o := SoakOptions{Options: Options{URL: serve(t, made(t)), Users: 20, Width: 8, Rates: []float64{5}, Items: 300,
		Length: time.Second, Warmup: time.Millisecond, SLO: time.Minute}, Folder: made(t), Reload: 300 * time.Millisecond,
		Swap: 500 * time.Millisecond, Change: 50}
	s, err := Soak(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Err(); s.Reloads.Done > 0 || s.Reloads.Failed == 0 || err == nil || !strings.Contains(err.Error(), "409") {
		t.Errorf("%+v: %v, want reloads that were refused", s.Reloads, err)
	}
	o.Folder = t.TempDir()
	if _, err := Soak(t.Context(), o); err == nil {
		t.Error("a soak without a configuration runs")
	}
}

// Memory is flat by what was in use without reloads, and by medians.
func TestMemoryOfASoak(t *testing.T) {
	var samples []sample
	for i := range 100 {
		s := sample{calm: i%7 != 0, bytes: [len(kinds)]int64{1 << 30, 0}}
		if !s.calm {
			s.bytes[0] = 4 << 30
		}
		samples = append(samples, s)
	}
	m := summarise(samples)
	if want := (Memory{"resident", 1 << 30, 1 << 30, 1 << 30, 4 << 30}); len(m) != 1 || m[0] != want || !m[0].Flat() {
		t.Errorf("%+v, want %+v", m, want)
	}
	for i := range samples[60:] {
		samples[60+i].bytes[0] += 1 << 28
	}
	if m = summarise(samples); m[0].Flat() || (&Soaked{Memory: m}).Err() == nil {
		t.Errorf("%+v passes for flat", m)
	}
}
