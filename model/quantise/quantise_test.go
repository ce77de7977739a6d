package quantise_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/model"
	"grebe/model/modeltest"
	"grebe/model/quantise"
	_ "grebe/model/qwen"
	"grebe/model/safetensors"
)

func checkpoint(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	err := modeltest.Write(dir, modeltest.Spec{Architecture: modeltest.Qwen2, Hidden: 32, Layers: 2, Heads: 4,
		KVHeads: 2,
		Inter:   70, Vocab: 40, DType: compute.BF16, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(`{"a": 1}`), 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

// states returns the final states of a few tokens.
func states(t *testing.T, dir, weights string) []float32 {
	t.Helper()
	return statesWith(t, dir, model.Options{Weights: weights})
}

func statesWith(t *testing.T, dir string, opt model.Options) []float32 {
	t.Helper()
	d := ref.New()
	m, err := model.Open(dir, d, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	const n = 6
	s := m.Shape()
	r, err := d.Open(s, n)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	chunk := compute.Chunk{Bytes: make([]byte, s.ChunkBytes(n, false)), Tokens: n}
	b := &compute.Batch{Tokens: []int32{3, 1, 4, 1, 5, 9}, Positions: []int32{0, 1, 2, 3, 4, 5},
		Segments: []compute.Segment{{Len: n, Chunks: []compute.Chunk{chunk}}}}
	out := make([]float32, n*s.Hidden)
	if err := m.Forward(r, b, nil); err != nil {
		t.Fatal(err)
	}
	if err := m.Hidden(r, []int32{0, 1, 2, 3, 4, 5}, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// What is written computes what weights: int8 computes from the original, to the bit, and other files come along.
func TestWrittenCheckpointComputesTheSame(t *testing.T) {
	from := checkpoint(t)
	to := from + "-int8"
	r, err := quantise.Run(quantise.Options{From: from, To: to})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := states(t, to, "auto"), states(t, from, "int8"); !slices.Equal(got, want) {
		t.Errorf("states differ: %v…, want %v…", got[:4], want[:4])
	}
	if raw, err := os.ReadFile(filepath.Join(to, "tokenizer.json")); err != nil || string(raw) != `{"a": 1}` {
		t.Errorf("tokenizer.json: %s, %v", raw, err)
	}
	set, err := safetensors.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	if r.After != set.Bytes() || r.After >= r.Bytes || r.Kept != 0 {
		t.Errorf("report %+v, the checkpoint has %d bytes", r, set.Bytes())
	}
	for _, l := range r.Layers {
		for _, e := range []float64{l.QKV, l.Out, l.GateUp, l.Down} {
			if !(e > 1e-3 && e < 0.02) { // a step of 1/127 of the largest over √12, for normal values
				t.Errorf("layer %+v has an error of %v", l, e)
			}
		}
	}
	if _, err := quantise.Run(quantise.Options{From: to}); err == nil || !strings.Contains(err.Error(),
		"quantised already") {
		t.Errorf("a quantised checkpoint was quantised: %v", err)
	}
	if _, err := quantise.Run(quantise.Options{From: from, To: to}); err == nil || !strings.Contains(err.Error(),
		"exists already") {
		t.Errorf("a folder was overwritten: %v", err)
	}
}

// Kept matrices are stored as they were, those of their product with them, and are named in the ignore list.
func TestKeep(t *testing.T) {
	from := checkpoint(t)
	to := from + "-int8"
	r, err := quantise.Run(quantise.Options{From: from, To: to, Keep: []string{`layers\.1\..*k_proj`, `0\.mlp\.down`}})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(r.Layers[1].Kept, []string{"qkv"}) || !slices.Equal(r.Layers[0].Kept, []string{"down"}) ||
		!(r.Kept > 0.1 && r.Kept < 0.5) {
		t.Errorf("report %+v", r)
	}
	before, err := safetensors.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	after, err := safetensors.Open(to)
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	for _, name := range before.Names() {
		kept := !strings.HasSuffix(name, "_proj.weight") || strings.Contains(name, "1.self_attn") &&
			!strings.Contains(name, "o_proj") ||
			strings.Contains(name, "0.mlp.down")
		info, _ := after.Lookup(name)
		if (info.DType == "BF16") != kept || (info.DType == "I8") == kept {
			t.Errorf("%s is %s, kept: %v", name, info.DType, kept)
		}
		a, err1 := before.Raw(name)
		b, err2 := after.Raw(name)
		if err1 != nil || err2 != nil || kept && !bytes.Equal(a, b) {
			t.Errorf("%s changed: %v, %v", name, err1, err2)
		}
	}
	raw, err := os.ReadFile(filepath.Join(to, model.ConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Quantisation struct {
			Ignore []string `json:"ignore"`
		} `json:"quantization_config"`
	}
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	want := []string{"lm_head", "model.layers.0.mlp.down_proj", "model.layers.1.self_attn.k_proj",
		"model.layers.1.self_attn.q_proj",
		"model.layers.1.self_attn.v_proj"}
	if !slices.Equal(config.Quantisation.Ignore, want) {
		t.Errorf("ignored are %v, want %v", config.Quantisation.Ignore, want)
	}
	states(t, to, "auto")
}

func TestRefuses(t *testing.T) {
	from := checkpoint(t)
	if _, err := quantise.Run(quantise.Options{From: from, Keep: []string{"("}}); err == nil ||
		!strings.Contains(err.Error(), "keep") {
		t.Errorf("a broken pattern: %v", err)
	}
	if _, err := quantise.Run(quantise.Options{From: t.TempDir()}); err == nil {
		t.Error("an empty folder was quantised")
	}
	set, err := safetensors.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	var list []safetensors.Named
	const bad = "model.layers.1.mlp.up_proj.weight"
	for _, name := range set.Names() {
		info, _ := set.Lookup(name)
		raw, err := set.Raw(name)
		if err != nil {
			t.Fatal(err)
		}
		data := slices.Clone(raw)
		if name == bad {
			copy(data, safetensors.Encode(nil, compute.BF16, float32(math.NaN())))
		}
		list = append(list, safetensors.Named{Name: name, DType: compute.BF16, Shape: info.Shape,
			Data: safetensors.Bytes(data)})
	}
	if err := set.Close(); err != nil {
		t.Fatal(err)
	}
	if err := safetensors.Write(filepath.Join(from, safetensors.SingleFile), list); err != nil {
		t.Fatal(err)
	}
	to := from + "-int8"
	if _, err := quantise.Run(quantise.Options{From: from, To: to}); err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("error %v does not name %s", err, bad)
	}
	if _, err := os.Stat(to); !os.IsNotExist(err) {
		t.Errorf("%s was left behind: %v", to, err)
	}
}
