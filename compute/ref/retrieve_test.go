package ref

import (
	"slices"
	"testing"

	"grebe/compute"
)

// TestRetrieving compares the definition with numbers by hand.
func TestRetrieving(t *testing.T) {
	v, err := Retrieving(nil).(compute.Retriever).Vectors(5, 2, func(_ int, to []float32) error {
		copy(to, []float32{1, 0, 3, 0, 2, 1, 3, 0, 1.001, 0}) // the last one rounds to the first
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		query compute.Query
		want  []compute.Hit
	}{
		"all": {compute.Query{K: 9}, []compute.Hit{{Item: 1, Score: 3}, {Item: 3, Score: 3}, {Item: 2, Score: 2},
			{Item: 0, Score: 1}, {Item: 4, Score: 1}}},
		"few": {compute.Query{K: 2}, []compute.Hit{{Item: 1, Score: 3}, {Item: 3, Score: 3}}},
		"behind": {compute.Query{K: 2, After: &compute.Hit{Item: 1, Score: 3}},
			[]compute.Hit{{Item: 3, Score: 3}, {Item: 2, Score: 2}}},
		"without": {compute.Query{K: 2, Without: []int32{1, 2}}, []compute.Hit{{Item: 3, Score: 3}, {Item: 0, Score: 1}}},
		"allowed": {compute.Query{K: 2, Allowed: []uint32{0b10100}}, []compute.Hit{{Item: 2, Score: 2}, {Item: 4, Score: 1}}},
		"none":    {compute.Query{K: 2, Allowed: []uint32{0}}, nil},
	} {
		c.query.Vector = []float32{1, 0}
		qs := []compute.Query{c.query}
		if err := v.Best(qs); err != nil || !slices.Equal(qs[0].Hits, c.want) {
			t.Errorf("%s: %v, %v; want %v", name, qs[0].Hits, err, c.want)
		}
	}
}
