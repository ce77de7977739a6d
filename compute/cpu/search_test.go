package cpu

import (
	"testing"

	"grebe/compute/computetest"
	"grebe/compute/ref"
)

// TestSearch runs the suite of searches where its oracle is what it tests: batches that take turns and
// cached prompts must not change what a search finds.
func TestSearch(t *testing.T) {
	d, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	computetest.Search(t, ref.Searching(d))
}
