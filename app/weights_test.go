package app

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
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
	versionOn := func(weights string, d compute.Device) plan.Key {
		v, err := checkpointVersion(context.Background(), &config.Config{},
			&config.Model{Path: dir, DType: "auto", KVDType: "auto", Weights: weights}, d)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	version := func(weights string) plan.Key { return versionOn(weights, nil) }
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
	if versionOn("auto", computesIn(compute.INT8)) != version("auto") {
		t.Error("weights of 16 bits have another version on another device")
	}
	addQuantisation(t, dir)
	for _, w := range []string{"auto", "fp8"} {
		none, int8, fp8 := version(w), versionOn(w, computesIn(compute.INT8)), versionOn(w, computesIn(compute.FP8))
		if none == int8 || none == fp8 || int8 == fp8 {
			t.Errorf("weights %s: stored in 8 bits, they have the same version on devices that compute in other formats", w)
		}
	}
	if version("bf16") != versionOn("bf16", computesIn(compute.FP8)) {
		t.Error("expanded weights have another version on another device")
	}
}

// eightDevice computes in one format of 8 bits.
type eightDevice struct {
	compute.Device
	dt compute.DType
}

func computesIn(dt compute.DType) compute.Device { return eightDevice{dt: dt} }

func (d eightDevice) Quantises(dt compute.DType) bool { return dt == d.dt }

// addQuantisation has a checkpoint say that its weights are stored in 8 bits.
func addQuantisation(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "config.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	raw = bytes.Replace(raw, []byte("{"), []byte(`{"quantization_config": {"quant_method": "fp8"},`), 1)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}
