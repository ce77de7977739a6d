package app

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/compute/cuda/driver"
	"grebe/internal/config"
)

// Without a GPU, auto runs on the CPU and logs it once; cuda reports what is missing.
func TestDeviceFallsBack(t *testing.T) {
	if n, err := driver.Count(); err == nil && n > 0 {
		t.Skip("this machine has a GPU")
	}
	for device, want := range map[string]struct{ name, log, err string }{
		"cpu":  {name: "cpu"},
		"auto": {name: "cpu", log: "running on the CPU"},
		"cuda": {err: "grebe doctor"},
	} {
		var log bytes.Buffer
		d, err := OpenDevice(&config.Config{Device: device, Threads: 1}, slog.New(slog.NewTextHandler(&log, nil)))
		if want.err != "" {
			if err == nil || !strings.Contains(err.Error(), want.err) {
				t.Errorf("device %s: %v, want an error that says %q", device, err, want.err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("device %s: %v", device, err)
		}
		if !strings.HasPrefix(d.Name(), want.name) {
			t.Errorf("device %s is %s", device, d.Name())
		}
		if lines := strings.Count(log.String(), "\n"); (lines == 1) != (want.log != "") ||
			!strings.Contains(log.String(), want.log) {
			t.Errorf("device %s logs %q", device, log.String())
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// counted is a device that counts the runners opened on it.
type counted struct {
	compute.Device
	runners int
}

func (d *counted) Open(s compute.Shape, rows int) (compute.Runner, error) {
	d.runners++
	return d.Device.Open(s, rows)
}

// With two devices, three workers run on the first, the second and the first. Each has the weights on its device, and
// all share the cache.
func TestWorkersTakeTurns(t *testing.T) {
	cfg := lostConfig(t, t.TempDir(), "127.0.0.1:0")
	cfg.Workers = 3
	var all []*counted
	s, err := Load(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler),
		Open: func(*config.Config, *slog.Logger) ([]compute.Device, error) {
			var out []compute.Device
			for range 2 {
				d, err := cpu.New(cpu.Options{Threads: 1})
				if err != nil {
					return nil, err
				}
				all = append(all, &counted{Device: d})
				out = append(out, all[len(all)-1])
			}
			return out, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	if all[0].runners != 4 || all[1].runners != 2 { // two of each worker: one is for jobs in the background
		t.Errorf("%d engines on the first device and %d on the second, want 4 and 2", all[0].runners, all[1].runners)
	}
	s.server.SetReady(true)
	var first float64
	for i := range 12 { // every worker gives the same answer
		one, two := int32(10), int32(11)
		// auto goes by what was measured
		r, err := s.service.Rank(t.Context(), &grebev1.RankRequest{
			User: &grebev1.User{Id: "u", Tokens: []int32{1, 2, 3}}, DeadlineMs: 20000, Prefix: "user",
			Candidates: []*grebev1.Item{{Tokens: []int32{4}, Identifier: &one}, {Tokens: []int32{5}, Identifier: &two}}})
		if err != nil {
			t.Fatal(err)
		}
		if score := float64(r.Results[0].Score); i == 0 {
			first = score
		} else if score != first {
			t.Errorf("request %d scores %v, the first %v", i, score, first)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestNoDriverIsNoWarning(t *testing.T) {
	for library, level := range map[string]string{"NVIDIA driver (libcuda)": "INFO",
		"CUDA run-time compiler (libnvrtc)": "WARN"} {
		var out bytes.Buffer
		err := fmt.Errorf("cuda: %w", &driver.MissingError{Library: library, Remedy: "install it"})
		sayWhyCPU(err, slog.New(slog.NewTextHandler(&out, nil)))
		if !strings.Contains(out.String(), "level="+level) ||
			(level == "WARN") != strings.Contains(out.String(), "install it") {
			t.Errorf("without %s: %s", library, &out)
		}
	}
}
