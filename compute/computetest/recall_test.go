package computetest

import (
	"testing"

	"grebe/compute"
)

// What is computed once is recalled for equal questions, and for no others.
func TestRecall(t *testing.T) {
	type question struct {
		weights *compute.Tensor
		rows    []int32
		eps     float32
	}
	ask := func(eps float32, rows []int32, data ...byte) any {
		return &question{weights: &compute.Tensor{Rows: 1, Cols: len(data), Data: data}, rows: rows, eps: eps}
	}
	computed := 0
	for i, c := range []struct {
		question any
		want     int
	}{
		{ask(1, []int32{5}, 1, 2), 1},
		{ask(1, []int32{5}, 1, 2), 1},
		{ask(1, []int32{5}, 1, 3), 2},
		{ask(2, []int32{5}, 1, 2), 3},
		{ask(1, []int32{6}, 1, 2), 4},
		{ask(1, nil, 1, 2), 5},
		{ask(1, []int32{}, 1, 2), 6},
		{ask(1, nil, 1, 2), 5},
	} {
		got, err := recall(func() (int, error) { computed++; return computed, nil }, c.question)
		if got != c.want || err != nil {
			t.Errorf("question %d: answer %d, %v, want %d", i, got, err, c.want)
		}
	}
}
