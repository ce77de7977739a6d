package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"grebe/compute/cuda/driver"
	"grebe/internal/config"
)

// TestDeviceFallsBack: without a GPU, auto runs on the CPU and says so once; cuda says what is missing.
func TestDeviceFallsBack(t *testing.T) {
	if n, err := driver.Count(); err == nil && n > 0 {
		t.Skip("this machine has a GPU")
	}
	for device, want := range map[string]struct{ name, log, err string }{
		"cpu":  {name: "cpu"},
		"auto": {name: "cpu", log: "using the CPU"},
		"cuda": {err: "grebe doctor"},
	} {
		var log bytes.Buffer
		d, err := openDevice(&config.Config{Device: device, Threads: 1}, slog.New(slog.NewTextHandler(&log, nil)))
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
		if lines := strings.Count(log.String(), "\n"); (lines == 1) != (want.log != "") || !strings.Contains(log.String(), want.log) {
			t.Errorf("device %s logs %q", device, log.String())
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
