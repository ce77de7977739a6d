package allocator

import (
	"context"
	"slices"

	"grebe/alloc"
	"grebe/workload/regime"
)

// Bound is what no schedule of shares that changes between epochs goes below, beside what schedules reach. A controller
// that moves within epochs (alloc.Watcher) may.
//
// Ideal chooses a share for every epoch, with the hits that caches have which always had that share, nothing to refill,
// and nobody waiting when the epoch begins; of all such choices it is the least P99. A schedule has no more hits in an
// epoch than the caches that always had its share: what is in a smaller cache of least recently used entries is in a
// larger one too. So no controller that decides once an epoch, however well it knows the future, is below it (but for a
// change in which rows are looked up, which follows from hits in KV, and for rows that change their set with the number
// of sets).
//
// Found is the best schedule that was found with the node as it is: the share depends on the phase of a burst, all
// phases known beforehand, tried one after the other until none improves.
type Bound struct {
	Workload string    `json:"workload"`
	Times    float64   `json:"times"` // the workload's own rate
	Seeds    int       `json:"seeds"`
	Best     float64   `json:"best"`
	Static   float64   `json:"static"`   // P99 there, milliseconds
	InStatic float64   `json:"in_slo"`   // share within the SLO
	Ideal    float64   `json:"ideal"`    // P99
	ToStatic Interval  `json:"to_ideal"` // ideal to static, seed by seed
	Climb    float64   `json:"climb"`    // P99 of the default controller
	InClimb  float64   `json:"climb_in_slo"`
	ClimbTo  Interval  `json:"to_climb"` // to static, seed by seed
	Found    float64   `json:"found"`    // P99 on the first seed
	FoundTo  float64   `json:"found_to"` // to the best static share of that seed
	Phases   []float64 `json:"phases"`   // shares found
}

// boundTimes are the loads at which there is a bound unless one is named, times a workload's own.
var boundTimes = []float64{0.9, 0.95, 1, 1.02, 1.05}

// bounds finds them for the workloads of a node.
func bounds(ctx context.Context, cost *Cost, opt Options, show func(*Bound)) ([]Bound, error) {
	var out []Bound
	loads := boundTimes
	if opt.Rate != 0 {
		loads = []float64{opt.Rate}
	}
	for _, name := range opt.Workloads {
		for _, times := range loads {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			specs, err := specsOf(name, unjudged(opt.Seeds), times)
			if err != nil {
				return nil, err
			}
			if specs[0].GPUs == 0 {
				break
			}
			b, err := bound(cost, specs, grid(opt.Step))
			if err != nil {
				return nil, err
			}
			b.Workload, b.Times = name, times
			if err := b.search(cost, name, grid(opt.Step)); err != nil {
				return nil, err
			}
			show(b)
			out = append(out, *b)
		}
	}
	return out, nil
}

// unjudged returns so many seeds that are none of the verdict's.
func unjudged(n int) []uint64 {
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = marginSeed + uint64(i)
	}
	return seeds
}

func bound(cost *Cost, specs []regime.Spec, shares []float64) (*Bound, error) {
	runs, err := sweep(cost, specs, shares, how{})
	if err != nil {
		return nil, err
	}
	best := leastP99(runs)
	b := &Bound{Seeds: len(specs), Best: shares[best], Static: mean(runs[best], (*played).P99),
		InStatic: mean(runs[best], (*played).within)}
	climbs := make([]*played, len(specs))
	err = each(len(specs), func(i int) error {
		var err error
		climbs[i], err = play(cost, &specs[i], newClimb(), how{})
		return err
	})
	if err != nil {
		return nil, err
	}
	b.Climb, b.InClimb, b.ClimbTo = mean(climbs, (*played).P99), mean(climbs, (*played).within), ratio(climbs, runs[best])
	alone, err := sweep(cost, specs, shares, how{fresh: true, keep: true})
	if err != nil {
		return nil, err
	}
	ratios := make([]float64, len(specs))
	for s := range specs {
		of := make([]*played, len(shares))
		for a := range shares {
			of[a] = alone[a][s]
		}
		ideal := idealP99(of)
		b.Ideal += ideal / float64(len(specs))
		ratios[s] = ideal / runs[best][s].P99()
	}
	b.ToStatic = interval(ratios)
	return b, nil
}

