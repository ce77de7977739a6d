package placement

import (
	"math"
	"math/rand/v2"
	"testing"
)

// exact counts pairs without a bound.
type exact map[[2]int32]float64

func (e exact) add(request []int32) {
	for i, a := range request {
		for k, b := range request[:i] {
			if a != b && i-k <= window {
				w := 1 / float64(min(len(request)-1, 2*window))
				e[[2]int32{a, b}] += w
				e[[2]int32{b, a}] += w
			}
		}
	}
}

func requests(r *rand.Rand, items, n int) [][]int32 {
	out := make([][]int32, n)
	for k := range out {
		at := r.IntN(items)
		for range 2 + r.IntN(60)*r.IntN(2) {
			out[k] = append(out[k], int32((at+int(math.Abs(r.NormFloat64())*float64(items)/8))%items))
		}
	}
	return out
}

// With as many slots as items, the sketch is exact.
func TestSketchWithRoomIsExact(t *testing.T) {
	const items = 50
	s, err := NewSketch(items, items, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := exact{}
	for _, q := range requests(rand.New(rand.NewPCG(1, 1)), items, 200) {
		s.Add(q)
		want.add(q)
	}
	for a := range int32(items) {
		for b := range int32(items) {
			if got := float64(s.estimate(a, b)); math.Abs(got-want[[2]int32{a, b}]) > 1e-4 {
				t.Fatalf("%d with %d: %v, want %v", a, b, got, want[[2]int32{a, b}])
			}
		}
	}
	g, err := s.Graph()
	if err != nil {
		t.Fatal(err)
	}
	for a := range int32(items) {
		g.Near(a, func(b int32, w float32) {
			if math.Abs(float64(w)-want[[2]int32{a, b}]) > 1e-4 {
				t.Fatalf("edge %d–%d weighs %v, want %v", a, b, w, want[[2]int32{a, b}])
			}
			delete(want, [2]int32{a, b})
		})
	}
	if len(want) != 0 {
		t.Errorf("%d pairs have no edge", len(want))
	}
}

// With few slots, estimates are at most the truth, W/slots and one weight (1 at most). Slots sum to W, and the mean
// over seeds is the truth.
func TestSketchError(t *testing.T) {
	const items, slots, seeds = 60, 8, 300
	stream := requests(rand.New(rand.NewPCG(2, 2)), items, 300)
	want := exact{}
	weight := make([]float64, items)
	for _, q := range stream {
		want.add(q)
	}
	for a := range int32(items) {
		for b := range int32(items) {
			weight[a] += want[[2]int32{a, b}]
		}
	}
	mean := exact{}
	for seed := range uint64(seeds) {
		s, err := NewSketch(items, slots, seed)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range stream {
			s.Add(q)
		}
		for a := range int32(items) {
			var sum float64
			for _, p := range s.of(a) {
				sum += float64(p.weight)
			}
			if math.Abs(sum-weight[a]) > 1e-3*weight[a] {
				t.Fatalf("item %d has weight %v, want %v", a, sum, weight[a])
			}
			for b := range int32(items) {
				key := [2]int32{a, b}
				got := float64(s.estimate(a, b))
				if got > want[key]+weight[a]/slots+1 {
					t.Fatalf("%v: %v, want at most %v + %v + 1", key, got, want[key], weight[a]/slots)
				}
				mean[key] += got / seeds
			}
		}
	}
	for key, w := range want {
		// An estimate is 0 or about W/slots, so its variance is at most that times the truth.
		if sigma := math.Sqrt((w + weight[key[0]]/slots) * w / seeds); math.Abs(mean[key]-w) > 5*sigma+1e-3 {
			t.Errorf("%v: mean %v, want %v (standard error %v)", key, mean[key], w, sigma)
		}
	}
}

func TestSketchAgesAndSkips(t *testing.T) {
	s, err := NewSketch(3, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.Add([]int32{0, 1, 7, -1, 1})
	s.Age(0.5)
	if s.Beyond() != 2 || s.Uses()[1] != 1 || s.estimate(0, 1) != 0.5 {
		t.Errorf("%d beyond, uses %v, estimate %v", s.Beyond(), s.Uses(), s.estimate(0, 1))
	}
	request := []int32{0, 1, 2}
	if n := testing.AllocsPerRun(100, func() { s.Add(request) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	for _, c := range [][2]int{{-1, 1}, {1, 0}, {1, 5000}} {
		if _, err := NewSketch(c[0], c[1], 1); err == nil {
			t.Errorf("sketch of %v was accepted", c)
		}
	}
}
