package gpu

import (
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
)

// TestRoundingMovesRandomModels: float64 beside float64, both of which round weights and inputs of products to e4m3.
// One of them also rounds to bf16 where a GPU stores bf16. That moves a random model with weights of bf16 by less than
// 0.5 %, and with FP8 by more than three times as much: a value that is moved over a boundary of e4m3 moves by a
// step. So limits below that hold for no device with bf16 between its products.
func TestRoundingMovesRandomModels(t *testing.T) {
	if testing.Short() {
		t.Skip("the reference is slow")
	}
	for _, x := range trials() {
		t.Run(x.name, func(t *testing.T) {
			off := map[compute.DType]float64{}
			for _, x.spec.weights = range []compute.DType{compute.BF16, compute.FP8} {
				var states [2][]float32
				for i, d := range []compute.Device{ref.New(), ref.NewCoarse()} {
					var err error
					if states[i], err = x.on(d, 1); err != nil {
						t.Fatal(err)
					}
				}
				off[x.spec.weights] = distance(states[1], states[0])
			}
			t.Logf("weights of bf16 %.4f, of FP8 %.4f", off[compute.BF16], off[compute.FP8])
			if bf16, fp8 := off[compute.BF16], off[compute.FP8]; bf16 > 0.005 || fp8 < 3*bf16 || fp8 > limitFP8 {
				t.Errorf("bf16 moves weights of bf16 by %.4f and of FP8 by %.4f", bf16, fp8)
			}
		})
	}
}
