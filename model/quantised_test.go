package model_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/compute/ref"
	"grebe/model"
	"grebe/model/modeltest"
	"grebe/model/safetensors"
)

// scheme is a published way to store matrices in 8 bits, written here from its definition.
type scheme struct {
	config map[string]any
	dt     compute.DType
	block  int    // rows and columns with one scale; 0: channel
	tensor bool   // one scale for all
	suffix string // of the scales' tensor
}

func compressed(kind, strategy, format string) map[string]any {
	scheme := func(strategy string, dynamic bool) map[string]any {
		return map[string]any{"num_bits": 8, "type": kind, "strategy": strategy, "symmetric": true, "dynamic": dynamic}
	}
	return map[string]any{
		"quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
		"ignore": []string{"lm_head", "re:.*norm"}, "kv_cache_scheme": nil,
		"config_groups": map[string]any{"group_0": map[string]any{
			"targets": []string{"Linear"}, "weights": scheme(strategy, false), "input_activations": scheme("token",
				true)}},
	}
}

var schemes = map[string]scheme{
	"fp8 blocks": {dt: compute.FP8, block: 8, suffix: "_scale_inv", config: map[string]any{"quant_method": "fp8",
		"fmt":               "e4m3",
		"activation_scheme": "dynamic", "weight_block_size": []int{8, 8},
		"modules_to_not_convert": []string{"lm_head"}}},
	"fp8 tensor":  {dt: compute.FP8, tensor: true, suffix: "_scale", config: map[string]any{"quant_method": "fp8"}},
	"fp8 channel": {dt: compute.FP8, suffix: "_scale", config: compressed("float", "channel", "float-quantized")},
	"int8":        {dt: compute.INT8, suffix: "_scale", config: compressed("int", "channel", "int-quantized")},
	"int8 tensor": {dt: compute.INT8, tensor: true, suffix: "_scale", config: compressed("int", "tensor",
		"int-quantized")},
}

// e4m3 returns the nearest number of FP8, by trying all.
func e4m3(v float64) (b byte, number float64) {
	least := math.Inf(1)
	for i := range 256 {
		if i&127 == 127 {
			continue
		}
		exp, frac := i>>3&15, float64(i&7)/8
		x := math.Ldexp(1+frac, exp-7)
		if exp == 0 {
			x = math.Ldexp(frac, -6)
		}
		if i > 127 {
			x = -x
		}
		if d := math.Abs(x - v); d < least {
			least, b, number = d, byte(i), x
		}
	}
	return b, number
}

// quantise stores the matrices of a checkpoint's layers in 8 bits, and in the checkpoint twin what they stand for, as
// float32.
func (s *scheme) quantise(t *testing.T, dir, twin string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, model.ConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	config["quantization_config"] = s.config
	if raw, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, model.ConfigFile), raw, 0o666); err != nil {
		t.Fatal(err)
	}
	values := map[string][]float32{}
	rewrite(t, dir, func(list []safetensors.Named) (out []safetensors.Named) {
		for _, n := range list {
			if !strings.HasSuffix(n.Name, "_proj.weight") {
				out = append(out, n)
				continue
			}
			var data strings.Builder
			if err := n.Data(&data); err != nil {
				t.Fatal(err)
			}
			w := safetensors.Floats(compute.Tensor{DType: n.DType, Rows: n.Shape[0], Cols: n.Shape[1],
				Data: []byte(data.String())})
			bytes, scales, shape, stands := s.matrix(w, n.Shape[0], n.Shape[1])
			values[n.Name] = stands
			out = append(out, safetensors.Named{Name: n.Name, DType: s.dt, Shape: n.Shape,
				Data: safetensors.Bytes(bytes)},
				safetensors.Named{Name: n.Name + s.suffix, DType: compute.F32, Shape: shape,
					Data: safetensors.Bytes(safetensors.Encode(nil, compute.F32, scales...))})
		}
		return out
	})
	rewrite(t, twin, func(list []safetensors.Named) []safetensors.Named {
		for i, n := range list {
			if v := values[n.Name]; v != nil {
				list[i].DType, list[i].Data = compute.F32, safetensors.Bytes(safetensors.Encode(nil, compute.F32, v...))
			}
		}
		return list
	})
}

