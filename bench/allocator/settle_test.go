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

// When hot users become fewer the controller follows at once: within three epochs it has moved as far as it may, less
// what the ghosts hold against it.
func TestTheClimberFollowsAFall(t *testing.T) {
	const at = 60
	for _, costs := range []string{"derived", "measured"} {
		for _, seed := range regime.VerdictSeeds()[:2] {
			spec, err := regime.Named("steady", seed)
			if err != nil {
				t.Fatal(err)
			}
			spec.Rate, spec.Lift = 280, 0.7
			for i := range spec.Hot {
				if spec.Hot[i] = 0.5; i >= regime.Warm+at {
					spec.Hot[i] = 0.2
				}
			}
			got := shares(t, costs, &spec)
			if moved := got[at+3] - got[at]; moved < 0.1 {
				t.Errorf("%s costs, seed %d: three epochs after the fall the share has moved by %.3f", costs, seed, moved)
			}
			if got := span(got[len(got)-24:]); got > 0.1 {
				t.Errorf("%s costs, seed %d: at the end the share is not within 0.05 of its mean, it moves by %.3f", costs, seed,
					got)
			}
		}
	}
}
