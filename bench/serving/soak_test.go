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
	for err == nil && s.Err() != nil && strings.Contains(s.Err().Error(), "run longer") && o.Length < 20*time.Second {
		o.Length *= 2 // on a machine with much else to do, reloads leave less time between them
		s, err = Soak(t.Context(), o)
	}
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

// samplesOf are samples of the resident memory in MiB, of which every seventh is taken during a reload.
func samplesOf(n int, mib func(i int) float64) []sample {
	var out []sample
	for i := range n {
		s := sample{calm: i%7 != 0, bytes: [len(kinds)]int64{int64(mib(i) * (1 << 20)), 0}}
		if !s.calm {
			s.bytes[0] = 8 << 30
		}
		out = append(out, s)
	}
	return out
}

// Memory is judged by its medians while no reload runs, from the middle of the time to its end.
func TestMemoryOfASoak(t *testing.T) {
	m := summarise(samplesOf(100, func(int) float64 { return 1024 }))
	want := Memory{Name: "resident", Samples: 85, Start: 1 << 30, Middle: 1 << 30, End: 1 << 30, Most: 8 << 30}
	if len(m) != 1 || m[0] != want || m[0].err() != nil {
		t.Errorf("%+v, want %+v", m, want)
	}
	for _, c := range []struct {
		what string
		mib  func(i int) float64
		n    int
		grew string // words of the error; none: flat
	}{
		{"it grows at the start only", func(i int) float64 { return 1800 + 200*min(1, float64(i)/30) }, 100, ""},
		{"it shrinks", func(i int) float64 { return 3000 - 5*float64(i) }, 100, ""},
		{"one sample is large", func(i int) float64 { return 2000 + 500*float64(i/99) }, 100, ""},
		{"it saws between collections", func(i int) float64 { return 2000 + 20*float64(i%5) }, 100, ""},
		{"less than 2 %", func(i int) float64 { return 4000 + 0.8*float64(i) }, 100, ""},
		{"little of a small process", func(i int) float64 { return 200 + 0.3*float64(i) }, 100, ""},
		{"it grows by 4 %", func(i int) float64 { return 2000 + 2*float64(i) }, 100, "grew by"},
		{"it grows behind the middle", func(i int) float64 { return 2000 + 200*float64(i/70) }, 100, "grew by"},
		{"too short", func(int) float64 { return 1000 }, 9, "run longer"},
		{"no sample is calm", func(int) float64 { return 1000 }, 1, "run longer"},
	} {
		m := summarise(samplesOf(c.n, c.mib))
		err := (&Soaked{Memory: m, Reloads: Changes{Done: 1}, Swaps: Changes{Done: 1}}).Err()
		if len(m) != 1 || (err == nil) != (c.grew == "") || err != nil && !strings.Contains(err.Error(), c.grew) {
			t.Errorf("%s: %+v: %v, want %q", c.what, m, err, c.grew)
		}
	}
}
