package engine

import (
	"math"
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/internal/fixture"
	"grebe/model"
	_ "grebe/model/llama"
	_ "grebe/model/qwen"
	"grebe/plan"
)

// Outputs equal Hugging Face transformers' with eager attention, an explicit mask and position ids.
// In f32 every value is within 1e-4 of the row's scale. In bf16 the hidden states and the logits of
// all rows of every case are, together, within the error that transformers' own bf16 run has there.
// The truth of rows that are not stored is the reference device's float32 run, which the first part
// of the test holds against transformers.
func TestTransformers(t *testing.T) {
	devices := cpuDevices(t)
	devices["ref"] = ref.New()
	for _, name := range []string{"qwen2-tiny", "qwen3-tiny", "llama-tiny", "qwen2-tiny-bf16", "qwen3-tiny-bf16",
		"llama-tiny-bf16", "llama-tiny-4x-f16"} {
		set := fixture.Load(t, name)
		for device, dev := range devices {
			t.Run(name+"/"+device+"/f32", func(t *testing.T) { exactly(t, set, outputsOf(t, set, dev, "f32")) })
		}
		if set.Weights != "bf16" {
			continue // the measured error belongs to the rounded weights
		}
		truth := outputsOf(t, set, devices["ref"], "f32")
		for device, dev := range devices {
			t.Run(name+"/"+device+"/bf16", func(t *testing.T) { withinBF16(t, set, outputsOf(t, set, dev, "bf16"), truth) })
		}
	}
}

func exactly(t *testing.T, set *fixture.Set, got []outputs) {
	for i := range set.Cases {
		c := &set.Cases[i]
		var hidden, logits rowError
		for _, r := range c.Hidden {
			hidden.add(got[i].hidden[r.Row], r.Values)
		}
		for _, r := range c.Logits {
			logits.add(got[i].logits[r.Row], r.Values)
		}
		if hidden.relative > 1e-4 || logits.relative > 1e-4 {
			t.Errorf("%s: hidden states differ by %.2g, logits by %.2g of their scale, want ≤ 1e-4", c.Name, hidden.relative,
				logits.relative)
		}
	}
}

func withinBF16(t *testing.T, set *fixture.Set, got, truth []outputs) {
	for i := range set.Cases {
		c := &set.Cases[i]
		var hidden, logits rowError
		for row := range got[i].hidden {
			hidden.add(got[i].hidden[row], truth[i].hidden[row])
			logits.add(got[i].logits[row], truth[i].logits[row])
		}
		t.Logf("%s: relative RMS error of hidden states %.4f (transformers' bf16: %.4f), of logits %.4f (%.4f)",
			c.Name, hidden.rms(), c.BF16.HiddenRMS, logits.rms(), c.BF16.LogitsRMS)
		if !(hidden.rms() <= c.BF16.HiddenRMS) || !(logits.rms() <= c.BF16.LogitsRMS) {
			t.Errorf("%s: the error is above that of transformers' bf16", c.Name)
		}
	}
}

// outputs are a case's hidden states after the final norm, and its logits, row by row.
type outputs struct{ hidden, logits [][]float32 }

func outputsOf(t *testing.T, set *fixture.Set, dev compute.Device, dtype string) []outputs {
	t.Helper()
	m, err := model.Open(set.Dir, dev, model.Options{DType: dtype})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	e, err := New(m, dev, Options{MaxTokens: 512})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	var all []outputs
	for i := range set.Cases {
		c := &set.Cases[i]
		p := pass{tasks: []task{{job: &Job{Plan: planOf(t, c)}, out: &Outcome{}}}}
		p.reset()
		if err := p.reserveScratch(e); err != nil {
			t.Fatal(err)
		}
		defer p.free()
		if err := p.add(e, &p.tasks[0]); err != nil {
			t.Fatal(err)
		}
		if err := m.Forward(e.runner, &p.batch, nil); err != nil {
			t.Fatalf("%s: %v", c.Name, err)
		}
		var out outputs
		for row := range int32(c.Tokens()) {
			hidden := make([]float32, len(c.Hidden[0].Values))
			if err := m.Hidden(e.runner, []int32{row}, hidden); err != nil {
				t.Fatal(err)
			}
			logits := make([]float32, set.Vocab)
			pairs := make([]compute.Pair, set.Vocab)
			for id := range pairs {
				pairs[id] = compute.Pair{Row: row, ID: int32(id)}
			}
			if err := m.Logits(e.runner, pairs, logits); err != nil {
				t.Fatal(err)
			}
			out.hidden, out.logits = append(out.hidden, hidden), append(out.logits, logits)
		}
		all = append(all, out)
	}
	return all
}

func planOf(t *testing.T, c *fixture.Case) *plan.Plan {
	t.Helper()
	p := &plan.Plan{}
	for _, s := range c.Segments {
		kind, err := plan.ParseKind(s.Kind)
		if err != nil {
			t.Fatal(err)
		}
		p.Segments = append(p.Segments, plan.Segment{Kind: kind, Tokens: s.Tokens, Start: s.Start, Sees: s.Sees})
	}
	return p
}

// rowError collects how far rows are from what they should be.
type rowError struct {
	diff, want float64 // sums of squares
	relative   float64 // largest difference, of its row's root mean square
}

func (e *rowError) add(got, want []float32) {
	sum, worst := 0.0, 0.0
	for i := range want {
		d := float64(got[i]) - float64(want[i])
		e.diff += d * d
		sum += float64(want[i]) * float64(want[i])
		if worst = max(worst, math.Abs(d)); math.IsNaN(d) {
			worst = math.Inf(1)
		}
	}
	e.want += sum
	e.relative = max(e.relative, worst/math.Sqrt(sum/float64(len(want))))
}

func (e *rowError) rms() float64 { return math.Sqrt(e.diff / e.want) }
