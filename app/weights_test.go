package app

import (
	"context"
	"testing"

	"grebe/compute"
	"grebe/internal/config"
	"grebe/model/modeltest"
	"grebe/plan"
)

// TestWeightsAreInTheVersion: KV of different weights never mixes, and KV from before there was a choice stays in use.
func TestWeightsAreInTheVersion(t *testing.T) {
	dir := t.TempDir()
	spec := modeltest.Spec{Architecture: modeltest.Qwen2, Hidden: 16, Layers: 1, Heads: 2, KVHeads: 1, Inter: 8,
		Vocab: 10,
		DType: compute.BF16}
	if err := modeltest.Write(dir, spec); err != nil {
		t.Fatal(err)
	}
	seen := map[plan.Key]string{}
	version := func(weights string) plan.Key {
		v, err := checkpointVersion(context.Background(), &config.Config{},
			&config.Model{Path: dir, DType: "auto", KVDType: "auto", Weights: weights})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, w := range []string{"auto", "bf16", "int8", "fp8"} {
		v := version(w)
		if other, ok := seen[v]; ok {
			t.Errorf("weights %s and %s have the same version", w, other)
		}
		seen[v] = w
	}
	if version("") != version("auto") {
		t.Error("auto is not the version of a configuration without weights")
	}
}
