package regime

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Training returns a workload to train and tune on: of the same family as the named ones, with another course of the
// hot share and other loads, gaps, tables and popularity. Seeds are apart from those of the verdict.
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

// TrainingNode returns a workload of a node of eight GPUs to tune on: of the same family as those that begin with
// node-, with other courses of the hot share (level, drifts up and down, bursts of other heights and times, steps that
// last), loads, gaps, tables and popularity.
func TrainingNode(seed uint64) Spec {
	r := rand.New(rand.NewPCG(seed, 0x40DE5))
	s := nodeBase(fmt.Sprintf("training-node-%d", seed), 2_000_000+seed)
	s.Lift = 0.15 + 0.2*r.Float64()
	s.Gap = 4 + 2*r.Float64()
	s.Tables = 28 + r.IntN(5)
	s.Skew = 0.84 + 0.04*r.Float64()
	s.Rate = 8 * (380 + 60*r.Float64())
	low, high := 0.15+0.1*r.Float64(), 0.4+0.15*r.Float64()
	s.Base = low
	for i := range s.Hot {
		s.Hot[i] = low
	}
	judged := s.Hot[Warm:]
	switch seed % 5 {
	case 0: // level
	case 1: // up
		for i := range judged {
			judged[i] = low + (high-low)*float64(i)/float64(len(judged)-1)
		}
	case 2: // up, then down
		for i := range judged {
			judged[i] = high - (high-low)*math.Abs(2*float64(i)/float64(len(judged)-1)-1)
		}
	case 3: // bursts
		bursts(r, judged, high, 4+8*r.Float64())
	case 4: // a step that lasts
		for i := range judged[len(judged)/4:] {
			judged[len(judged)/4+i] = high
		}
	}
	return s
}
