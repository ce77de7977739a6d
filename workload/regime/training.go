package regime

import (
	"fmt"
	"math/rand/v2"
)

// Training returns a workload to train and tune on: of the same family as the named ones, with another course of the hot
// share and other loads, gaps, tables and popularity. Seeds are apart from those of the verdict.
func Training(seed uint64, epochs int) Spec {
	r := rand.New(rand.NewPCG(seed, 0x7EAC4))
	s := base(fmt.Sprintf("training-%d", seed), 1_000_000+seed)
	s.Rate = 240 + 70*r.Float64()
	s.Lift = 0.9 * r.Float64()
	s.Gap = 5 + 7*r.Float64()
	s.Tables = 24 + r.IntN(13)
	s.Skew = 1.02 + 0.1*r.Float64()
	s.Hot = course(r, epochs)
	return s
}

// TrainingNode is Training for workloads of nodes, smaller ones, so that they are served in a quarter of the time.
func TrainingNode(seed uint64, epochs int) (Spec, error) {
	r := rand.New(rand.NewPCG(seed, 0x40DE))
	s, err := node("steady", 2_000_000+seed)
	if err != nil {
		return s, err
	}
	s.Name = fmt.Sprintf("training-node-%d", seed)
	s.GPUs = 2
	s.Rate = 2 * (360 + 100*r.Float64())
	s.Lift = 0.5 * r.Float64()
	s.Gap = 4 + 3*r.Float64()
	s.Tables = 26 + r.IntN(9)
	s.Skew = 0.82 + 0.08*r.Float64()
	s.Return = r.IntN(2) == 0
	s.Hot = course(r, epochs)
	return s, nil
}

// course draws hot shares by epoch: they wander, jump now and then, and one in three has bursts.
func course(r *rand.Rand, epochs int) []float64 {
	hot := make([]float64, epochs)
	h := 0.05 + 0.55*r.Float64()
	for i := range hot {
		switch {
		case r.Float64() < 0.05:
			h = 0.05 + 0.55*r.Float64()
		default:
			h = min(max(h+0.02*r.NormFloat64(), 0.05), 0.6)
		}
		hot[i] = h
	}
	if r.IntN(3) == 0 {
		bursts(r, hot, 0.4+0.2*r.Float64(), 8)
	}
	return hot
}
