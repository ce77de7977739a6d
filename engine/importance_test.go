package engine

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"grebe/blend"
	"grebe/compute"
	"grebe/compute/ref"
	"grebe/plan"
)

// A job that is watched answers as any other and keeps what it shall; what it is told of each layer is what rules are
// told of it.
func TestWatch(t *testing.T) {
	devices := cpuDevices(t)
	devices["ref"] = ref.New()
	for name, dev := range devices {
		t.Run(name, func(t *testing.T) {
			const layers = 4
			e := newTinyOf(t, dev, "f32", Options{}, layers)
			o := newOrdinary(t, e, rand.New(rand.NewPCG(7, 7)))
			want, err := e.Do(t.Context(), o.job(nil))
			if err != nil {
				t.Fatal(err)
			}
			var seen [][]float32
			job := o.job(&Blend{Rule: &Rule{Watch: func(layer int, received []float32) {
				if layer != len(seen) {
					t.Errorf("layer %d after %d others", layer, len(seen))
				}
				seen = append(seen, slices.Clone(received))
			}}})
			job.Segments = keeping(false, false, true, false)
			got, err := e.Do(t.Context(), job)
			if err != nil {
				t.Fatal(err)
			}
			defer got.Kept[2].Release()
			if d := distance(got.Logits[0], want.Logits[0]); d != 0 || got.Computed != want.Computed || len(seen) != layers {
				t.Errorf("answer off by %g, %d tokens computed of %d, %d layers told of %d", d, got.Computed, want.Computed,
					len(seen), layers)
			}
			for layer := range layers - 1 {
				rule := &Rule{Layer: layer, Received: true, Score: func(score, received []float32, _ []plan.Source,
					_ []compute.Segment) {
					if !slices.Equal(received, seen[layer]) {
						t.Errorf("layer %d: watched %v, a rule is told %v", layer, seen[layer], received)
					}
					clear(score)
				}}
				if _, err := e.Do(t.Context(), o.job(&Blend{Parts: o.parts(), Rule: rule})); err != nil {
					t.Fatal(err)
				}
			}
			if rows := o.plan.Tokens(); len(seen[layers-1]) != rows ||
				abs(total(seen[layers-1])-float32(rows)) > 1e-3*float32(rows) {
				t.Errorf("the last layer's rows received %v, want one for each of %d rows", total(seen[layers-1]), rows)
			}
		})
	}
}

func total(values []float32) (out float32) {
	for _, v := range values {
		out += v
	}
	return out
}

func abs(v float32) float32 { return max(v, -v) }

// Nothing stands in for what is watched.
func TestWatchRefusesParts(t *testing.T) {
	e := newTiny(t, ref.New(), "f32", Options{})
	o := newOrdinary(t, e, rand.New(rand.NewPCG(7, 8)))
	_, err := e.Do(t.Context(), o.job(&Blend{Parts: o.parts(), Rule: &Rule{Watch: func(int, []float32) {}}}))
	if err == nil || !strings.Contains(err.Error(), "watched") {
		t.Errorf("error %v, want that a watched job has parts", err)
	}
}

// Tokens of blocks are chosen by what is known of them; those of prototypes by attention, beside them.
func TestBlendByImportance(t *testing.T) {
	e := newTiny(t, ref.New(), "f32", Options{})
	o := newOrdinary(t, e, rand.New(rand.NewPCG(8, 8)))
	r := rand.New(rand.NewPCG(9, 9))
	of := make([]float32, e.model.Vocab())
	for i := range of {
		of[i] = r.Float32()
	}
	m := blend.NewImportance(of)
	by := func(parts []Part, b *Blend) *Result {
		t.Helper()
		b.Parts, b.Budget, b.Layers = parts, blend.Budget{Items: 0.3, History: 0.5}, 1
		got, err := e.Do(t.Context(), o.job(b))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	blocks := o.parts()
	tokens := o.plan.Segments[2].Tokens
	rule := &Rule{Score: func(score, _ []float32, from []plan.Source, segments []compute.Segment) {
		clear(score)
		first := segments[2].First - segments[0].First
		for i, token := range tokens {
			score[first+i] = of[token]
		}
	}}
	got, want := by(blocks, &Blend{Importance: m}), by(blocks, &Blend{Rule: rule})
	if d := distance(got.Logits[0], want.Logits[0]); d != 0 || !slices.Equal(got.Reused, want.Reused) {
		t.Errorf("reused %v of each block and an answer off by %g, want %v", got.Reused, d, want.Reused)
	}
	if other := by(blocks, &Blend{}); distance(got.Logits[0], other.Logits[0]) == 0 {
		t.Error("attention chooses alike: the test says nothing")
	}
	mixed := o.parts()
	for i := range mixed[:len(mixed)/2] {
		mixed[i].Source = plan.Prototype
	}
	got, want = by(mixed, &Blend{Importance: m}), by(mixed, &Blend{})
	if n := len(mixed) / 2; !slices.Equal(got.Reused[:n], want.Reused[:n]) ||
		slices.Equal(got.Reused[n:], want.Reused[n:]) {
		t.Errorf("of prototypes and blocks %v are reused, by attention alone %v: want the same of prototypes, and not of "+
			"blocks", got.Reused,
			want.Reused)
	}
}
