package allocator

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"grebe/alloc"
	"grebe/bench/allocator/smart"
	"grebe/evict"
	"grebe/workload/regime"
)

// predictors name the best share of the next epoch from what was seen: gradient-boosted trees from the last state, a
// recurrent network from all of them. They were fitted to the best shares of training workloads, found by sweeps.
type predictors struct {
	Trees     *evict.Model `json:"trees"`
	Recurrent *recurrent   `json:"recurrent"`
}

//go:embed predictors.json
var predictorsFile []byte

func trainedPredictors() (*predictors, error) {
	var p predictors
	if err := json.Unmarshal(predictorsFile, &p); err != nil {
		return nil, fmt.Errorf("allocator: read predictors: %w", err)
	}
	if p.Trees == nil || p.Recurrent == nil {
		return nil, fmt.Errorf("allocator: predictors are missing: write them with grebe-bench train allocator --predictors")
	}
	return &p, nil
}

const (
	fitWorkloads = 24
	fitEpochs    = 60
	fitFirst     = 7000 // seed
)

// TrainPredictors fits the predictors and returns them as the binary carries them.
func TrainPredictors(ctx context.Context) ([]byte, error) {
	cost, err := Costs("derived")
	if err != nil {
		return nil, err
	}
	shares := grid(0.1)
	var samples []evict.Sample
	var labels []float32
	var seqs [][][smart.Features]float64
	var wants [][]float64
	for w := range fitWorkloads {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		spec := regime.Training(uint64(fitFirst+w), regime.Warm+fitEpochs)
		runs, err := sweep(cost, []regime.Spec{spec}, shares, how{})
		if err != nil {
			return nil, err
		}
		best := bestShares(shares, runs, 2)
		for a := range shares {
			states := runs[a][0].states
			want := make([]float64, len(states))
			for t := range states {
				want[t] = best[min(t+1, len(best)-1)]
				var s evict.Sample
				for i, v := range states[t] {
					s[i] = float32(v)
				}
				samples, labels = append(samples, s), append(labels, float32(want[t]))
			}
			seqs, wants = append(seqs, states), append(wants, want)
		}
	}
	p := predictors{Trees: evict.Train(samples, labels,
		evict.TrainParams{Trees: 60, Depth: 4, Rate: 0.1, MinLeaf: 40, Seed: 1})}
	r := rand.New(rand.NewPCG(1, 0x6E0))
	p.Recurrent = newRecurrent(r)
	p.Recurrent.fit(r, seqs, wants, 30)
	return json.Marshal(p)
}

// follower goes to where a predictor points, as fast as the policy may.
type follower struct {
	trees  *evict.Model // or
	gated  *recurrent
	memory [units]float64
}

// Decide asks the predictor.
func (f *follower) Decide(o *alloc.Observation) alloc.Decision {
	var x [smart.Features]float64
	smart.Vector(&o.State, &x, SLO)
	want := 0.0
	if f.trees != nil {
		var s [1]evict.Sample
		var out [1]float32
		for i, v := range x {
			s[0][i] = float32(v)
		}
		f.trees.Predict(s[:], out[:])
		want = float64(out[0])
	} else {
		m := moment{x: x, before: f.memory}
		f.gated.forward(&m)
		f.memory, want = m.after, m.y
	}
	d := alloc.Decision{From: o.Alpha, Base: min(max(want-o.Alpha, -0.06), 0.06)}
	d.To = alloc.Clip(o.Alpha + d.Base)
	return d
}
