package gpu

import (
	"fmt"
	"math/rand/v2"

	"grebe/compute"
	"grebe/compute/cuda"
	"grebe/compute/ref"
	models "grebe/model"
	_ "grebe/model/llama" // architectures of checkpoints
	_ "grebe/model/qwen"
)

// Prompts of random tokens that a checkpoint is tried with.
const tryPrompts, tryTokens = 4, 120

// checkCheckpoint compares hidden states of a checkpoint's last layer with those of compute/ref, with weights of FP8.
// The reference rounds weights and inputs of products in the same way.
func checkCheckpoint(d cuda.Device, dir string, seed uint64) (Check, error) {
	c := Check{Name: "checkpoint, weights of FP8", Rows: tryPrompts * tryTokens, Limit: 0.02}
	var states [][]float32
	for _, dev := range []compute.Device{ref.New(), d} {
		s, err := checkpointStates(dev, dir, seed)
		if err != nil {
			return c, fmt.Errorf("check %s: %w", dir, err)
		}
		states = append(states, s)
	}
	c.Error = distance(states[1], states[0])
	if !(c.Error <= c.Limit) {
		return c, fmt.Errorf("%s: hidden states differ from compute/ref by %.3g, limit %v (seed %d)", dir, c.Error, c.Limit,
			seed)
	}
	return c, nil
}

// checkpointStates returns the hidden states of all rows.
func checkpointStates(d compute.Device, dir string, seed uint64) (out []float32, err error) {
	m, err := models.Open(dir, d, models.Options{Weights: "fp8"})
	if err != nil {
		return nil, err
	}
	defer m.Close()
	s := m.Shape()
	r, err := d.Open(s, tryPrompts*tryTokens)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	random, b := rand.New(rand.NewPCG(seed, 12)), &compute.Batch{}
	var rows []int32
	for range tryPrompts {
		block, err := d.Memory().Alloc(s.ChunkBytes(tryTokens, false))
		if err != nil {
			return nil, err
		}
		defer d.Memory().Free(block)
		b.Segments = append(b.Segments, compute.Segment{First: len(b.Tokens), Len: tryTokens,
			Chunks: []compute.Chunk{block.Chunk(tryTokens, false)}})
		for i := range tryTokens {
			rows = append(rows, int32(len(b.Tokens)))
			b.Tokens, b.Positions = append(b.Tokens, int32(random.IntN(m.Vocab()))), append(b.Positions, int32(i))
		}
	}
	if err := r.Begin(b); err != nil {
		return nil, err
	}
	if err := m.Forward(r, b, nil); err != nil {
		return nil, err
	}
	out = make([]float32, len(rows)*s.Hidden)
	return out, r.Hidden(nil, rows, out)
}
