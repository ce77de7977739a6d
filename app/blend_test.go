package app

import (
	"os"
	"path/filepath"
	"testing"

	"grebe/blend"
	"grebe/internal/config"
)

// Benchmarks of blending use package blend's constants as the served defaults. The configuration, which may not import
// that package, has the same values.
func TestBlendIsMeasuredAsServed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "grebe.yaml")
	if err := os.WriteFile(file, []byte("models:\n  - path: x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{File: file})
	if err != nil {
		t.Fatal(err)
	}
	if b := cfg.Models[0].Blend; b.Layers != blend.WholeLayers || b.DriftLimit != blend.DriftLimit {
		t.Errorf("by default %d layers and a limit of %v, measured with %d and %v", b.Layers, b.DriftLimit, blend.WholeLayers,
			blend.DriftLimit)
	}
}
