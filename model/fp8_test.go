package model_test

import (
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/model"
)

// recorder notes in what formats matrices are packed.
type recorder struct {
	compute.Device
	packed map[compute.DType]int // by the format that they compute in
	stored map[compute.DType]int // by the format that they come in
}

func newRecorder() *recorder {
	return &recorder{ref.New(), map[compute.DType]int{}, map[compute.DType]int{}}
}

func (r *recorder) Quantises(dt compute.DType) bool { return dt == compute.FP8 }

func (r *recorder) note(dt compute.DType, parts ...compute.Tensor) {
	r.packed[dt]++
	for i := range parts {
		r.stored[parts[i].DType]++
	}
}

func (r *recorder) Linear(dt compute.DType, parts ...compute.Tensor) (compute.Linear, error) {
	r.note(dt, parts...)
	return r.Device.Linear(dt, parts...)
}

func (r *recorder) GateUp(dt compute.DType, gate, up compute.Tensor) (compute.Linear, error) {
	r.note(dt, gate, up)
	return r.Device.GateUp(dt, gate, up)
}

// TestFP8Weights: on a device that computes in FP8, numbers of FP8 with a scale for each row stay as they are, those
// with scales of blocks are rounded again, with a warning, and other weights are rounded only if asked for.
func TestFP8Weights(t *testing.T) {
	plain := write(t, wide())
	for name, c := range map[string]struct {
		scheme, weights string
		eight, stored   bool // computes in FP8, from what is stored
		warning         string
	}{
		"bf16, auto":    {},
		"bf16, fp8":     {weights: "fp8", eight: true},
		"channel, auto": {scheme: "fp8 channel", eight: true, stored: true},
		"channel, fp8":  {scheme: "fp8 channel", weights: "fp8", eight: true, stored: true},
		"channel, bf16": {scheme: "fp8 channel", weights: "bf16", warning: "expanded"},
		"tensor, auto":  {scheme: "fp8 tensor", eight: true, stored: true},
		"blocks, auto":  {scheme: "fp8 blocks", eight: true, warning: "rounded again"},
		"int8, auto":    {scheme: "int8", warning: "expanded"},
		"int8, fp8":     {scheme: "int8", weights: "fp8", eight: true, warning: "expanded"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, twin := plain, plain
			if c.scheme != "" {
				dir, twin = write(t, wide()), write(t, wide())
				s := schemes[c.scheme]
				s.quantise(t, dir, twin)
			}
			d, warned := newRecorder(), []string(nil)
			got := states(t, dir, d, model.Options{Weights: c.weights, Warn: func(s string) { warned = append(warned, s) }})
			if (d.packed[compute.FP8] > 0) != c.eight || (d.packed[compute.BF16] > 0) == c.eight {
				t.Errorf("products in %v", d.packed)
			}
			if (d.stored[compute.FP8] > 0) != c.stored || c.stored && len(d.stored) != 1 {
				t.Errorf("matrices came in %v", d.stored)
			}
			if want := strings.Join(warned, "\n"); c.warning == "" && want != "" || !strings.Contains(want, c.warning) ||
				len(warned) > 1 {
				t.Errorf("warnings %q, want %q", warned, c.warning)
			}
			if off := distance(got, states(t, twin, ref.New(), model.Options{DType: "f32"})); off > 0.1 {
				t.Errorf("%.3f off what the checkpoint stands for", off)
			}
		})
	}
}

// TestFP8Refuses: FP8 computes beside bf16, and takes no codes that are no numbers.
func TestFP8Refuses(t *testing.T) {
	_, err := model.Open(write(t, wide()), newRecorder(), model.Options{DType: "f32", Weights: "fp8"})
	wantError(t, err, "dtype is f32")
	dir, twin := write(t, wide()), write(t, wide())
	s := schemes["fp8 channel"]
	s.quantise(t, dir, twin)
	d := newRecorder()
	states(t, dir, d, model.Options{DType: "f32"})
	if d.packed[compute.F32] == 0 || d.packed[compute.FP8] > 0 {
		t.Errorf("with dtype f32, products in %v", d.packed)
	}
}
