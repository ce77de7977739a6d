package model

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

// base returns a config.json with some fields changed; a nil value removes the field.
func base(t *testing.T, change map[string]any) []byte {
	t.Helper()
	c := map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "hidden_size": 64, "num_hidden_layers": 2,
		"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 100,
		"max_position_embeddings": 512, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
	}
	for k, v := range change {
		if v == nil {
			delete(c, k)
			continue
		}
		c[k] = v
	}
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestConfigForms(t *testing.T) {
	llama3 := map[string]any{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
		"high_freq_factor": 4.0, "original_max_position_embeddings": 128}
	llama3With := map[string]any{"rope_theta": 500000.0}
	for k, v := range llama3 {
		llama3With[k] = v
	}
	want := RopeConfig{Type: "llama3", Theta: 500000, Factor: 8, LowFreq: 1, HighFreq: 4, OriginalPositions: 128}
	for name, change := range map[string]map[string]any{
		"4.x":  {"rope_scaling": llama3, "torch_dtype": "bfloat16"},
		"5.x":  {"rope_theta": nil, "rope_parameters": llama3With, "dtype": "bfloat16"},
		"both": {"rope_scaling": llama3, "rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 1.0}},
	} {
		c, err := ParseConfig(base(t, change))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if c.Rope != want {
			t.Errorf("%s: rope %+v, want %+v", name, c.Rope, want)
		}
	}
	c, err := ParseConfig(base(t, map[string]any{"rope_scaling": map[string]any{"type": "linear", "factor": 2}}))
	if err != nil || c.Rope.Type != "linear" || c.Rope.Factor != 2 || c.Rope.Theta != 500000 {
		t.Errorf("linear: %+v, %v", c, err)
	}
	c, err = ParseConfig(base(t, map[string]any{
		"rope_theta": nil, "num_key_value_heads": nil, "rms_norm_eps": nil, "hidden_act": nil}))
	if err != nil || c.Rope != (RopeConfig{Type: "default", Theta: 10000}) || c.KVHeads != 4 || c.Eps != 1e-6 ||
		c.HeadDim != 16 || c.HeadDimGiven || c.TieEmbeddings {
		t.Errorf("defaults: %+v, %v", c, err)
	}
	c, err = ParseConfig(base(t, map[string]any{"head_dim": 128, "tie_word_embeddings": true}))
	if err != nil || c.HeadDim != 128 || !c.HeadDimGiven || !c.TieEmbeddings {
		t.Errorf("head_dim: %+v, %v", c, err)
	}
}

func TestConfigRefused(t *testing.T) {
	rope := func(m map[string]any) map[string]any { return map[string]any{"rope_scaling": m} }
	for _, c := range []struct {
		change map[string]any
		want   string
	}{
		{map[string]any{"architectures": nil}, "architectures"},
		{map[string]any{"architectures": []string{}}, "architectures"},
		{map[string]any{"hidden_size": nil}, "hidden_size is missing"},
		{map[string]any{"hidden_size": 0}, "hidden_size is 0"},
		{map[string]any{"hidden_size": -64}, "hidden_size is -64"},
		{map[string]any{"hidden_size": 64.5}, "hidden_size"},
		{map[string]any{"hidden_size": "64"}, "hidden_size"},
		{map[string]any{"hidden_size": 66}, "no head_dim"},
		{map[string]any{"num_hidden_layers": 1 << 40}, "num_hidden_layers"},
		{map[string]any{"num_key_value_heads": 3}, "multiple"},
		{map[string]any{"num_key_value_heads": 0}, "num_key_value_heads"},
		{map[string]any{"head_dim": 15}, "head_dim is 15"},
		{map[string]any{"head_dim": 1 << 30}, "head_dim"},
		{map[string]any{"vocab_size": json.Number("99999999999999999999")}, "vocab_size"},
		{map[string]any{"intermediate_size": 1 << 62}, "intermediate_size"},
		{map[string]any{"rms_norm_eps": 0}, "rms_norm_eps"},
		{map[string]any{"rms_norm_eps": 1e-300}, "rms_norm_eps"},
		{map[string]any{"hidden_act": "gelu"}, `"gelu"`},
		{map[string]any{"quantization_config": map[string]any{"bits": 4}}, "quant_method"},
		{map[string]any{"rope_theta": -1}, "rope_theta"},
		{map[string]any{"rope_theta": 1e-60}, "rope_theta 1e-60"},
		{rope(map[string]any{"rope_type": "linear", "factor": 1e-60}), "frequency 0 is +Inf"},
		{rope(map[string]any{"rope_type": "linear", "factor": 1e60}), "frequency 0 is 0"},
		{rope(map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 1.000000001,
			"original_max_position_embeddings": 2 * math.Pi}), "is NaN"},
		{map[string]any{"partial_rotary_factor": 0.5}, "partial_rotary_factor"},
		{rope(map[string]any{"rope_type": "yarn", "factor": 4}), `"yarn"`},
		{rope(map[string]any{"type": "dynamic", "factor": 4}), `"dynamic"`},
		{rope(map[string]any{"rope_type": "linear"}), "needs factor"},
		{rope(map[string]any{"rope_type": "linear", "factor": 0}), "factor is 0"},
		{rope(map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}),
			"original_max"},
		{rope(map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
			"original_max_position_embeddings": 128}), "not above"},
		{map[string]any{"rope_parameters": map[string]any{"full_attention": map[string]any{"rope_type": "default"}}},
			"per kind"},
		{map[string]any{"use_sliding_window": true, "sliding_window": 100, "max_window_layers": 1}, "layer 1"},
		{map[string]any{"sliding_window": 100, "layer_types": []string{"sliding_attention", "full_attention"}}, "layer 0"},
		{map[string]any{"layer_types": []string{"linear_attention"}}, "linear_attention"},
	} {
		_, err := ParseConfig(base(t, c.change))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want one with %q", c.change, err, c.want)
		}
	}
}

