package allocator

import (
	"testing"

	"grebe/alloc"
	"grebe/workload/regime"
)

// shares serves a workload with the controller that grebe serves with, and returns the share of each epoch, those of
// warming up left out.
func shares(t *testing.T, costs string, spec *regime.Spec) []float64 {
	t.Helper()
	cost, err := Costs(costs)
	if err != nil {
		t.Fatal(err)
	}
	p, err := play(cost, spec, newClimb(), how{})
	if err != nil {
		t.Fatal(err)
	}
	return p.alpha
}

// span returns the distance between the least and the largest share.
func span(shares []float64) float64 {
	low, high := alloc.MaxShare, alloc.MinShare
	for _, a := range shares {
		low, high = min(low, a), max(high, a)
	}
	return high - low
}

// settled is how many epochs of unchanged traffic are for the controller to settle.
const settled = 48

// Under traffic that does not change the controller settles, and then moves by no more than 0.05. Nothing was tuned on
// these seeds.
func TestTheClimberSettles(t *testing.T) {
	for _, costs := range []string{"derived", "measured"} {
		for _, seed := range regime.VerdictSeeds()[:3] {
			spec, err := regime.Named("steady", seed)
			if err != nil {
				t.Fatal(err)
			}
			if got := span(shares(t, costs, &spec)[settled:]); got > 0.05 {
				t.Errorf("%s costs, seed %d: the share moves by %.3f under steady traffic", costs, seed, got)
			}
		}
	}
}

// After the share of hot users changed, the boundary is within three epochs where it ends, and stays there.
func TestTheClimberFollowsShifts(t *testing.T) {
	for _, costs := range []string{"derived", "measured"} {
		cost, err := Costs(costs)
		if err != nil {
			t.Fatal(err)
		}
		for _, shift := range []struct{ from, to, least, most float64 }{{0.5, 0.2, 0.2, 0.5}, {0.2, 0.5, -0.5, -0.2}} {
			for _, seed := range regime.VerdictSeeds()[:2] {
				spec, err := shifted(seed, shift.from, shift.to)
				if err != nil {
					t.Fatal(err)
				}
				p, err := play(cost, &spec, newClimb(), how{})
				if err != nil {
					t.Fatal(err)
				}
				got := settle([]*played{p})
				if moved := got.To - got.From; got.Within != 1 || moved < shift.least || moved > shift.most || got.Span > 0.05 {
					t.Errorf("%s costs, seed %d, hot users from %.1f to %.1f: from %.3f to %.3f in %d epochs, then it moves by %.3f",
						costs, seed, shift.from, shift.to, got.From, got.To, got.Epochs[0], got.Span)
				}
			}
		}
	}
}
