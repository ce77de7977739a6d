// Package decoder is the dense decoder that Qwen2, Qwen3, Llama and their like share: RMS norms,
// grouped attention with rotary positions, a gated feed-forward layer, residuals around both.
//
// What differs between them is a few switches in Features; the names of the tensors are the same.
package decoder

import (
	"fmt"

	"grebe/compute"
	"grebe/model"
)

// Features are what an architecture adds to the plain decoder.
type Features struct {
	QKVBias bool // biases of the query, key and value projections
	OutBias bool // bias of attention's output projection
	MLPBias bool // biases of the feed-forward layer
	QKNorm  bool // RMS norms of each query and key head
}

type decoder struct {
	checkpoint *model.Checkpoint
	shape      compute.Shape

	embedding compute.Table
	layers    []layer
	norm      compute.Vector
	head      compute.Table
	headPart  model.Part // where the head's rows are in the checkpoint
}

type layer struct {
	attention compute.AttentionWeights
	ffn       compute.FFNWeights
}

// Build loads a decoder's weights.
func Build(c *model.Checkpoint, f Features) (model.Model, error) {
	cfg := c.Config
	d := &decoder{
		checkpoint: c,
		shape: compute.Shape{
			Layers: cfg.Layers, Hidden: cfg.Hidden, Heads: cfg.Heads, KVHeads: cfg.KVHeads,
			HeadDim: cfg.HeadDim, Inter: cfg.Inter, Eps: float32(cfg.Eps), KV: c.KV,
			Rope: cfg.Rope.Rope(cfg.HeadDim),
		},
	}
	d.embedding = c.Table(cfg.Hidden, model.Part{Name: model.Embedding, Rows: cfg.Vocab})
	for i := 0; i < cfg.Layers && c.Err() == nil; i++ {
		d.layers = append(d.layers, load(c, f, fmt.Sprintf("layers.%d.", i)))
	}
	d.norm = c.Vector(model.Part{Name: "norm.weight", Rows: cfg.Hidden})
	d.head, d.headPart = d.embedding, model.Part{Name: model.Embedding, Rows: cfg.Vocab}
	if !cfg.TieEmbeddings {
		d.headPart.Name = "lm_head.weight"
		d.head = c.Table(cfg.Hidden, d.headPart)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return d, nil
}

// load packs the weights of one layer, whose tensors' names start with prefix. What keys and values are computed from
// has to be finite where they are kept in FP8, which has no infinity: they would become large numbers, and scores that
// look right. In other formats the scores are not finite, and are refused.
func load(c *model.Checkpoint, f Features, prefix string) (l layer) {
	cfg := c.Config
	part := func(name string, rows int) model.Part { return model.Part{Name: prefix + name, Rows: rows} }
	q, kv := cfg.Heads*cfg.HeadDim, cfg.KVHeads*cfg.HeadDim

	if c.KV == compute.FP8 {
		c.Finite(0, part("input_layernorm.weight", cfg.Hidden))
		for _, name := range []string{"self_attn.k_proj", "self_attn.v_proj"} {
			c.Finite(cfg.Hidden, part(name+".weight", kv))
			if f.QKVBias {
				c.Finite(0, part(name+".bias", kv))
			}
		}
		if f.QKNorm {
			c.Finite(0, part("self_attn.k_norm.weight", cfg.HeadDim))
		}
	}
	a := &l.attention
	a.Norm = c.Vector(part("input_layernorm.weight", cfg.Hidden))
	a.QKV = c.Linear(cfg.Hidden, part("self_attn.q_proj.weight", q),
		part("self_attn.k_proj.weight", kv), part("self_attn.v_proj.weight", kv))
	if f.QKVBias {
		a.QKVBias = c.Vector(part("self_attn.q_proj.bias", q),
			part("self_attn.k_proj.bias", kv), part("self_attn.v_proj.bias", kv))
	}
	if f.QKNorm {
		a.QNorm = c.Vector(part("self_attn.q_norm.weight", cfg.HeadDim))
		a.KNorm = c.Vector(part("self_attn.k_norm.weight", cfg.HeadDim))
	}
	a.Out = c.Linear(q, part("self_attn.o_proj.weight", cfg.Hidden))
	if f.OutBias {
		a.OutBias = c.Vector(part("self_attn.o_proj.bias", cfg.Hidden))
	}

	m := &l.ffn
	m.Norm = c.Vector(part("post_attention_layernorm.weight", cfg.Hidden))
	m.GateUp = c.GateUp(cfg.Hidden, part("mlp.gate_proj.weight", cfg.Inter), part("mlp.up_proj.weight", cfg.Inter))
	m.Down = c.Linear(cfg.Inter, part("mlp.down_proj.weight", cfg.Hidden))
	if f.MLPBias {
		m.GateUpBias = c.Vector(part("mlp.gate_proj.bias", cfg.Inter), part("mlp.up_proj.bias", cfg.Inter))
		m.DownBias = c.Vector(part("mlp.down_proj.bias", cfg.Hidden))
	}
	return l
}

func (d *decoder) Shape() compute.Shape   { return d.shape }
func (d *decoder) Vocab() int             { return d.checkpoint.Config.Vocab }
func (d *decoder) MaxPositions() int      { return d.checkpoint.Config.MaxPositions }
func (d *decoder) DType() compute.DType   { return d.checkpoint.DType }
func (d *decoder) Bytes() int64           { return d.checkpoint.Held() }
func (d *decoder) CheckpointBytes() int64 { return d.checkpoint.Bytes() }
func (d *decoder) Close() error           { return d.checkpoint.Close() }

func (d *decoder) Forward(r compute.Runner, b *compute.Batch, keep []int32) error {
	if err := d.check(b, keep); err != nil {
		return err
	}
	if err := r.Begin(b); err != nil {
		return err
	}
	d.run(r, b, keep)
	return nil
}

// run puts a batch that was begun through the layers.
func (d *decoder) run(r compute.Runner, b *compute.Batch, keep []int32) {
	r.Embed(d.embedding)
	for i := range d.layers {
		d.layer(r, b, i, keep)
	}
}

// layer runs layer i; the last leaves the rows in keep, unless it is nil.
func (d *decoder) layer(r compute.Runner, b *compute.Batch, i int, keep []int32) {
	l, last := &d.layers[i], i == len(d.layers)-1
	b.GiveWay()
	r.QKV(i, &l.attention)
	if last && keep != nil && len(keep) == 0 {
		return // the KV is all that was wanted
	}
	r.Attend(i)
	if last && keep != nil {
		r.Keep(keep)
	}
	b.GiveWay()
	r.Output(&l.attention)
	b.GiveWay()
	r.FFN(&l.ffn)
}

// check refuses ids that are no rows of the embedding and rows that are not in the batch.
func (d *decoder) check(b *compute.Batch, keep []int32) error {
	vocab := d.Vocab()
	for row, id := range b.Tokens {
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf("decoder: row %d: token %d is outside the vocabulary of %d", row, id, vocab)
		}
	}
	for row, p := range b.Positions {
		if p < 0 {
			return fmt.Errorf("decoder: row %d: position %d is negative", row, p)
		}
	}
	before := int32(-1)
	for _, row := range keep {
		if row <= before || int(row) >= len(b.Tokens) {
			return fmt.Errorf("decoder: keep row %d after row %d of %d", row, before, len(b.Tokens))
		}
		before = row
	}
	return nil
}

func (d *decoder) Logits(r compute.Runner, pairs []compute.Pair, out []float32) error {
	vocab := d.Vocab()
	for _, p := range pairs {
		if p.ID < 0 || int(p.ID) >= vocab {
			return fmt.Errorf("decoder: logit of token %d, outside the vocabulary of %d", p.ID, vocab)
		}
	}
	return r.Logits(d.norm, d.head, pairs, out)
}

func (d *decoder) Head(tokens []int32) (compute.Linear, error) {
	return d.checkpoint.Pick(d.shape.Hidden, d.headPart, tokens)
}

func (d *decoder) Project(r compute.Runner, head compute.Linear, rows []int32, out []float32) error {
	return r.Project(d.norm, head, rows, out)
}

func (d *decoder) Hidden(r compute.Runner, rows []int32, out []float32) error {
	return r.Hidden(d.norm, rows, out)
}
