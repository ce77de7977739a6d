package beam

import (
	"slices"
	"testing"
)

// permuted applies the moves to rows that hold their own number.
func permuted(parents []int32, olds int) []int32 {
	rows := make([]int32, max(olds, len(parents)))
	for i := range rows {
		rows[i] = int32(i)
	}
	permute(parents, func(dst, src int) { rows[dst] = rows[src] })
	return rows[:len(parents)]
}

// eachMap visits every map of news rows to olds parents.
func eachMap(news, olds int, visit func(parents []int32)) {
	parents := make([]int32, news)
	for {
		visit(parents)
		i := 0
		for ; i < news; i++ {
			if parents[i]++; int(parents[i]) < olds {
				break
			}
			parents[i] = 0
		}
		if i == news {
			return
		}
	}
}

func TestPermuteIsRightForAllSmallMaps(t *testing.T) {
	for olds := 1; olds <= 6; olds++ {
		for news := range 7 {
			eachMap(news, olds, func(parents []int32) {
				if !slices.IsSorted(parents) {
					return
				}
				if got := permuted(parents, olds); !slices.Equal(got, parents) {
					t.Fatalf("%d rows to %v: got %v", olds, parents, got)
				}
			})
		}
	}
}

func TestPermuteIsRightForLargeMaps(t *testing.T) {
	for seed := range uint64(200) {
		r := rng(seed)
		olds, news := 1+r.IntN(600), r.IntN(600)
		parents := make([]int32, news)
		for i := range parents {
			parents[i] = int32(r.IntN(olds))
		}
		slices.Sort(parents)
		if got := permuted(parents, olds); !slices.Equal(got, parents) {
			t.Fatalf("seed %d: %d rows to %d: got %v, want %v", seed, olds, news, got, parents)
		}
	}
}

// The order of moves is the paper's; for maps that are not monotone it loses rows (XGR-1 in docs/explain/papers.md: 168
// of the 256 maps of four rows), which is why beams are laid out by parent row and others are refused.
func TestPermuteNeedsParentsInOrder(t *testing.T) {
	wrong := 0
	eachMap(4, 4, func(parents []int32) {
		if !slices.Equal(permuted(parents, 4), parents) {
			wrong++
		}
	})
	if wrong != 168 {
		t.Errorf("%d of 256 maps of four rows come out wrong, want 168", wrong)
	}
	if err := Permute([]int32{1, 0}, func(int, int) { t.Error("a swap was begun") }); err == nil {
		t.Error("a swap was not refused")
	}
	moves := 0
	if err := Permute([]int32{0, 0, 2, 3}, func(int, int) { moves++ }); err != nil || moves != 1 {
		t.Errorf("%d moves, %v; want one", moves, err)
	}
}
