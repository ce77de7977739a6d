package ref

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"grebe/compute"
)

// Retrieving returns d with vectors that queries search: it defines what retrieval yields. All items are sorted.
func Retrieving(d compute.Device) compute.Device { return &retrieving{d} }

type retrieving struct{ compute.Device }

type vectors struct {
	items, width int
	data         []float32 // rounded
}

func (d *retrieving) Vectors(items, width int, read func(first int, to []float32) error) (compute.Vectors, error) {
	if items < 1 || width < 1 {
		return nil, fmt.Errorf("ref: vectors of %d items with %d values", items, width)
	}
	v := &vectors{items: items, width: width, data: make([]float32, items*width)}
	if err := read(0, v.data); err != nil {
		return nil, err
	}
	for i, x := range v.data {
		v.data[i] = float32(toBF16(float64(x)))
	}
	return v, nil
}

func (v *vectors) Bytes() int64 { return 4 * int64(len(v.data)) }

func (v *vectors) Best(queries []compute.Query) error {
	if len(queries) < 1 || len(queries) > compute.MaxQueries {
		return errors.New("ref: want 1 to 64 queries")
	}
	for i := range queries {
		q := &queries[i]
		if err := q.Validate(v.items, v.width); err != nil {
			return err
		}
		v.best(q)
	}
	return nil
}

func (v *vectors) best(q *compute.Query) {
	q.Hits, q.Broken = nil, 0
	for item := range v.items {
		if q.Allowed != nil && q.Allowed[item/32]>>(item%32)&1 == 0 {
			continue
		}
		if _, out := slices.BinarySearch(q.Without, int32(item)); out {
			continue
		}
		sum := 0.0
		for i, x := range v.data[item*v.width : (item+1)*v.width] {
			sum += float64(x) * toBF16(float64(q.Vector[i]))
		}
		h := compute.Hit{Item: int32(item), Score: float32(sum)}
		if s := float64(h.Score); math.IsNaN(s) || math.IsInf(s, 0) {
			q.Broken++
		} else if q.After == nil || q.After.Before(h) {
			q.Hits = append(q.Hits, h)
		}
	}
	slices.SortFunc(q.Hits, func(a, b compute.Hit) int {
		if a.Before(b) {
			return -1
		}
		return 1
	})
	q.Hits = q.Hits[:min(len(q.Hits), q.K)]
}
