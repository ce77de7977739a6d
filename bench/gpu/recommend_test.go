package gpu

import (
	"testing"

	"grebe/compute/cuda"
	"grebe/compute/ref"
)

// TestSearchesByTheHost compares the check of searches with itself, on the reference.
func TestSearchesByTheHost(t *testing.T) {
	if testing.Short() {
		t.Skip("the reference is slow")
	}
	m, err := newModel(ref.New(), decoder("tiny", 1, 32, 2, 1, 16, 32, 100), 3)
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRecommendation(ref.Searching(ref.New()), m, 200, 16, 1, 20, 10, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if err := r.run(); err != nil {
		t.Fatal(err)
	}
	if len(r.found[0]) != 10 {
		t.Errorf("%d paths were found, of 10", len(r.found[0]))
	}
}

func TestSearchAgainstTheHost(t *testing.T) {
	d, err := cuda.New(cuda.Options{})
	if err != nil {
		t.Skipf("no GPU to test on: %v", err)
	}
	defer d.Close()
	if err := checkSearch(d, 7); err != nil {
		t.Error(err)
	}
}

// BenchmarkRecommend times a search on the GPU, from its batch to the leaves on the host.
func BenchmarkRecommend(b *testing.B) {
	d, err := cuda.New(cuda.Options{})
	if err != nil {
		b.Skipf("no GPU to measure on: %v", err)
	}
	defer d.Close()
	o := Options{Repeats: max(20, b.N), Seed: 5}
	lines, err := measureRecommend(b.Context(), &o, d)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(lines[0].Median, "ms/median")
	b.ReportMetric(lines[0].Least, "ms/least")
	b.ReportMetric(lines[0].P90, "ms/p90")
	b.ReportMetric(0, "ns/op")
}
