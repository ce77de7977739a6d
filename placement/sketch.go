package placement

import (
	"fmt"
	"math"
)

// window is how many places apart two items of a request may be to count as requested together.
const window = 32

// Sketch counts which items are requested together, in fixed memory: 8·slots + 8 bytes per item. Each item has so many
// slots, which hold its most frequent neighbours by unbiased space saving (Ting, SIGMOD 2018): a neighbour without a
// slot adds its weight to the smallest one, and takes it over with the probability that its weight has of the sum.
//
// Its error: the estimate of a pair, taken from one item's side, is right on average. It is at most the truth plus
// W/slots plus the largest single weight, where W is the sum of all weights that the item's side got. It is exact for
// items that never had more neighbours than slots.
//
// The n items of a request weigh 1/(n−1) with each other, so that every request weighs the same per item and long
// requests do not drown short ones. Pairs more than 32 places apart are not counted.
type Sketch struct {
	slots   int
	pairs   []pair // slots per item
	uses    []float64
	seed    uint64
	draws   uint64
	beyond  int64
	request []int32
}

// pair is a neighbour and the weight of being requested with it. The zero value is an empty slot.
type pair struct {
	other  int32 // item + 1
	weight float32
}

// NewSketch allocates a sketch for so many items with slots neighbours each; 16 is a good number.
func NewSketch(items, slots int, seed uint64) (*Sketch, error) {
	if items < 0 || items >= math.MaxInt32 {
		return nil, fmt.Errorf("placement: sketch of %d items", items)
	}
	if slots < 1 || slots > 1024 {
		return nil, fmt.Errorf("placement: sketch with %d slots per item, want 1 to 1024", slots)
	}
	return &Sketch{slots: slots, pairs: make([]pair, items*slots), uses: make([]float64, items), seed: seed}, nil
}

// Add counts a request. Items beyond those of the sketch are left out; Beyond counts them.
func (s *Sketch) Add(request []int32) {
	s.request = s.request[:0]
	for _, item := range request {
		if uint32(item) >= uint32(len(s.uses)) {
			s.beyond++
			continue
		}
		s.uses[item]++
		s.request = append(s.request, item)
	}
	n := len(s.request)
	if n < 2 {
		return
	}
	w := 1 / float32(min(n-1, 2*window))
	for i, a := range s.request {
		for _, b := range s.request[max(0, i-window):i] {
			s.Pair(a, b, w)
		}
	}
}

// Pair adds to the weight of two items of the sketch.
func (s *Sketch) Pair(a, b int32, weight float32) {
	if a == b {
		return
	}
	s.count(a, b, weight)
	s.count(b, a, weight)
}

// count adds to the weight of a neighbour on the side of one item.
func (s *Sketch) count(item, other int32, weight float32) {
	slots := s.of(item)
	least := 0
	for i := range slots {
		if slots[i].other == other+1 {
			slots[i].weight += weight
			return
		}
		if slots[i].weight < slots[least].weight {
			least = i
		}
	}
	p := &slots[least]
	p.weight += weight
	s.draws++
	if float32(mix(s.seed^mix(s.draws))>>40)/(1<<24)*p.weight < weight {
		p.other = other + 1
	}
}

func (s *Sketch) of(item int32) []pair { return s.pairs[int(item)*s.slots:][:s.slots] }

// estimate returns the weight of a neighbour as one item's side has it.
func (s *Sketch) estimate(item, other int32) float32 {
	for _, p := range s.of(item) {
		if p.other == other+1 {
			return p.weight
		}
	}
	return 0
}

// Age multiplies all weights and uses by keep, between 0 and 1, so that old requests count less.
func (s *Sketch) Age(keep float64) {
	for i := range s.pairs {
		s.pairs[i].weight *= float32(keep)
	}
	for i := range s.uses {
		s.uses[i] *= keep
	}
}

// Uses returns how often each item was requested. The sketch owns it.
func (s *Sketch) Uses() []float64 { return s.uses }

// Beyond returns how many items were left out because the sketch does not have them.
func (s *Sketch) Beyond() int64 { return s.beyond }

// Graph returns the graph of the pairs that have slots. A weight is the mean of the estimates of both sides.
func (s *Sketch) Graph() (*Graph, error) {
	return NewGraph(len(s.uses), func(visit func(a, b int32, weight float32)) {
		for a := range int32(len(s.uses)) {
			for _, p := range s.of(a) {
				if p.weight == 0 {
					continue
				}
				b := p.other - 1
				back := s.estimate(b, a)
				if back == 0 || a < b { // else b's side visits the pair
					visit(a, b, (p.weight+back)/2)
				}
			}
		}
	})
}
