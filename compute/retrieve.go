package compute

import (
	"errors"
	"fmt"
	"math"
)

// ErrNoVectors says that a device holds no vectors of that width: its caller multiplies by matrices.
var ErrNoVectors = errors.New("compute: the device retrieves no vectors of that width")

// Bounds of Vectors.Best.
const (
	MaxQueries = 64   // of a call
	MaxHits    = 1024 // of a query
)

// Retriever is a Device that finds the items whose vectors have the largest products with queries.
type Retriever interface {
	// Vectors copies the vectors of items 0 … items-1 to the device and rounds them to BF16. read writes those of
	// len(to)/width items, from first on, to to. Vectors returns ErrNoVectors for a width that the device refuses.
	Vectors(items, width int, read func(first int, to []float32) error) (Vectors, error)
}

// Vectors are items' vectors on a device. It is safe for concurrent use, and freed when nothing refers to it any more.
type Vectors interface {
	// Bytes returns the size on the device.
	Bytes() int64
	// Best fills in Hits and Broken of 1 to MaxQueries queries. What it finds for a query does not depend on the others.
	Best(queries []Query) error
}

// Query asks for the items with the best scores: those that sorting all items, by score and then by the lower number,
// would put first. A score is the product of the two vectors, each rounded to BF16, summed in float32.
type Query struct {
	Vector  []float32 // finite numbers
	K       int       // 1 … MaxHits
	After   *Hit      // if not nil, only items behind it in the order are found
	Without []int32   // items that are not found, ascending
	Allowed []uint32  // if not nil, a bit for each item: item i is found only if bit i%32 of word i/32 is set

	Hits   []Hit // the result, the best first; its memory is used again
	Broken int   // items that may be found, but whose score is no finite number: they are not found
}

// Hit is an item that was found.
type Hit struct {
	Item  int32
	Score float32
}

// Before reports whether h comes before o in the order of results.
func (h Hit) Before(o Hit) bool { return h.Score > o.Score || h.Score == o.Score && h.Item < o.Item }

// Validate checks a query for items vectors of width values.
func (q *Query) Validate(items, width int) error {
	if len(q.Vector) != width {
		return fmt.Errorf("compute: a query of %d values for vectors of %d", len(q.Vector), width)
	}
	const inf = 0x7f800000
	for i, v := range q.Vector {
		if math.Float32bits(v)&inf == inf {
			return fmt.Errorf("compute: value %d of a query is %v", i, v)
		}
	}
	if q.K < 1 || q.K > MaxHits {
		return fmt.Errorf("compute: a query for %d items, want 1 to %d", q.K, MaxHits)
	}
	if q.After != nil && (q.After.Item < 0 || q.After.Score != q.After.Score) {
		return fmt.Errorf("compute: a query for items behind item %d with score %v", q.After.Item, q.After.Score)
	}
	if q.Allowed != nil && len(q.Allowed) != (items+31)/32 {
		return fmt.Errorf("compute: %d words of allowed items, want %d", len(q.Allowed), (items+31)/32)
	}
	for i, item := range q.Without {
		if item < 0 || i > 0 && item <= q.Without[i-1] {
			return fmt.Errorf("compute: item %d to leave out is not in ascending order", item)
		}
	}
	return nil
}
