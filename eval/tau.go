package eval

import "math"

// Tau is the mean of Kendall's τ over lists, with its standard error.
type Tau struct {
	Mean  float64 `json:"mean"`
	Error float64 `json:"standard_error"`
	Lists int     `json:"lists"`
}

// agreement returns how alike rankings are. Lists that are empty on one side, or of other items, are left out: of
// searches, whose items differ, it is nil as soon as one does.
func agreement(from, to [][]string) *Tau {
	var t Tau
	var squares float64
	for k := range min(len(from), len(to)) {
		if len(from[k]) == 0 || len(to[k]) == 0 {
			continue // a prompt without room
		}
		tau, ok := kendall(from[k], to[k])
		if !ok {
			return nil
		}
		t.Lists++
		t.Mean, squares = t.Mean+tau, squares+tau*tau
	}
	if t.Lists == 0 {
		return nil
	}
	n := float64(t.Lists)
	t.Mean /= n
	if t.Lists > 1 {
		t.Error = math.Sqrt(max(0, squares-n*t.Mean*t.Mean) / (n - 1) / n)
	}
	return &t
}

// kendall returns τ of two orders of the same items: 1 less twice the share of pairs that they order differently. It
// is false where the items are not the same, are named twice, or are fewer than two.
func kendall(from, to []string) (float64, bool) {
	place := make(map[string]int, len(from))
	for i, id := range from {
		place[id] = i
	}
	if len(from) < 2 || len(to) != len(from) || len(place) != len(from) {
		return 0, false
	}
	order := make([]int, 0, len(to))
	for _, id := range to {
		at, ok := place[id]
		if !ok {
			return 0, false
		}
		delete(place, id)
		order = append(order, at)
	}
	pairs := float64(len(order)) * float64(len(order)-1) / 2
	return 1 - 2*float64(inversions(order, make([]int, len(order))))/pairs, true
}

// inversions sorts the numbers and returns how many pairs were in the wrong order.
func inversions(numbers, scratch []int) int {
	if len(numbers) < 2 {
		return 0
	}
	half := len(numbers) / 2
	left, right := numbers[:half], numbers[half:]
	n := inversions(left, scratch) + inversions(right, scratch)
	merged := scratch[:0]
	for len(left) > 0 && len(right) > 0 {
		if right[0] < left[0] {
			n += len(left)
			merged, right = append(merged, right[0]), right[1:]
		} else {
			merged, left = append(merged, left[0]), left[1:]
		}
	}
	copy(numbers, append(append(merged, left...), right...))
	return n
}
