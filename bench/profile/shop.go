package profile

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"grebe/compute"
	"grebe/model"
	"grebe/model/modeltest"
	"grebe/shop/demo"
)

// Shop is the demo's shop in a folder, with a server's configuration for one model alone.
type Shop struct {
	Config string // file
	Model  string // folder
}

// servedConfig is what a server is started with.
const servedConfig = `models:
  - name: shop
    path: ./lm
    prompt:
      preamble: "A shop and one of its customers.\n"
      user: "{text}"
      item: "<{id}> {text}\n"
      lead_in: "Offers:\n"
      instruction: "The customer takes:"
    scoring: {kind: identifier}
    prefix: {orders: [user, item]}
catalog: {items: items.ndjson}
cache: {ahead: "off"}
workers: 1
`

// positions of a model in a shop: longer than its longest prompt.
const positions = 8192

// NewShop writes a shop to a new folder. Models other than the demo's are random, with its tokens: they rank at random,
// and take as long as trained ones.
func NewShop(dir, name string) (*Shop, error) {
	m, ok := Models[name]
	if !ok || m.Events > 0 {
		return nil, fmt.Errorf("no decoder %q", name)
	}
	if err := demo.Ensure(dir); err != nil {
		return nil, err
	}
	s := &Shop{Config: filepath.Join(dir, "served.yaml"), Model: filepath.Join(dir, "lm")}
	err := os.WriteFile(s.Config, []byte(servedConfig), 0o600)
	if m.Name == Models["demo"].Name || err != nil {
		return s, err
	}
	raw, err := os.ReadFile(filepath.Join(s.Model, model.ConfigFile))
	if err != nil {
		return nil, err
	}
	var of struct {
		Vocab int `json:"vocab_size"`
	}
	if err := json.Unmarshal(raw, &of); err != nil {
		return nil, err
	}
	return s, modeltest.Write(s.Model, m.spec(of.Vocab))
}

// spec describes a checkpoint of the model.
func (m *Model) spec(vocab int) modeltest.Spec {
	h := &m.Shape
	s := modeltest.Spec{
		Architecture: modeltest.Llama, Hidden: h.Hidden, Layers: h.Layers, Heads: h.Heads, KVHeads: h.KVHeads,
		HeadDim: h.HeadDim, Inter: h.Inter,
		Vocab: vocab, MaxPositions: positions, Tied: true, DType: compute.BF16,
	}
	switch {
	case m.Bias:
		s.Architecture = modeltest.Qwen2
	case m.Norms:
		s.Architecture = modeltest.Qwen3
	}
	return s
}
