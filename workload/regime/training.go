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
	s.Hot = make([]float64, epochs)
	h := 0.05 + 0.55*r.Float64()
	for i := range s.Hot {
		switch {
		case r.Float64() < 0.05:
			h = 0.05 + 0.55*r.Float64()
		default:
			h = min(max(h+0.02*r.NormFloat64(), 0.05), 0.6)
		}
		s.Hot[i] = h
	}
	if r.IntN(3) == 0 {
		bursts(r, s.Hot, 0.4+0.2*r.Float64(), 8)
	}
	return s
}
