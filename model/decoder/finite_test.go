package decoder_test

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/model"
	"grebe/model/modeltest"
	"grebe/model/safetensors"
)

// FP8 has no infinity: keys and values of a broken checkpoint would be large numbers, and its scores look right. So it
// is refused, by the tensor's name; KV in other formats makes scores that are no numbers, which the server refuses.
func TestKVInFP8TakesFiniteWeights(t *testing.T) {
	for _, c := range []struct {
		spec   string
		tensor string
	}{
		{"qwen2", "layers.1.self_attn.v_proj.weight"}, {"qwen2", "layers.2.self_attn.k_proj.bias"},
		{"qwen3 biased, tied, one kv head", "layers.0.self_attn.k_norm.weight"},
		{"llama3", "layers.2.self_attn.k_proj.weight"},
		{"llama3", "layers.0.input_layernorm.weight"},
	} {
		for _, bad := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
			dir, spec := t.TempDir(), specs[c.spec]()
			if err := modeltest.Write(dir, spec); err != nil {
				t.Fatal(err)
			}
			open := func(kv string) error {
				m, err := model.Open(dir, ref.New(), model.Options{KV: kv})
				if err == nil {
					err = m.Close()
				}
				return err
			}
			if err := open("fp8"); err != nil {
				t.Fatalf("%s before: %v", c.spec, err)
			}
			spoil(t, filepath.Join(dir, safetensors.SingleFile), "model."+c.tensor, float32(bad))
			if err := open("fp8"); err == nil || !strings.Contains(err.Error(), c.tensor) ||
				!strings.Contains(err.Error(), "value 1 is") {
				t.Errorf("%s: %s is %v: %v", c.spec, c.tensor, bad, err)
			}
			if err := open("f32"); err != nil {
				t.Errorf("%s, KV in f32: %v", c.spec, err)
			}
		}
	}
}

// spoil changes the second value of a tensor of a file.
func spoil(t *testing.T, file, name string, value float32) {
	t.Helper()
	set, err := safetensors.OpenFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var list []safetensors.Named
	found := false
	for _, n := range set.Names() {
		info, _ := set.Lookup(n)
		v, err := set.Flat(n)
		if err != nil {
			t.Fatal(err)
		}
		data := slices.Clone(v.Data)
		if n == name {
			found = true
			copy(data[v.DType.Size():], encode(v.DType, value))
		}
		list = append(list, safetensors.Named{Name: n, DType: v.DType, Shape: info.Shape, Data: safetensors.Bytes(data)})
	}
	if err := set.Close(); err != nil || !found {
		t.Fatalf("%s has no %s: %v", file, name, err)
	}
	if err := safetensors.Write(file, list); err != nil {
		t.Fatal(err)
	}
}

func encode(dt compute.DType, v float32) []byte {
	if dt != compute.F16 {
		return safetensors.Encode(nil, dt, v)
	}
	switch { // what is not finite alone
	case v != v:
		return []byte{1, 0x7c}
	case v > 0:
		return []byte{0, 0x7c}
	}
	return []byte{0, 0xfc}
}
