// Package modeltest writes checkpoints of random weights in the Hugging Face layout: for tests,
// benchmarks, and a demo without a trained model. The same Spec gives the same bytes everywhere.
//
// Weights are normal with a deviation that keeps activations near one whatever the sizes, norms are
// near one, biases small: numbers a real model could have, so that formats and kernels are tried
// where they matter.
package modeltest

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"grebe/compute"
	"grebe/model"
	"grebe/model/safetensors"
)

// The architectures that can be written.
const (
	Qwen2 = "Qwen2ForCausalLM"
	Qwen3 = "Qwen3ForCausalLM"
	Llama = "LlamaForCausalLM"
)

// Spec describes a checkpoint.
type Spec struct {
	Architecture string
	Hidden       int
	Layers       int
	Heads        int
	KVHeads      int
	HeadDim      int // Hidden/Heads when 0
	Inter        int
	Vocab        int
	MaxPositions int // 4096 when 0
	Tied         bool
	// Bias adds the optional biases of Qwen3 (attention) and Llama (attention and feed-forward).
	Bias bool
	// RopeTheta is 10000 when 0. RopeScaling is config.json's rope_scaling.
	RopeTheta   float64
	RopeScaling map[string]any
	// V5 writes config.json in the form of transformers 5.x.
	V5    bool
	DType compute.DType
	Seed  uint64
	// ShardBytes splits the weights into files of that size when above 0.
	ShardBytes int64
	// Bare leaves out the "model." in front of tensor names.
	Bare bool
}

// Qwen2Half is the shape of Qwen2-0.5B, about 1 GB.
func Qwen2Half() Spec {
	return Spec{
		Architecture: Qwen2, Hidden: 896, Layers: 24, Heads: 14, KVHeads: 2, HeadDim: 64, Inter: 4864,
		Vocab: 151936, MaxPositions: 131072, Tied: true, RopeTheta: 1e6, DType: compute.BF16,
	}
}

// Write makes dir and writes config.json and the weights to it.
func Write(dir string, s Spec) error {
	s.fill()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("modeltest: %w", err)
	}
	raw, err := json.MarshalIndent(s.config(), "", "  ")
	if err != nil {
		return fmt.Errorf("modeltest: config of %s: %w", dir, err)
	}
	if _, err := model.ParseConfig(raw); err != nil {
		return fmt.Errorf("modeltest: config of %s: %w", dir, err)
	}
	if err := os.WriteFile(filepath.Join(dir, model.ConfigFile), append(raw, '\n'), 0o666); err != nil {
		return fmt.Errorf("modeltest: %w", err)
	}
	tensors := s.tensors()
	if s.ShardBytes > 0 {
		return safetensors.WriteSharded(dir, s.ShardBytes, tensors)
	}
	return safetensors.Write(filepath.Join(dir, safetensors.SingleFile), tensors)
}

func (s *Spec) fill() {
	if s.HeadDim == 0 && s.Heads > 0 {
		s.HeadDim = s.Hidden / s.Heads
	}
	if s.MaxPositions == 0 {
		s.MaxPositions = 4096
	}
	if s.RopeTheta == 0 {
		s.RopeTheta = 10000
	}
}

var torchNames = map[compute.DType]string{
	compute.F32: "float32", compute.BF16: "bfloat16", compute.F16: "float16",
}

var modelTypes = map[string]string{Qwen2: "qwen2", Qwen3: "qwen3", Llama: "llama"}

// config returns config.json.
func (s *Spec) config() map[string]any {
	c := map[string]any{
		"architectures":           []string{s.Architecture},
		"model_type":              modelTypes[s.Architecture],
		"hidden_size":             s.Hidden,
		"num_hidden_layers":       s.Layers,
		"num_attention_heads":     s.Heads,
		"num_key_value_heads":     s.KVHeads,
		"head_dim":                s.HeadDim,
		"intermediate_size":       s.Inter,
		"vocab_size":              s.Vocab,
		"max_position_embeddings": s.MaxPositions,
		"hidden_act":              "silu",
		"rms_norm_eps":            1e-6,
		"tie_word_embeddings":     s.Tied,
	}
	if s.Architecture != Qwen2 {
		c["attention_bias"] = s.Bias
	}
	if s.Architecture == Llama {
		c["mlp_bias"] = s.Bias
	}
	if !s.V5 {
		c["torch_dtype"], c["rope_theta"], c["rope_scaling"] = torchNames[s.DType], s.RopeTheta, s.RopeScaling
		return c
	}
	rope := map[string]any{"rope_type": "default", "rope_theta": s.RopeTheta}
	maps.Copy(rope, s.RopeScaling)
	c["dtype"], c["rope_parameters"] = torchNames[s.DType], rope
	return c
}
