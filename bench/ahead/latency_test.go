package ahead

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// A machine that becomes slower by the same factor from slice to slice does not change the ratio.
func TestDriftDoesNotChangeTheRatio(t *testing.T) {
	l := &Latency{Before: []float64{10, 10}, With: []float64{12, 12 * 1.1}, After: []float64{14.4, 14.4}}
	for round, want := range []float64{1, 1.1} {
		if got := l.ratio(round); math.Abs(got-want) > 1e-12 {
			t.Errorf("round %d: ratio %v, want %v", round, got, want)
		}
	}
}

// A catalog that is larger than the shop has variants of its items, each with an id of its own.
func TestCatalogsHaveVariants(t *testing.T) {
	s := &site{lines: []item{{"a", `{"id": "a", "text": "an a"}` + "\n"}, {"b", `{"id": "b", "text": "a b"}` + "\n"}}}
	name := filepath.Join(t.TempDir(), "items.ndjson")
	if err := s.writeItems(name, 5); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := json.NewDecoder(f)
	for i, want := range []string{"a-0", "b-0", "a-1", "b-1", "a-2"} {
		var it struct{ ID, Text string }
		if err := lines.Decode(&it); err != nil {
			t.Fatal(err)
		}
		if it.ID != want || s.variant(i) != want {
			t.Errorf("item %d is %s and named %s, want %s", i, it.ID, s.variant(i), want)
		}
	}
}