func (s *scheme) matrix(w []float32, rows, cols int) (data []byte, scales []float32, shape []int, stands []float32) {
	high, width := 1, cols
	switch {
	case s.block > 0:
		high, width = s.block, s.block
	case s.tensor:
		high = rows
	}
	shape = []int{(rows + high - 1) / high, (cols + width - 1) / width}
	most := 448.0
	if s.dt == compute.INT8 {
		most = 127
	}
	scales = make([]float32, shape[0]*shape[1])
	at := func(r, c int) int { return r/high*shape[1] + c/width }
	for i, v := range w {
		b := at(i/cols, i%cols)
		scales[b] = max(scales[b], float32(math.Abs(float64(v))/most))
	}
	for i, v := range w {
		scale := scales[at(i/cols, i%cols)]
		if s.dt == compute.INT8 {
			q := math.RoundToEven(float64(v / scale))
			data, stands = append(data, byte(int8(q))), append(stands, float32(q)*scale)
			continue
		}
		b, number := e4m3(float64(v / scale))
		data, stands = append(data, b), append(stands, float32(number)*scale)
	}
	if s.tensor {
		shape = []int{1}
	}
	return data, scales, shape, stands
}

// states returns the hidden states of a few tokens.
func states(t *testing.T, dir string, d compute.Device, opts model.Options) []float32 {
	t.Helper()
	m, err := model.Open(dir, d, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	const n = 9
	s := m.Shape()
	r, err := d.Open(s, n)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b := &compute.Batch{Segments: []compute.Segment{{Len: n,
		Chunks: []compute.Chunk{{Bytes: make([]byte, s.ChunkBytes(n, false)), Tokens: n}}}}}
	rows := make([]int32, n)
	for i := range rows {
		rows[i] = int32(i)
		b.Tokens, b.Positions = append(b.Tokens, int32(i*7%m.Vocab())), append(b.Positions, int32(i))
	}
	out := make([]float32, n*s.Hidden)
	if err := m.Forward(r, b, nil); err != nil {
		t.Fatal(err)
	}
	if err := m.Hidden(r, rows, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func distance(got, want []float32) float64 {
	diff, all := 0.0, 0.0
	for i := range want {
		d := float64(got[i] - want[i])
		diff, all = diff+d*d, all+float64(want[i])*float64(want[i])
	}
	return math.Sqrt(diff / all)
}

// wide is a model whose matrices have whole and ragged blocks.
func wide() modeltest.Spec {
	return modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 52, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16,
		Inter: 100,
		Vocab: 40, DType: compute.BF16, Seed: 3}
}

// A quantised checkpoint computes what its definition says: compared with float64 on the values that it stands for.
func TestQuantisedCheckpoints(t *testing.T) {
	for name, s := range schemes {
		t.Run(name, func(t *testing.T) {
			dir, twin := write(t, wide()), write(t, wide())
			s.quantise(t, dir, twin)
			device, err := cpu.New(cpu.Options{Threads: 2})
			if err != nil {
				t.Fatal(err)
			}
			defer device.Close()
			want := states(t, twin, ref.New(), model.Options{DType: "f32"})
			var warned []string
			expand := model.Options{DType: "f32", Weights: "bf16", Warn: func(text string) {
				warned = append(warned,
					text)
			}}
			if d := distance(states(t, dir, ref.New(), expand), want); d > 1e-6 {
				t.Errorf("expanded weights are %.2g off", d)
			}
			if len(warned) != 1 || !strings.Contains(warned[0], s.dt.String()) {
				t.Errorf("warnings %q, want one", warned)
			}
			if d := distance(states(t, dir, device, model.Options{}), want); d > 0.05 {
				t.Errorf("on the CPU they are %.3f off", d)
			}
			// Integers, with the same rounding of activations.
			own := model.Options{DType: "f32", Weights: "int8"}
			if d := distance(states(t, dir, device, own), states(t, dir, ref.New(), own)); d > 0.02 {
				t.Errorf("in int8 they are %.3f off float64 with the same rounding", d)
			}
		})
	}
}

// Integers stay integers where the device computes in them, and take half the memory.
func TestInt8Weights(t *testing.T) {
	s := wide()
	s.Hidden, s.Inter, s.Vocab = 128, 512, 8
	dir, stored, twin := write(t, s), write(t, s), write(t, s)
	q := schemes["int8"]
	q.quantise(t, stored, twin)
	d, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	bytes := func(dir, weights string) float64 {
		m, err := model.Open(dir, d, model.Options{Weights: weights})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		return float64(m.Bytes())
	}
	whole := bytes(dir, "auto")
	for name, got := range map[string]float64{"quantised at load": bytes(dir, "int8"), "stored": bytes(stored,
		"auto")} {
		if got > 0.56*whole {
			t.Errorf("%s: %v bytes, bf16 %v", name, got, whole)
		}
	}
	if got := bytes(stored, "bf16"); got < 0.95*whole {
		t.Errorf("expanded: %v bytes, bf16 %v", got, whole)
	}
}

// plainDevice does not compute in INT8.
type plainDevice struct{ compute.Device }

func TestWeightsThatDoNotFit(t *testing.T) {
	dir := write(t, wide())
	for _, c := range []struct{ weights, want string }{
		{"int8", "weights: int8 is for CPUs"}, {"fp8", "weights: fp8 is not available"}, {"int4",
			`weights "int4" is unknown`},
	} {
		_, err := model.Open(dir, plainDevice{ref.New()}, model.Options{Weights: c.weights})
		wantError(t, err, c.want)
	}
	stored, twin := write(t, wide()), write(t, wide())
	s := schemes["int8"]
	s.quantise(t, stored, twin)
	var warned []string
	got := states(t, stored, plainDevice{ref.New()}, model.Options{Warn: func(text string) {
		warned = append(warned,
			text)
	}})
	if d := distance(got, states(t, twin, ref.New(), model.Options{DType: "f32"})); d > 0.02 || len(warned) != 1 {
		t.Errorf("integers on a device without them: %.3f off, warnings %q", d, warned)
	}
}

// Bad files get an error that names the tensor.
func TestBadQuantisedFiles(t *testing.T) {
	const at = "model.layers.1.mlp.up_proj.weight"
	scale := func(shape []int, values ...float32) safetensors.Named {
		return safetensors.Named{DType: compute.F32, Shape: shape, Data: safetensors.Bytes(safetensors.Encode(nil,
			compute.F32, values...))}
	}
	ones := slices.Repeat([]float32{1}, 100)
	with := func(i int, v float32) []float32 {
		out := slices.Clone(ones)
		out[i] = v
		return out
	}
	for name, c := range map[string]struct {
		scheme string
		scales *safetensors.Named // nil: none
		want   []string
	}{
		"no scales":   {"int8", nil, []string{at + "_scale", "missing"}},
		"no blocks":   {"fp8 blocks", nil, []string{at, "missing"}},
		"shape":       {"int8", new(scale([]int{99, 1}, ones[:99]...)), []string{at + "_scale", "[99 1]"}},
		"block shape": {"fp8 blocks", new(scale([]int{100, 1}, ones...)), []string{at + "_scale_inv", "[100 1]"}},
		"NaN": {"int8", new(scale([]int{100, 1}, with(7, float32(math.NaN()))...)), []string{at + "_scale",
			"scale 7 is NaN"}},
		"zero": {"fp8 channel", new(scale([]int{100, 1}, with(0, 0)...)), []string{at + "_scale",
			"scale 0 is 0"}},
		"negative": {"int8", new(scale([]int{100}, with(99, -1)...)), []string{at + "_scale", "scale 99 is -1"}},
		"infinite": {"int8 tensor", new(scale([]int{1}, float32(math.Inf(1)))), []string{at + "_scale",
			"scale 0 is +Inf"}},
		"other values": {"int8", new(safetensors.Named{DType: compute.INT8, Shape: []int{100, 1},
			Data: safetensors.Bytes(make([]byte, 100))}), []string{at + "_scale", "I8"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, twin := write(t, wide()), write(t, wide())
			s := schemes[c.scheme]
			s.quantise(t, dir, twin)
			reform(t, dir, func(n *safetensors.Named) bool {
				if !strings.HasPrefix(n.Name, at+"_") {
					return true
				}
				if c.scales == nil {
					return false
				}
				n.DType, n.Shape, n.Data = c.scales.DType, c.scales.Shape, c.scales.Data
				return true
			})
			_, err := model.Open(dir, ref.New(), model.Options{})
			wantError(t, err, c.want...)
		})
	}
}

// reform is rewrite for tensors of any format; change reports whether a tensor stays.
func reform(t *testing.T, dir string, change func(n *safetensors.Named) bool) {
	t.Helper()
	s, err := safetensors.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	formats := map[string]compute.DType{"F32": compute.F32, "BF16": compute.BF16, "I8": compute.INT8,
		"F8_E4M3": compute.FP8}
	var list []safetensors.Named
	for _, name := range s.Names() {
		info, _ := s.Lookup(name)
		raw, err := s.Raw(name)
		if err != nil {
			t.Fatal(err)
		}
		n := safetensors.Named{Name: name, DType: formats[info.DType], Shape: info.Shape,
			Data: safetensors.Bytes(slices.Clone(raw))}
		if change(&n) {
			list = append(list, n)
		}
	}
	if err := safetensors.Write(filepath.Join(dir, safetensors.SingleFile), list); err != nil {
		t.Fatal(err)
	}
}

func TestBadQuantisedValues(t *testing.T) {
	dir, twin := write(t, wide()), write(t, wide())
	s := schemes["fp8 channel"]
	s.quantise(t, dir, twin)
	const at = "model.layers.0.self_attn.o_proj.weight"
	reform(t, dir, func(n *safetensors.Named) bool {
		if n.Name == at {
			data := make([]byte, n.Shape[0]*n.Shape[1])
			data[n.Shape[1]+2] = 0xff
			n.Data = safetensors.Bytes(data)
		}
		return true
	})
	_, err := model.Open(dir, ref.New(), model.Options{})
	wantError(t, err, at, "value 2 of row 1 is no number")
	// A matrix that is no layer's.
	dir, twin = write(t, wide()), write(t, wide())
	s.quantise(t, dir, twin)
	reform(t, dir, func(n *safetensors.Named) bool {
		if n.Name == "lm_head.weight" {
			n.DType, n.Data = compute.FP8, safetensors.Bytes(make([]byte, n.Shape[0]*n.Shape[1]))
		}
		return true
	})
	_, err = model.Open(dir, ref.New(), model.Options{})
	wantError(t, err, "lm_head.weight", "F8_E4M3")
	// A file that was cut.
	path := filepath.Join(dir, safetensors.SingleFile)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, st.Size()-10); err != nil {
		t.Fatal(err)
	}
	_, err = model.Open(dir, ref.New(), model.Options{})
	wantError(t, err, path, "tensor ", "truncated")
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	_, err = model.Open(dir, ref.New(), model.Options{})
	wantError(t, err, path, "truncated")
}

// A matrix of another shape than config.json says, or under another name, is named, in every format.
func TestBadQuantisedMatrices(t *testing.T) {
	const at = "model.layers.1.self_attn.v_proj.weight"
	for scheme, s := range schemes {
		for _, c := range []struct {
			name   string
			change func(n *safetensors.Named)
			want   []string
		}{
			{"shape", func(n *safetensors.Named) { n.Shape = []int{n.Shape[1], n.Shape[0]} }, []string{at, "has shape"}},
			{"one dimension", func(n *safetensors.Named) { n.Shape = []int{n.Shape[0] * n.Shape[1]} },
				[]string{at, "has shape"}},
			{"other name", func(n *safetensors.Named) { n.Name += "_packed" }, []string{at[len("model."):], "missing"}},
		} {
			t.Run(scheme+" "+c.name, func(t *testing.T) {
				dir, twin := write(t, wide()), write(t, wide())
				s.quantise(t, dir, twin)
				reform(t, dir, func(n *safetensors.Named) bool {
					if n.Name == at {
						c.change(n)
					}
					return true
				})
				_, err := model.Open(dir, ref.New(), model.Options{})
				wantError(t, err, c.want...)
			})
		}
	}
}

// quantisationConfigs are refused with a word on what to do.
var quantisationConfigs = map[string][]string{
	`{"bits": 4}`: {"quant_method is missing"},
	`{"quant_method": "awq", "bits": 4}`: {"AWQ is not supported",
		"original checkpoint", "weights: int8"},
	`{"quant_method": "gptq"}`: {
		"GPTQ is not supported"},
	`{"quant_method": "bitsandbytes"}`: {
		"bitsandbytes is not supported"},
	`{"quant_method": "gguf"}`: {
		"GGUF is not supported"},
	`{"quant_method": "new"}`: {
		`"new" is not supported`},
	`{"quant_method": "fp8", "fmt": "e5m2"}`:                 {"e5m2"},
	`{"quant_method": "fp8", "weight_block_size": [128]}`:    {"weight_block_size"},
	`{"quant_method": "fp8", "weight_block_size": [0, 128]}`: {"weight_block_size"},
	`{"quant_method": "compressed-tensors"}`: {
		"config_groups is empty"},
	`{"quant_method": "compressed-tensors", "config_groups": {"a": {}}}`: {
		"config_groups.a", "weights is missing"},
	`{"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 4}}}}`: {"4 bits"},
	`{"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8, "symmetric": false}}}}`: {
		"zero points",
	},
	`{"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8, "type": "x"}}}}`: {
		`type "x"`,
	},
	`{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}`: {"pack-quantized"},
	`{"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8}}`: {
		"kv_cache_scheme", "kv_dtype"},
	`{"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-bitmask"}}`: {"sparse-bitmask"},
	`{"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": ` +
		`{"num_bits": 8, "type": "int", "strategy": "group"}}}}`: {
		`strategy "group"`,
	},
	`[]`: {"quantization_config"},
}

const plainConfig = `{"architectures": ["Qwen2ForCausalLM"], "hidden_size": 16, "num_hidden_layers": 1,
	"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 8, "vocab_size": 10,
	"max_position_embeddings": 64, "quantization_config": %s}`

func TestQuantisationConfigsRefused(t *testing.T) {
	for raw, want := range quantisationConfigs {
		_, err := model.ParseConfig(fmt.Appendf(nil, plainConfig, raw))
		wantError(t, err, want...)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "model-q4.gguf"), []byte("GGUF"), 0o666); err != nil {
		t.Fatal(err)
	}
	_, err := model.Open(dir, ref.New(), model.Options{})
	wantError(t, err, "model-q4.gguf", "GGUF is not supported", "original checkpoint")
}

