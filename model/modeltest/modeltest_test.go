package modeltest

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"testing"

	"grebe/compute"
	"grebe/model/safetensors"
)

func spec(dt compute.DType) Spec {
	return Spec{Architecture: Llama, Hidden: 64, Layers: 1, Heads: 4, KVHeads: 2, Inter: 96, Vocab: 2000, DType: dt,
		Seed: 3, Bias: true}
}

func TestSameSpecSameBytes(t *testing.T) {
	read := func(s Spec) []byte {
		dir := t.TempDir()
		if err := Write(dir, s); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(dir, safetensors.SingleFile))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	first := read(spec(compute.BF16))
	if !bytes.Equal(first, read(spec(compute.BF16))) {
		t.Error("the same spec gave other bytes")
	}
	other := spec(compute.BF16)
	other.Seed++
	if bytes.Equal(first, read(other)) {
		t.Error("another seed gave the same bytes")
	}
}

// The values have the mean and deviation they are meant to have, in tensors drawn by either way.
func TestDistribution(t *testing.T) {
	for _, dt := range []compute.DType{compute.F32, compute.BF16, compute.F16} {
		dir := t.TempDir()
		if err := Write(dir, spec(dt)); err != nil {
			t.Fatal(err)
		}
		s, err := safetensors.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for name, want := range map[string][2]float64{
			"model.embed_tokens.weight":             {0, 0.25},
			"lm_head.weight":                        {0, 0.25},
			"model.layers.0.mlp.up_proj.weight":     {0, 1.0 / 8},
			"model.layers.0.input_layernorm.weight": {1, 0.1},
		} {
			v, err := s.Tensor(name)
			if err != nil {
				t.Fatal(err)
			}
			mean, dev := moments(safetensors.Floats(v))
			slack := 6 * want[1] / math.Sqrt(float64(v.Rows*v.Cols))
			if math.Abs(mean-want[0]) > slack || math.Abs(dev-want[1]) > slack {
				t.Errorf("%v %s: mean %.4f deviation %.4f, want %v", dt, name, mean, dev, want)
			}
		}
	}
}

func moments(values []float32) (mean, dev float64) {
	n := float64(len(values))
	for _, v := range values {
		mean += float64(v) / n
	}
	for _, v := range values {
		dev += (float64(v) - mean) * (float64(v) - mean) / n
	}
	return mean, math.Sqrt(dev)
}

func TestWriteRefusesBadSpec(t *testing.T) {
	s := spec(compute.F32)
	s.KVHeads = 3
	if err := Write(t.TempDir(), s); err == nil {
		t.Error("4 heads in 3 groups were written")
	}
}

func TestQwen2HalfSize(t *testing.T) {
	s := Qwen2Half()
	s.fill()
	params := 0
	for _, w := range s.tensors() {
		n := 1
		for _, d := range w.Shape {
			n *= d
		}
		params += n
	}
	if params != 494032768 {
		t.Errorf("%d parameters, Qwen2-0.5B has 494032768", params)
	}
}
