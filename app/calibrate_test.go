package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/internal/config"
	"grebe/internal/datadir"
	"grebe/plan"
)

// weights_keep: [auto] calibrates once, logs what it keeps and why, and keeps the same at the next start.
func TestCalibratedWeights(t *testing.T) {
	w := newReloadWorld(t, config.Setting{Path: "models[0].weights", Value: "int8"},
		config.Setting{Path: "models[0].weights_keep", Value: "[auto]"})
	open := func() (keep []string, version plan.Key) {
		t.Helper()
		a, err := Load(t.Context(), w.cfg, Options{Log: slog.New(slog.NewTextHandler(w.log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		m := a.loaded.of("m")[0]
		keep, version = m.keep, m.version
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		return keep, version
	}
	keep, version := open()
	log := w.log.String()
	if len(keep) == 0 || !strings.Contains(log, "weights calibrated") || !strings.Contains(log, "layer ") {
		t.Errorf("kept %q, log %s", keep, log)
	}
	files, err := os.ReadDir(datadir.Calibrations(w.cfg.DataDir))
	if err != nil || len(files) != 1 {
		t.Fatalf("files of calibrations: %v, %v", files, err)
	}
	again, same := open()
	if !slices.Equal(again, keep) || same != version || !strings.Contains(w.log.String(), "at an earlier start") {
		t.Errorf("kept %q in %s at the second start, %q in %s before", again, same, keep, version)
	}
	// A damaged note is made again. Other matrices are another version.
	note := filepath.Join(datadir.Calibrations(w.cfg.DataDir), files[0].Name())
	if err := os.WriteFile(note, []byte(`["lay`), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, same = open(); !slices.Equal(again, keep) || same != version {
		t.Errorf("kept %q in %s with a damaged note, %q in %s before", again, same, keep, version)
	}
	if err := os.WriteFile(note, []byte(`["layers\\.1\\.mlp\\.down_proj"]`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, same = open(); same == version {
		t.Error("KV of other matrices in 8 bits has the same version")
	}
}