func FuzzQuantisation(f *testing.F) {
	for raw := range quantisationConfigs {
		f.Add(raw)
	}
	for _, s := range schemes {
		raw, err := json.Marshal(s.config)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(raw))
	}
	f.Add("null")
	f.Fuzz(func(t *testing.T, raw string) {
		c, err := model.ParseConfig(fmt.Appendf(nil, plainConfig, raw))
		if err != nil || c.Quantisation == nil {
			return
		}
		q := c.Quantisation
		if q.DType != compute.FP8 && q.DType != compute.INT8 || (q.Block[0] > 0) != (q.Block[1] > 0) || q.Block[0] < 0 ||
			q.DType == compute.INT8 && q.Block != [2]int{} {
			t.Fatalf("accepted %+v", *q)
		}
	})
}

// Patterns of matrices to keep name matrices of layers; a broken one, or one that matches none, is refused.
func TestKeepPatterns(t *testing.T) {
	dir := write(t, wide())
	for text, want := range map[string]string{"(": "missing closing", "layers.9": "matches no matrix",
		"norm": "matches no matrix"} {
		_, err := model.Open(dir, ref.New(), model.Options{Weights: "int8", Keep: []string{"o_proj", text}})
		wantError(t, err, "keep", text, want)
	}
	all := states(t, dir, ref.New(), model.Options{DType: "f32", Weights: "int8", Keep: []string{"_proj"}})
	if want := states(t, dir, ref.New(), model.Options{DType: "f32"}); !slices.Equal(all, want) {
		t.Error("with all matrices kept, something was rounded")
	}
}
