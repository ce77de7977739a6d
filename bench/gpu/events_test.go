package gpu

import (
	"slices"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda"
	"grebe/compute/cuda/drivertest"
	"grebe/compute/ref"
)

func eventShape() compute.Shape {
	return compute.Shape{Layers: 3, Hidden: 128, Heads: 2, KVHeads: 2, HeadDim: 64, Eps: 1e-6, KV: compute.BF16,
		Pointwise: &compute.Pointwise{Alpha: 0.125, Scale: 1.0 / 512}}
}

// TestEventsAsGraphsOnTheGPU: batches of many sizes, each of which is launched kernel by kernel, captured and
// replayed, yield the same bits as without graphs.
func TestEventsAsGraphsOnTheGPU(t *testing.T) {
	var want [][]float32
	for _, opt := range []cuda.Options{{NoGraphs: true}, {}, {Plain: true}} {
		d, err := cuda.New(opt)
		if err != nil {
			t.Skipf("no GPU to test on: %v", err)
		}
		defer d.Close()
		got := manyEvents(t, d)
		switch {
		case want == nil:
			want = got
		case !slices.EqualFunc(got, want, slices.Equal) && !opt.Plain:
			t.Error("graphs yield other bits")
		}
		for i := range got {
			if !slices.Equal(got[i], got[i%len(sizes)]) {
				t.Errorf("%+v: %d rankings, turn %d: other bits than in the first turn", opt, sizes[i%len(sizes)], i/len(sizes))
			}
		}
	}
}

// sizes are numbers of rankings of a batch, whose products have different sizes.
var sizes = []int{1, 2, 3, 5, 8}

// manyEvents runs batches of all sizes in four turns.
func manyEvents(t *testing.T, d compute.Device) (out [][]float32) {
	t.Helper()
	e, err := newRankings(d, eventShape(), slices.Max(sizes), 300, 7, 30)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	for range 4 {
		for _, n := range sizes {
			states, err := e.run(e.of(e.users[:n]))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, states)
		}
	}
	return out
}

// TestEventsAgainstTheReference: the bench's batches have finite states, and a ranking does not depend on others.
func TestEventsAgainstTheReference(t *testing.T) {
	e, err := newRankings(ref.New(), eventShape(), 2, 40, 3, 4)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	both, err := e.run(e.of(e.users))
	if err != nil {
		t.Fatal(err)
	}
	alone, err := e.run(e.of(e.users[1:]))
	if err != nil || !slices.Equal(both[len(alone):], alone) {
		t.Errorf("a ranking yields %v beside another, and %v alone: %v", both[len(alone):], alone, err)
	}
	for _, x := range both {
		if x != x || x == 0 {
			t.Fatalf("states %v", both)
		}
	}
}

// TestMeasureEvents runs on a simulated GPU, which computes nothing.
func TestMeasureEvents(t *testing.T) {
	t.Setenv("GREBE_KERNEL_CACHE", t.TempDir())
	g := drivertest.New()
	defer g.Close()
	r := Report{}
	o := Options{Repeats: 1, Device: cuda.Options{FixedSplit: true}}
	if err := measureEvents(t.Context(), &o, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Lines) != 2 || len(r.Lines[1].Peers) != 1 || r.Lines[1].Median <= 0 {
		t.Errorf("lines %+v, want one for a ranking and one for many, with and without graphs", r.Lines)
	}
}