// leastP99 returns which share of a sweep has the least mean P99.
func leastP99(runs [][]*played) int {
	best := 0
	for i := range runs {
		if mean(runs[i], (*played).P99) < mean(runs[best], (*played).P99) {
			best = i
		}
	}
	return best
}

// idealP99 returns the least P99 when every epoch may be taken from another run: the least time beyond which there is a
// hundredth of all requests, every epoch taken from where fewest are.
func idealP99(runs []*played) float64 {
	total, longest := 0, 0.0
	for _, l := range runs[0].lats {
		total += len(l)
	}
	for _, r := range runs {
		longest = max(longest, r.all[len(r.all)-1])
	}
	low, high := 0.0, longest
	for high-low > 1e-3 {
		at, beyond := (low+high)/2, 0
		for e := range runs[0].lats {
			least := len(runs[0].lats[e])
			for _, r := range runs {
				n, _ := slices.BinarySearch(r.lats[e], at)
				least = min(least, len(r.lats[e])-n)
			}
			beyond += least
		}
		if float64(beyond) <= 0.01*float64(total) {
			high = at
		} else {
			low = at
		}
	}
	return high
}

// Phases of a burst: the calm, the first two epochs of a burst, the others, and the first after it.
const (
	phaseCalm = iota
	phaseFirst
	phaseSecond
	phaseBurst
	phaseAfter
	phases
)

// phasesOf names the phase of every judged epoch. A burst is where the hot share is above where it began.
func phasesOf(spec *regime.Spec) []int {
	out := make([]int, 0, len(spec.Hot))
	in := 0 // epochs since the burst began
	for _, h := range spec.Hot[regime.Warm:] {
		switch hot := h > spec.Hot[0]+0.1; {
		case hot:
			in++
			out = append(out, min(in, phaseBurst))
		case in > 0:
			in = 0
			out = append(out, phaseAfter)
		default:
			out = append(out, phaseCalm)
		}
	}
	return out
}

// search looks for the schedule by phases on the first seed, from its best static share on.
func (b *Bound) search(cost *Cost, name string, shares []float64) error {
	spec, err := regime.Named(name, marginSeed)
	if err != nil {
		return err
	}
	spec.Rate *= b.Times
	runs, err := sweep(cost, []regime.Spec{spec}, shares, how{})
	if err != nil {
		return err
	}
	best := leastP99(runs)
	static := runs[best][0].P99()
	at := make([]int, phases)
	for i := range at {
		at[i] = best
	}
	of := phasesOf(&spec)
	b.Found = static
	for improved := true; improved; {
		improved = false
		for phase := range at {
			moves := []int{-4, -2, -1, 1, 2, 4}
			got := make([]float64, len(moves))
			err := each(len(moves), func(i int) error {
				try := slices.Clone(at)
				try[phase] = min(max(try[phase]+moves[i], 0), len(shares)-1)
				schedule := make([]float64, len(of))
				for e, p := range of {
					schedule[e] = shares[try[p]]
				}
				p, err := play(cost, &spec, &oracle{shares: schedule}, how{from: schedule[0]})
				if err != nil {
					return err
				}
				got[i] = p.P99()
				return nil
			})
			if err != nil {
				return err
			}
			if i := slices.Index(got, slices.Min(got)); got[i] < b.Found-1e-9 {
				b.Found, improved = got[i], true
				at[phase] = min(max(at[phase]+moves[i], 0), len(shares)-1)
			}
		}
	}
	b.FoundTo = b.Found / static
	for _, i := range at {
		b.Phases = append(b.Phases, alloc.Clip(shares[i]))
	}
	return nil
}
