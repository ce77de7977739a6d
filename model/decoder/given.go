package decoder

import (
	"grebe/compute"
	"grebe/model"
)

// Given are weights that a device has already. Layers may share theirs.
type Given struct {
	Config    model.Config // Vocab and MaxPositions
	Shape     compute.Shape
	DType     compute.DType
	Embedding compute.Table // and the output projection
	Norm      compute.Vector
	Attention []compute.AttentionWeights // one per layer
	FFN       []compute.FFNWeights
}

// given is a decoder without a checkpoint.
type given struct{ decoder }

// Of returns the decoder of such weights, for benchmarks of shapes without a checkpoint. The weights stay the caller's.
func Of(g *Given) model.Blender {
	d := &given{decoder{
		checkpoint: &model.Checkpoint{Config: &g.Config, DType: g.DType, KV: g.Shape.KV}, shape: g.Shape,
		embedding: g.Embedding, norm: g.Norm, head: g.Embedding,
	}}
	for i := range g.Attention {
		d.layers = append(d.layers, layer{attention: g.Attention[i], ffn: g.FFN[i]})
	}
	return d
}

func (d *given) Bytes() int64           { return 0 }
func (d *given) CheckpointBytes() int64 { return 0 }
func (d *given) Close() error           { return nil }
