package blend

import (
	"testing"

	"grebe/blend"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/engine"
	"grebe/prompt"
)

// idle is a device whose runners compute nothing: what is left is the host's part of a pass.
type idle struct{ compute.Device }

func (d idle) Open(compute.Shape, int) (compute.Runner, error) { return &idleRunner{}, nil }

type idleRunner struct{}

func (r *idleRunner) Begin(*compute.Batch) error         { return nil }
func (r *idleRunner) Embed(compute.Table)                {}
func (r *idleRunner) QKV(int, *compute.AttentionWeights) {}
func (r *idleRunner) Attend(int)                         {}
func (r *idleRunner) Keep([]int32)                       {}
func (r *idleRunner) Output(*compute.AttentionWeights)   {}
func (r *idleRunner) FFN(*compute.FFNWeights)            {}
func (r *idleRunner) Logits(compute.Vector, compute.Table, []compute.Pair, []float32) error {
	return nil
}
func (r *idleRunner) Project(compute.Vector, compute.Linear, []int32, []float32) error { return nil }
func (r *idleRunner) Hidden(compute.Vector, []int32, []float32) error                  { return nil }
func (r *idleRunner) Close() error                                                     { return nil }
func (r *idleRunner) Place(int, []compute.Part)                                        {}

func (r *idleRunner) Received(out []float32) error {
	for i := range out {
		out[i] = float32(i * 7919 % 1009)
	}
	return nil
}

// BenchmarkHost is what engine and model add to a pass of the device, blended and not.
func BenchmarkHost(b *testing.B) {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		b.Fatal(err)
	}
	shape := Shapes["tiny"]
	shape.Layers = 36
	m, err := randomModel(dev, shape, 1)
	if err != nil {
		b.Fatal(err)
	}
	builder, err := prompt.New(prompt.Config{Preamble: prompt.Text{Tokens: ints(1, 207)},
		Instruction: prompt.Text{Tokens: ints(2, 20)}}, nil, randomVocab)
	if err != nil {
		b.Fatal(err)
	}
	s, err := newSystem(idle{dev}, m, builder, roomFor(prompts, 1, m.Shape()), engine.Options{MaxTokens: 8192})
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	for name, budget := range map[string]*blend.Budget{"blended": {Items: 0.3, History: 0.3}, "full": nil} {
		b.Run(name, func(b *testing.B) {
			q, err := s.question(b.Context(), 1, prompts[1])
			if err != nil {
				b.Fatal(err)
			}
			defer q.release()
			j := q.job(budget, 0)
			for b.Loop() {
				if _, err := s.engine.Do(b.Context(), j); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

var _ compute.Blender = (*idleRunner)(nil)

// TestInLayers: whole layers count as such.
func TestInLayers(t *testing.T) {
	if got := inLayers([2]int{1000, 250}, 36, 2); got != 36000/(2000+34*250.0) {
		t.Errorf("two of 36 layers whole: %v", got)
	}
	if got := inLayers([2]int{1000, 250}, 2, 4); got != 2000/1250.0 {
		t.Errorf("one layer is left at least: %v", got)
	}
}
