package regime

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
)

// Warm is how many epochs of a workload are for caches and controllers to settle: nothing is judged there.
const Warm = 12

// measured is how many epochs are judged.
const measured = 108

// base is what the named workloads have in common: a node with one GPU, 5 TB of tables, histories of 5 to 15 thousand
// events (HLEM's section V), 100 candidates.
func base(name string, seed uint64) Spec {
	return Spec{
		Name: name, Seed: seed, Base: 0.2, MinEvents: 5000, MaxEvents: 15000,
		Gap: 8, Spread: 0.3, Session: 20, NewEvents: 10, Candidates: 100,
		Tables: 32, Grains: 312_500, Grain: 16384, Skew: 1.05,
	}
}

// Names are those that Named knows: the three of the paper and swing on one GPU, and the three again on a node of
// eight.
func Names() []string {
	return []string{"steady", "trend", "burst", "swing", "node-steady", "node-trend", "node-burst"}
}

// VerdictSeeds are the seeds on which controllers are judged. Nothing is trained or tuned on them.
func VerdictSeeds() []uint64 {
	seeds := make([]uint64, 20)
	for i := range seeds {
		seeds[i] = 9001 + uint64(i)
	}
	return seeds
}

// Named returns a workload on which controllers are judged.
//
//	steady  a fifth of the requests comes from hot users
//	trend   their share goes from 0.2 to 0.5
//	burst   it is 0.2, and 0.5 for 3 to 5 epochs now and then
//	swing   it goes up and down between 0.05 and 0.6, the ends of the paper's figure 16, in four minutes
//
// Those that begin with node- are a second reading of the paper, see node.
//
// Seeds change users, lengths, items and times of arrival. When bursts come is the same for all seeds, so that the best
// division of an epoch can be found from several draws of it.
func Named(name string, seed uint64) (Spec, error) {
	if kind, ok := strings.CutPrefix(name, "node-"); ok {
		return node(kind, seed)
	}
	s := base(name, seed)
	s.Hot = make([]float64, Warm+measured)
	for i := range s.Hot {
		s.Hot[i] = 0.2
	}
	switch name {
	case "steady":
		s.Rate = 305
	case "trend":
		s.Rate, s.Lift = 290, 0.8
		for i := range measured {
			s.Hot[Warm+i] = 0.2 + 0.3*float64(i)/(measured-1)
		}
	case "burst":
		s.Rate, s.Lift = 270, 0.2
		bursts(rand.New(rand.NewPCG(77, 77)), s.Hot[Warm:], 0.5, 8)
	case "swing":
		s.Rate, s.Lift = 280, 0.7
		for i := range s.Hot {
			s.Hot[i] = 0.325 - 0.275*math.Cos(2*math.Pi*float64(i)/48)
		}
	default:
		return Spec{}, fmt.Errorf("regime: no workload %q", name)
	}
	return s, nil
}

// bursts raises the share for 3 to 5 epochs at a time, with a mean of calm epochs in between.
func bursts(r *rand.Rand, hot []float64, to, calm float64) {
	for at := int(r.ExpFloat64() * calm); at < len(hot); {
		n := 3 + r.IntN(3)
		for i := at; i < min(at+n, len(hot)); i++ {
			hot[i] = to
		}
		at += n + 1 + int(r.ExpFloat64()*calm)
	}
}
