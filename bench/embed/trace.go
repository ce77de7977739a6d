package embed

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
)

// stream is a source of lookups.
type stream interface{ next(keys []uint64) }

// stream opens a trace by name; it has so many distinct rows.
func (o *Options) stream(name string) (s stream, rows int, err error) {
	switch name {
	case "zipf":
		return newTrace(o.Rows, o.Skew, 0, o.Seed+1), o.Rows, nil
	case "fast":
		return newTrace(o.Rows, o.Skew, o.HalfLife/10, o.Seed+1), o.Rows, nil
	case "scarab":
		return openRecorded(filepath.Join(o.Data, "scarab-recs.trace"))
	}
	return newTrace(o.Rows, o.Skew, o.HalfLife, o.Seed+1), o.Rows, nil
}

// recorded is a trace from a file of big-endian words, its keys numbered in the order in which they come. At its end it
// begins again.
type recorded struct {
	keys []uint64
	at   int
}

func openRecorded(path string) (*recorded, int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, 0, err
	}
	if len(data) == 0 || len(data)%8 != 0 {
		return nil, 0, fmt.Errorf("%s has %d bytes: want words of 8", path, len(data))
	}
	r, numbers := &recorded{keys: make([]uint64, len(data)/8)}, map[uint64]uint64{}
	for i := range r.keys {
		k := binary.BigEndian.Uint64(data[8*i:])
		n, known := numbers[k]
		if !known {
			n = uint64(len(numbers))
			numbers[k] = n
		}
		r.keys[i] = n
	}
	return r, len(numbers), nil
}

func (r *recorded) next(keys []uint64) {
	for i := range keys {
		keys[i] = r.keys[r.at]
		r.at = (r.at + 1) % len(r.keys)
	}
}

// trace draws keys by Zipf's law. Where it drifts, rows change places: one of the 5 % most popular with any other, so
// that half of the popular ones are others after so many lookups.
//
// Where the numbers come from. Exponents: HugeCTR's generator of recommendation data has 0.9, 1.1 and 1.3 to choose
// from; 0.99, YCSB's, lies on the less skewed side. Drift: in scarab-recs, a recommender's real lookups, popularity
// counted in windows of 60,000 lookups agrees with that of windows 60,000 later to 97.6 % and 1,140,000 later to 93.5 %
// (sum of products of counts over sum of squares), a half-life of about 67 lookups per key. The trace "drift" has 20
// per row, more than three times as fast; "fast" has 2.
type trace struct {
	r     *rand.Rand
	cdf   []float64
	ids   []uint32 // by rank
	drift float64  // changes per lookup
}

const popular = 20 // one row in so many may lose its place

func newTrace(rows int, skew float64, halfLife int, seed uint64) *trace {
	t := &trace{r: rand.New(rand.NewPCG(seed, 17)), cdf: make([]float64, rows), ids: make([]uint32, rows)}
	sum := 0.0
	for i := range rows {
		sum += math.Pow(float64(i+1), -skew)
		t.cdf[i], t.ids[i] = sum, uint32(i)
	}
	t.r.Shuffle(rows, func(i, j int) { t.ids[i], t.ids[j] = t.ids[j], t.ids[i] })
	if halfLife > 0 {
		t.drift = math.Ln2 * float64(rows/popular) / float64(halfLife)
	}
	return t
}

func (t *trace) next(keys []uint64) {
	for i := range keys {
		if t.drift > 0 && t.r.Float64() < t.drift {
			a, b := t.r.IntN(max(1, len(t.ids)/popular)), t.r.IntN(len(t.ids))
			t.ids[a], t.ids[b] = t.ids[b], t.ids[a]
		}
		rank := sort.SearchFloat64s(t.cdf, t.r.Float64()*t.cdf[len(t.cdf)-1])
		keys[i] = uint64(t.ids[min(rank, len(t.ids)-1)])
	}
}
