// Package hstutest writes checkpoints of HSTU with random weights, for tests and benchmarks. The same spec gives
// the same bytes.
package hstutest

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"grebe/compute"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/model/safetensors"
)

// Spec describes a checkpoint of the recommended configuration: absolute positions and a constant scale, no
// MLPs before the layers unless Change adds them. Zero fields mean what their comments say.
type Spec struct {
	Hidden, Layers, Heads, HeadDim int
	Items                          int
	MaxSeqLen                      int
	DType                          compute.DType // of the weights; F32
	Window                         int           // none
	Unnamed                        bool          // without items.json
	Seed                           uint64
	// Change may change the configuration before it is written: sizes, MLPs, and features. Tensors of other additions are
	// not written.
	Change func(c *hstu.Config)
	// Without names tables that are not written.
	Without []string
}

// Config returns the configuration of the checkpoint.
func (s *Spec) Config() *hstu.Config {
	c := &hstu.Config{
		Architectures: []string{hstu.Architecture}, Hidden: s.Hidden, Layers: s.Layers, Heads: s.Heads, QKDim: s.HeadDim,
		ValueDim:    s.HeadDim,
		ScaleLength: 64, Window: s.Window, MaxSeqLen: s.MaxSeqLen, Positions: hstu.Absolute, PositionBuckets: s.MaxSeqLen,
		Times:       hstu.None,
		TimeBuckets: 8, ItemTable: "item_id", Items: s.Items, TableDim: s.Hidden, ActionWeights: []int{1, 2, 4}, ActionDim: 8,
		Postprocessor: hstu.L2, TaskMLP: 32, Retrieval: true,
		Tasks: []hstu.Task{{Name: "click", Weight: 1}, {Name: "buy", Weight: 2}},
	}
	if s.Change != nil {
		s.Change(c)
	}
	return c
}

// Write writes the checkpoint to a folder. Items are called i0, i1, ….
func Write(dir string, s Spec) error {
	c := s.Config()
	raw, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, model.ConfigFile), raw, 0o644); err != nil {
		return err
	}
	if !s.Unnamed {
		names := make([]string, c.Items)
		for i := range names {
			names[i] = fmt.Sprintf("i%d", i)
		}
		if raw, err = json.Marshal(names); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, hstu.ItemsFile), raw, 0o644); err != nil {
			return err
		}
	}
	return safetensors.Write(filepath.Join(dir, safetensors.SingleFile), s.tensors(c))
}

func (s *Spec) tensors(c *hstu.Config) []safetensors.Named {
	w := &writer{dt: s.DType, rand: rand.New(rand.NewPCG(s.Seed, 3)), without: map[string]bool{}}
	for _, name := range s.Without {
		w.without[name] = true
	}
	const t = "_hstu_transducer."
	n := c.Heads * c.ValueDim
	d := c.Hidden
	action, target := d, d
	if c.Preprocessor > 0 {
		action, target = c.ActionDim, c.ActionDim*len(c.ActionWeights)
	}
	w.table("item_id", c.Items, c.TableDim)
	w.add(t+"_input_preprocessor._action_encoder._action_embedding_table", 0, 1/root(d), len(c.ActionWeights), action)
	w.add(t+"_input_preprocessor._action_encoder._target_action_embedding_table", 0, 1/root(d), 1, target)
	w.add(t+"_positional_encoder._position_embeddings_weight", 0, 0.3, c.PositionBuckets, d)
	for i := range c.Layers {
		p := fmt.Sprintf("%s_stu_module._stu_layers.%d.", t, i)
		w.add(p+"_input_norm_weight", 1, 0.1, d)
		w.add(p+"_input_norm_bias", 0, 0.1, d)
		w.add(p+"_uvqk_weight", 0, 1/root(d), d, 4*n)
		w.add(p+"_uvqk_beta", 0, 0.1, 4*n)
		w.add(p+"_output_norm_weight", 1, 0.1, n)
		w.add(p+"_output_norm_bias", 0, 0.1, n)
		w.add(p+"_output_weight", 0, 1/root(3*n), 3*n, d)
	}
	const m = "_multitask_module._prediction_module."
	w.add(m+"0.weight", 0, 4/root(d), c.TaskMLP, d)
	w.add(m+"0.bias", 0, 0.5, c.TaskMLP)
	w.add(m+"1.weight", 1, 0.1, c.TaskMLP)
	w.add(m+"1.bias", 0, 0.1, c.TaskMLP)
	w.add(m+"2.weight", 0, 3/root(c.TaskMLP), len(c.Tasks), c.TaskMLP)
	w.add(m+"2.bias", 0, 0.1, len(c.Tasks))
	w.features(c, t+"_input_preprocessor.")
	return w.list
}

