package beam

import "fmt"

// Permute moves rows in place so that row i holds what row parents[i] held, for rows that no other place keeps (XGR-1
// in docs/explain/papers.md). It calls move(dst, src) for each row that changes its place: moves to higher rows first,
// from the highest down, then moves to lower rows, from the lowest up. No move overwrites what a later one reads,
// because parents do not decrease: a row that is read by both a higher and a lower one would stand between two parents
// in the wrong order. There may be more or fewer rows than before, and several children of one parent.
func Permute(parents []int32, move func(dst, src int)) error {
	for i := 1; i < len(parents); i++ {
		if parents[i] < parents[i-1] {
			return fmt.Errorf("beam: permute rows: row %d has parent %d after parent %d", i, parents[i], parents[i-1])
		}
	}
	permute(parents, move)
	return nil
}

func permute(parents []int32, move func(dst, src int)) {
	for i := len(parents) - 1; i >= 0; i-- {
		if int(parents[i]) < i {
			move(i, int(parents[i]))
		}
	}
	for i, p := range parents {
		if int(p) > i {
			move(i, int(p))
		}
	}
}
