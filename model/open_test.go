package model_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/model"
	_ "grebe/model/llama"
	"grebe/model/modeltest"
	_ "grebe/model/qwen"
	"grebe/model/safetensors"
)

func spec() modeltest.Spec {
	return modeltest.Spec{
		Architecture: modeltest.Qwen2, Hidden: 16, Layers: 2, Heads: 4, KVHeads: 2, Inter: 24, Vocab: 30, Seed: 1,
	}
}

func write(t *testing.T, s modeltest.Spec) string {
	t.Helper()
	dir := t.TempDir()
	if err := modeltest.Write(dir, s); err != nil {
		t.Fatal(err)
	}
	return dir
}

// rewrite changes the tensors of a checkpoint.
func rewrite(t *testing.T, dir string, change func([]safetensors.Named) []safetensors.Named) {
	t.Helper()
	s, err := safetensors.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var list []safetensors.Named
	for _, name := range s.Names() {
		info, _ := s.Lookup(name)
		v, err := s.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, safetensors.Named{Name: name, DType: v.DType, Shape: info.Shape, Data: safetensors.Bytes(v.Data)})
	}
	if err := safetensors.Write(filepath.Join(dir, safetensors.SingleFile), change(list)); err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

func TestOpenChoosesDType(t *testing.T) {
	for _, c := range []struct {
		stored compute.DType
		ask    string
		want   compute.DType
	}{
		{compute.BF16, "", compute.BF16}, {compute.BF16, "auto", compute.BF16}, {compute.BF16, "f32", compute.F32},
		{compute.F32, "auto", compute.F32}, {compute.F32, "bf16", compute.BF16},
		{compute.F16, "auto", compute.F32}, {compute.F16, "bf16", compute.BF16},
	} {
		s := spec()
		s.DType = c.stored
		for kv, want := range map[string]compute.DType{"": c.want, "auto": c.want, "f32": compute.F32, "bf16": compute.BF16,
			"fp8": compute.FP8} {
			m, err := model.Open(write(t, s), ref.New(), model.Options{DType: c.ask, KV: kv})
			if err != nil {
				t.Fatal(err)
			}
			if m.DType() != c.want || m.Shape().KV != want {
				t.Errorf("%v opened as %q with KV as %q computes in %v with %v", c.stored, c.ask, kv, m.DType(), m.Shape().KV)
			}
			m.Close()
		}
	}
	_, err := model.Open(write(t, spec()), ref.New(), model.Options{DType: "fp8"})
	wantError(t, err, `"fp8"`)
	_, err = model.Open(write(t, spec()), ref.New(), model.Options{KV: "int8"})
	wantError(t, err, `kv_dtype "int8"`)
}

func TestOpenReportsProgress(t *testing.T) {
	var last, total int64
	m, err := model.Open(write(t, spec()), ref.New(), model.Options{Progress: func(done, all int64) {
		if done <= last || done > all {
			t.Errorf("%d of %d after %d", done, all, last)
		}
		last, total = done, all
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if last != total || total != m.CheckpointBytes() {
		t.Errorf("progress ended at %d of %d, the checkpoint has %d bytes", last, total, m.CheckpointBytes())
	}
	if m.Bytes() <= 0 || m.Vocab() != 30 || m.MaxPositions() != 4096 || m.Shape().HeadDim != 4 {
		t.Errorf("%d bytes, vocabulary %d, positions %d, shape %+v", m.Bytes(), m.Vocab(), m.MaxPositions(), m.Shape())
	}
}

func TestOpenUnknownArchitecture(t *testing.T) {
	dir := write(t, spec())
	path := filepath.Join(dir, model.ConfigFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c := map[string]any{}
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	c["architectures"] = []string{"GPT2LMHeadModel"}
	raw, _ = json.Marshal(c)
	if err := os.WriteFile(path, raw, 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = model.Open(dir, ref.New(), model.Options{})
	wantError(t, err, dir, "GPT2LMHeadModel", "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM")
}

// Each tensor of each architecture is missed when it is not there, and refused when its shape is wrong.
func TestOpenNeedsEveryTensor(t *testing.T) {
	for _, architecture := range []string{modeltest.Qwen2, modeltest.Qwen3, modeltest.Llama} {
		s := spec()
		s.Architecture, s.Layers, s.Bias = architecture, 1, true
		dir := write(t, s)
		set, err := safetensors.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		names := set.Names()
		set.Close()
		for _, name := range names {
			broken := write(t, s)
			rewrite(t, broken, func(list []safetensors.Named) []safetensors.Named {
				return slices.DeleteFunc(list, func(n safetensors.Named) bool { return n.Name == name })
			})
			_, err := model.Open(broken, ref.New(), model.Options{})
			wantError(t, err, broken, strings.TrimPrefix(name, "model."), "missing")
			rewrite(t, dir, func(list []safetensors.Named) []safetensors.Named {
				i := slices.IndexFunc(list, func(n safetensors.Named) bool { return n.Name == name })
				list[i].Shape = append([]int{1}, list[i].Shape...)
				return list
			})
			_, err = model.Open(dir, ref.New(), model.Options{})
			wantError(t, err, safetensors.SingleFile, name, "has shape [1 ", "want [")
			dir = write(t, s)
		}
	}
}

func TestOpenMissingFiles(t *testing.T) {
	dir := t.TempDir()
	_, err := model.Open(dir, ref.New(), model.Options{})
	wantError(t, err, model.ConfigFile)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v is not ErrNotExist", err)
	}
	full := write(t, spec())
	os.Remove(filepath.Join(full, safetensors.SingleFile))
	_, err = model.Open(full, ref.New(), model.Options{})
	wantError(t, err, full, safetensors.SingleFile)
}

func TestOpenTruncated(t *testing.T) {
	dir := write(t, spec())
	path := filepath.Join(dir, safetensors.SingleFile)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, st.Size()-1); err != nil {
		t.Fatal(err)
	}
	_, err = model.Open(dir, ref.New(), model.Options{})
	wantError(t, err, path, "truncated", "lm_head.weight")
}