// features adds the tensors of content features, of contextual ones, and of MLPs.
func (w *writer) features(c *hstu.Config, in string) {
	wide, item := c.TableDim, c.TableDim
	for _, f := range c.Content {
		w.table(f.Table, f.Rows, f.Dim)
		if f.Target {
			w.add(in+"_content_encoder._target_enrich_dummy_embeddings."+f.Name, 0, 1/root(f.Dim), 1, f.Dim)
		}
		if wide += f.Dim; f.ItemMLP {
			item += f.Dim
		}
	}
	slots := 0
	for _, f := range c.Features {
		w.table(f.Table, f.Rows, c.TableDim)
		slots += f.MaxLength
	}
	if slots > 0 {
		w.add(in+"_batched_contextual_linear_weights", 0, 1/root(c.TableDim), slots, c.TableDim, c.Hidden)
		w.add(in+"_batched_contextual_linear_bias", 0, 0.1, slots, c.Hidden)
	}
	if c.Preprocessor > 0 {
		w.mlp(in+"_content_embedding_mlp.", wide, c.Preprocessor, c.Hidden)
		w.mlp(in+"_action_embedding_mlp.", c.ActionDim*len(c.ActionWeights), c.Preprocessor, c.Hidden)
	}
	if c.ItemMLP > 0 {
		w.mlp("_item_embedding_mlp.", item, c.ItemMLP, c.Hidden)
	}
}

// table adds an embedding table, once.
func (w *writer) table(name string, rows, dim int) {
	if !w.without[name] {
		w.without[name] = true
		w.add("_embedding_collection.embeddings."+name+".weight", 0, 1/root(dim), rows, dim)
	}
}

func (w *writer) mlp(prefix string, in, hidden, out int) {
	w.add(prefix+"0.weight", 0, 1/root(in), hidden, in)
	w.add(prefix+"0.bias", 0, 0.1, hidden)
	w.add(prefix+"1.weight", 1, 0.1, hidden)
	w.add(prefix+"1.bias", 0, 0.1, hidden)
	w.add(prefix+"2.weight", 0, 1/root(hidden), out, hidden)
	w.add(prefix+"2.bias", 0, 0.1, out)
	w.add(prefix+"3.weight", 1, 0.1, out)
	w.add(prefix+"3.bias", 0, 0.1, out)
}

func root(n int) float64 { return math.Sqrt(float64(n)) }

type writer struct {
	dt   compute.DType
	rand *rand.Rand
	list []safetensors.Named

	without map[string]bool // tables that are not written, or were
}

// add adds a tensor of normally distributed values, which are drawn when it is written.
func (w *writer) add(name string, mean, deviation float64, shape ...int) {
	n := 1
	for _, s := range shape {
		n *= s
	}
	seed := w.rand.Uint64()
	w.list = append(w.list, safetensors.Named{Name: name, DType: w.dt, Shape: shape, Data: func(out io.Writer) error {
		r := rand.New(rand.NewPCG(seed, 1))
		var buf []byte
		for n > 0 {
			buf = buf[:0]
			for range min(n, 4096) {
				buf = safetensors.Encode(buf, w.dt, float32(mean+deviation*r.NormFloat64()))
			}
			n -= min(n, 4096)
			if _, err := out.Write(buf); err != nil {
				return err
			}
		}
		return nil
	}})
}
