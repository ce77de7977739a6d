package allocator

import (
	"context"
	"fmt"
	"math"
	"slices"

	"grebe/bench/report"
	"grebe/workload/regime"
)

// Settle is how long the default controller takes to settle after the share of hot users changes for good, and how far
// it moves under traffic that does not change.
type Settle struct {
	Shift  string  `json:"shift"`
	Seeds  int     `json:"seeds"`
	Epochs []int   `json:"epochs"` // by seed: from the shift until the share stays near where it ends
	Within int     `json:"within"` // seeds that took settleMost epochs at most
	From   float64 `json:"from"`   // share before and after the shift, mean over seeds
	To     float64 `json:"to"`
	Span   float64 `json:"span"`   // between the least and the largest share of the last epochs, the largest of all seeds
	Spread float64 `json:"spread"` // between the shares that seeds end with
	P99    float64 `json:"p99"`    // of the epochs after the shift, milliseconds, mean over seeds
	Before float64 `json:"before"` // of as many before it
}

const (
	settleAt   = 60   // judged epochs before the shift
	settleLast = 24   // epochs whose mean is where the share ends
	settleNear = 0.05 // distance that counts as there
	settleMost = 3    // epochs that the bar allows
)

// shifts are the changes: from and to which share of hot users.
var shifts = []struct {
	name     string
	from, to float64
}{{"fall", 0.5, 0.2}, {"rise", 0.2, 0.5}, {"none", 0.2, 0.2}, {"none, half hot", 0.5, 0.5}}

// shifted returns a workload whose share of hot users changes once. It comes close to the load of the named ones on
// either side.
func shifted(seed uint64, from, to float64) (regime.Spec, error) {
	spec, err := regime.Named("steady", seed)
	if err != nil {
		return spec, err
	}
	spec.Rate, spec.Lift = 280, 0.7
	for i := range spec.Hot {
		if spec.Hot[i] = from; i >= regime.Warm+settleAt {
			spec.Hot[i] = to
		}
	}
	return spec, nil
}

// settles measures every shift.
func settles(ctx context.Context, cost *Cost, opt Options) ([]Settle, error) {
	var out []Settle
	for _, shift := range shifts {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		runs := make([]*played, opt.Seeds)
		err := each(opt.Seeds, func(i int) error {
			spec, err := shifted(regime.VerdictSeeds()[i], shift.from, shift.to)
			if err != nil {
				return err
			}
			runs[i], err = play(cost, &spec, newClimb(), how{})
			return err
		})
		if err != nil {
			return nil, err
		}
		s := settle(runs)
		s.Shift = shift.name
		out = append(out, s)
	}
	return out, nil
}

func settle(runs []*played) Settle {
	s := Settle{Seeds: len(runs)}
	n := float64(len(runs))
	least, most := 1.0, 0.0
	for _, r := range runs {
		last := r.alpha[len(r.alpha)-settleLast:]
		end := average(last)
		epochs := 0 // from the shift to the last epoch that is not near
		for i, a := range r.alpha[settleAt:] {
			if math.Abs(a-end) > settleNear {
				epochs = i + 1
			}
		}
		s.Epochs = append(s.Epochs, epochs)
		if epochs <= settleMost {
			s.Within++
		}
		s.From += r.alpha[settleAt] / n
		s.To += end / n
		s.Span = max(s.Span, slices.Max(last)-slices.Min(last))
		least, most = min(least, end), max(most, end)
		s.Before += average(r.p99[settleAt-settleLast:settleAt]) / n
		s.P99 += average(r.p99[settleAt:settleAt+settleLast]) / n
	}
	s.Spread = most - least
	return s
}

func (p *printer) settles(all []Settle) {
	p.printf("how the share follows when hot users go from 0.5 to 0.2 (fall) or from 0.2 to 0.5 (rise) for good\n")
	p.printf("%-16s %6s %8s %12s %8s %8s %8s %8s %8s %14s\n", "", "seeds", "median", "most epochs",
		fmt.Sprintf("in %d", settleMost), "from", "to", "span", "spread", "epochs' P99")
	for i := range all {
		s := &all[i]
		sorted := make([]float64, 0, len(s.Epochs))
		for _, e := range s.Epochs {
			sorted = append(sorted, float64(e))
		}
		p.printf("%-16s %6d %8.1f %12d %8d %8.3f %8.3f %8.3f %8.3f %6.1f -> %4.1f\n", s.Shift, s.Seeds,
			report.Median(sorted), slices.Max(s.Epochs), s.Within, s.From, s.To, s.Span, s.Spread, s.Before, s.P99)
	}
	p.printf("\n")
}
