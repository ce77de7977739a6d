package allocator

import (
	"context"

	"grebe/workload/regime"
)

// Load is what there is to gain at one load: the optimum beside the best static share and the one that is best over all
// workloads.
type Load struct {
	Workload string  `json:"workload"`
	Times    float64 `json:"times"` // the workload's own rate
	Best     float64 `json:"best"`
	Static   float64 `json:"static"`  // P99 there
	Half     float64 `json:"half"`    // P99 of a share of 0.5
	Optimum  float64 `json:"optimum"` // P99
	Climb    float64 `json:"climb"`   // P99
	Within   float64 `json:"within"`  // the optimum's share within the SLO
}

// loads repeats the workloads at other rates, with two seeds and coarser shares.
func loads(ctx context.Context, cost *Cost, opt Options) ([]Load, error) {
	var out []Load
	shares := grid(0.1)
	for _, name := range opt.Workloads {
		for _, times := range []float64{0.9, 1, 1.1, 1.2} {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			var specs []regime.Spec
			for _, seed := range regime.VerdictSeeds()[:min(2, opt.Seeds)] {
				s, err := regime.Named(name, seed)
				if err != nil {
					return nil, err
				}
				s.Rate *= times
				specs = append(specs, s)
			}
			l, err := load(cost, specs, shares)
			if err != nil {
				return nil, err
			}
			l.Workload, l.Times = name, times
			out = append(out, *l)
		}
	}
	return out, nil
}

func load(cost *Cost, specs []regime.Spec, shares []float64) (*Load, error) {
	runs, err := sweep(cost, specs, shares, how{})
	if err != nil {
		return nil, err
	}
	best, half := 0, 0
	for i, a := range shares {
		if mean(runs[i], (*played).P99) < mean(runs[best], (*played).P99) {
			best = i
		}
		if a < 0.55 {
			half = i
		}
	}
	ideal, err := optimum(cost, specs, shares, runs)
	if err != nil {
		return nil, err
	}
	got := [2][]*played{make([]*played, len(specs)), make([]*played, len(specs))}
	err = each(2*len(specs), func(i int) error {
		var err error
		s := i / 2
		if i%2 == 0 {
			got[0][s], err = play(cost, &specs[s], &oracle{shares: ideal}, how{})
		} else {
			got[1][s], err = play(cost, &specs[s], newClimb(), how{})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Load{
		Best: shares[best], Static: mean(runs[best], (*played).P99), Half: mean(runs[half], (*played).P99),
		Optimum: mean(got[0], (*played).P99), Climb: mean(got[1], (*played).P99), Within: mean(got[0], (*played).within),
	}, nil
}