// A window that no input outgrows, or that no layer uses, changes nothing.
func TestConfigHarmlessWindow(t *testing.T) {
	for _, change := range []map[string]any{
		{"use_sliding_window": false, "sliding_window": 100, "max_window_layers": 1},
		{"use_sliding_window": true, "sliding_window": 512, "max_window_layers": 0},
		{"use_sliding_window": true, "sliding_window": 100, "max_window_layers": 2},
		{"use_sliding_window": true, "sliding_window": 100},
		{"sliding_window": 100, "layer_types": []string{"full_attention", "full_attention"}},
		{"sliding_window": 4096, "layer_types": []string{"sliding_attention", "full_attention"}},
	} {
		if _, err := ParseConfig(base(t, change)); err != nil {
			t.Errorf("%v: %v", change, err)
		}
	}
}

// The frequencies lie within float32 rounding of the formula in float64.
func TestRope(t *testing.T) {
	for _, r := range []RopeConfig{
		{Type: "default", Theta: 10000}, {Type: "default", Theta: 1e6}, {Type: "linear", Theta: 10000, Factor: 4},
		{Type: "llama3", Theta: 500000, Factor: 32, LowFreq: 1, HighFreq: 4, OriginalPositions: 8192},
	} {
		for _, dim := range []int{2, 64, 80, 128} {
			got := r.Rope(dim)
			if got.Scale != 1 || len(got.InvFreq) != dim/2 {
				t.Fatalf("%+v: %+v", r, got)
			}
			for i, f := range got.InvFreq {
				want := math.Pow(r.Theta, -2*float64(i)/float64(dim))
				switch r.Type {
				case "linear":
					want /= r.Factor
				case "llama3":
					turns := r.OriginalPositions * want / (2 * math.Pi)
					smooth := min(max((turns-r.LowFreq)/(r.HighFreq-r.LowFreq), 0), 1)
					want = (1-smooth)*want/r.Factor + smooth*want
				}
				if math.Abs(float64(f)/want-1) > 2e-6 {
					t.Errorf("%+v dim %d: frequency %d is %v, want %v", r, dim, i, f, want)
				}
			}
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"architectures":["A"],"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,` +
		`"intermediate_size":96,"vocab_size":100,"max_position_embeddings":512,"rope_scaling":{"type":"linear","factor":2}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := ParseConfig(raw)
		if err != nil {
			return
		}
		if c.Hidden < 1 || c.Layers < 1 || c.Heads%c.KVHeads != 0 || c.HeadDim < 2 || c.Vocab < 1 {
			t.Fatalf("accepted %+v", c)
		}
		c.Rope.Rope(c.HeadDim)
	})
}
