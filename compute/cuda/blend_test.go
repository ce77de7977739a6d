package cuda

import (
	"slices"
	"testing"

	"grebe/compute"
)

// TestRunsOfParts: runs are cut where chunks end, and cover a part's tokens in order.
func TestRunsOfParts(t *testing.T) {
	g := &compute.Segment{Len: 20, Cached: 3}
	for i := range 3 {
		g.Chunks = append(g.Chunks, compute.Chunk{Addr: uint64(100 + i), Tokens: 8})
	}
	p := &placing{}
	all := make([]run, 4)
	p.cut(all, g, &compute.Part{At: 5, Tokens: 13, From: compute.Chunk{Addr: 7, Tokens: 30}, First: 11, Turn: 2}, 6)
	want := []run{
		{from: 7, to: 100, fromRoom: 30, toRoom: 8, fromToken: 11, toToken: 5, tokens: 3, turned: 1, part: 6},
		{from: 7, to: 101, fromRoom: 30, toRoom: 8, fromToken: 14, toToken: 0, tokens: 8, turned: 1, part: 6},
		{from: 7, to: 102, fromRoom: 30, toRoom: 8, fromToken: 22, toToken: 0, tokens: 2, turned: 1, part: 6},
	}
	if !slices.Equal(all[:p.count], want) {
		t.Errorf("runs %+v, want %+v", all[:p.count], want)
	}
}

// TestPlacedLayers: parts of the layers follow one another, from the first that is placed to the last.
func TestPlacedLayers(t *testing.T) {
	for _, layers := range []int{1, 3, 4, 12, 36} {
		for from := range layers {
			next := from
			for part := range placedParts {
				first, end := placedLayers(part, from, layers)
				if first >= end {
					continue
				}
				if first != next || placedWith(first) != part || placedWith(end-1) != part {
					t.Fatalf("part %d of %d layers from %d on is %d to %d, behind %d", part, layers, from, first, end, next)
				}
				next = end
			}
			if next != layers {
				t.Fatalf("of %d layers from %d on, those up to %d are placed", layers, from, next)
			}
		}
	}
}

// TestPlacedParts: every layer is of the last part that begins at it or before.
func TestPlacedParts(t *testing.T) {
	for layer, want := range map[int]int{0: 0, 2: 0, 3: 1, 8: 1, 9: 2, 17: 2, 18: 3, 35: 3} {
		if got := placedWith(layer); got != want {
			t.Errorf("layer %d is of part %d, want %d", layer, got, want)
		}
	}
}
