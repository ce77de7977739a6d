package embed

import (
	"math"
	"math/rand/v2"
	"sort"
)

// trace draws keys by Zipf's law. Where it drifts, rows change places: one of the 5 % most popular with any other, so that
// half of the popular ones are others after so many lookups.
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
