package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/internal/config"
	"grebe/internal/datadir"
	"grebe/model/modeltest"
	"grebe/model/quantise"
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
	if !slices.Equal(again, keep) || same != version || !strings.Contains(w.log.String(), "of an earlier start") {
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

// A model reads all rows if it searches for items, or shares its weights with one that does, also while one of them is
// reloaded from another folder.
func TestReadRows(t *testing.T) {
	codes := config.Codes{FirstToken: []int32{1}, Size: []int32{2}}
	cfg := &config.Config{Models: []config.Model{{Name: "search", Path: "a", Codes: codes}, {Name: "rank", Path: "a"},
		{Name: "other", Path: "b"}}}
	reloaded := cfg.Models[1]
	reloaded.Path = "c"
	for want, models := range map[float64][]config.Model{1: {cfg.Models[0], cfg.Models[1], reloaded},
		quantise.RankedRows: {cfg.Models[2]}} {
		for i := range models {
			if got := readRows(cfg, &models[i]); got != want {
				t.Errorf("%s from %s reads %v of the rows, want %v", models[i].Name, models[i].Path, got, want)
			}
		}
	}
}

// Prompts of a calibration are the items' texts, or their tokens as far as the vocabulary has them.
func TestCalibrationPrompts(t *testing.T) {
	dir := t.TempDir()
	spec := modeltest.Spec{Architecture: modeltest.Qwen2, Hidden: 16, Layers: 1, Heads: 2, KVHeads: 1, Inter: 8, Vocab: 10,
		DType: compute.BF16}
	if err := modeltest.Write(dir, spec); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "items.ndjson")
	lines := `{"id":"a","tokens":[3,4]}` + "\nno JSON\n" + `{"id":"b","tokens":[10,5,-1]}` + "\n"
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	prompts, err := CalibrationPrompts(dir, file)
	if err != nil || !slices.Equal(prompts[0][:4], []int32{3, 4, 5, 3}) {
		t.Errorf("prompts %v, %v", prompts, err)
	}
	if prompts, err = CalibrationPrompts(dir, ""); err != nil || len(prompts) != 4 {
		t.Errorf("without items: %v, %v", prompts, err)
	}
	if _, err := CalibrationPrompts(dir, file+"x"); err == nil {
		t.Error("a missing file is no error")
	}
}
