package profile

import (
	"maps"
	"slices"

	"grebe/compute"
)

// Model is the shape of a model.
type Model struct {
	Name  string // as model cards have it
	Shape compute.Shape
	// Decoders only.
	Vocab int
	Bias  bool // of QKV
	Norms bool // of the heads of queries and keys
	// Events is the longest history of a model of events (HSTU); 0: it is a decoder.
	Events int
}

// Models are the shapes that have profiles, by the name in files and flags.
var Models = map[string]Model{
	"demo": {Name: "demo", Vocab: 4096, Norms: true,
		Shape: compute.Shape{Layers: 4, Hidden: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Inter: 768}},
	"qwen2-0.5b": {Name: "Qwen2-0.5B", Bias: true, Vocab: 151936,
		Shape: compute.Shape{Layers: 24, Hidden: 896, Heads: 14, KVHeads: 2, HeadDim: 64, Inter: 4864}},
	"qwen2-1.5b": {Name: "Qwen2-1.5B", Bias: true, Vocab: 151936,
		Shape: compute.Shape{Layers: 28, Hidden: 1536, Heads: 12, KVHeads: 2, HeadDim: 128, Inter: 8960}},
	"llama3-1b": {Name: "Llama3-1B", Vocab: 128256,
		Shape: compute.Shape{Layers: 16, Hidden: 2048, Heads: 32, KVHeads: 8, HeadDim: 64, Inter: 8192}},
	"qwen3-8b": {Name: "Qwen3-8B", Norms: true, Vocab: 151936,
		Shape: compute.Shape{Layers: 36, Hidden: 4096, Heads: 32, KVHeads: 8, HeadDim: 128, Inter: 12288}},
	// Too large for one device here: its times are derived.
	"qwen-72b": {Name: "Qwen2-72B", Bias: true, Vocab: 152064,
		Shape: compute.Shape{Layers: 80, Hidden: 8192, Heads: 64, KVHeads: 8, HeadDim: 128, Inter: 29568}},
	"hstu-3": {Name: "HSTU, 3 layers of 512", Events: 15000,
		Shape: compute.Shape{Layers: 3, Hidden: 512, Heads: 4, KVHeads: 4, HeadDim: 128}},
	"hstu-6": {Name: "HSTU, 6 layers of 512", Events: 15000,
		Shape: compute.Shape{Layers: 6, Hidden: 512, Heads: 4, KVHeads: 4, HeadDim: 128}},
}

// Names returns the names of all models, sorted.
func Names() []string { return slices.Sorted(maps.Keys(Models)) }

// weights returns the numbers in the matrices of all layers.
func (m *Model) weights() float64 {
	s := &m.Shape
	q, kv := float64(s.Heads*s.HeadDim), float64(s.KVHeads*s.HeadDim)
	h, inter := float64(s.Hidden), float64(s.Inter)
	layer := (q+2*kv)*h + q*h + 3*inter*h
	if m.Events > 0 { // u, v, q and k; the output takes three inputs
		layer = 4*q*h + 3*q*h
	}
	return float64(s.Layers) * layer
}

// rowFLOPs are those of a row's products.
func (m *Model) rowFLOPs() float64 { return 2 * m.weights() }

// keyFLOPs are those of a row's attention to one key, in all layers.
func (m *Model) keyFLOPs() float64 {
	return 4 * float64(m.Shape.Layers*m.Shape.Heads*m.Shape.HeadDim)
}

// weightBytes is what a pass reads of the matrices, in bf16.
func (m *Model) weightBytes() float64 { return 2 * m.weights() }

// tokenBytes is the KV of a token, in bf16.
func (m *Model) tokenBytes() int64 {
	s := m.Shape
	s.KV = compute.BF16
	return int64(s.ChunkBytes(1, false))
}
