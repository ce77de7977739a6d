package placement

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// weighed returns members with memory of these sizes.
func weighed(memory ...int64) []Member {
	out := Members(len(memory))
	Weigh(out, memory)
	return out
}

// A node owns items in proportion to its memory. Nodes of the same size, whatever that is, have the map of nodes
// without sizes.
func TestWeigh(t *testing.T) {
	const items = 40_000
	r := rand.New(rand.NewPCG(9, 9))
	for range 50 {
		memory, sum := make([]int64, 2+r.IntN(9)), 0.0
		for i := range memory {
			memory[i] = 1<<30 + r.Int64N(1<<36)
			sum += float64(memory[i])
		}
		m := hash(t, Config{Members: weighed(memory...), Items: items, Parts: 4096})
		own := make([]int, len(memory))
		for i := range int32(items) {
			owner, _, _ := m.Place(i)
			own[owner]++
		}
		for i, b := range memory {
			// The owners of 4,096 micro-parts are drawn: four standard deviations, and the unequal sizes of micro-parts.
			want := float64(b) / sum
			if got := float64(own[i]) / items; math.Abs(got-want) > 4*math.Sqrt(want/4096)+.005 {
				t.Errorf("memory %v: node %d has %.4f of it and owns %.4f of the items", memory, i, want, got)
			}
		}
	}
	equal := hash(t, Config{Members: weighed(12345678901, 12345678901, 12345678901), Items: items})
	plain := hash(t, Config{Members: Members(3), Items: items})
	for i := range int32(items) {
		a, b, _ := equal.Place(i)
		if c, d, _ := plain.Place(i); a != c || b != d {
			t.Fatalf("nodes of the same size: item %d is at %d and %d, without sizes at %d and %d", i, a, b, c, d)
		}
	}
	if m := weighed(0, 10, 30); m[0].Weight != 1 || m[1].Weight != .5 || m[2].Weight != 1.5 {
		t.Errorf("weights %v, want the mean for the unknown size", m)
	}
	if m := weighed(0, 0); m[0].Weight != 1 || m[1].Weight != 1 {
		t.Errorf("weights %v of unknown sizes", m)
	}
}

// A node that comes takes items from the others, its share of the memory, and no other item moves. So one that leaves
// moves only what it had. That the others' weights get another scale moves nothing.
func TestWeighedNodesComeAndGo(t *testing.T) {
	const items = 40_000
	r := rand.New(rand.NewPCG(10, 10))
	for range 30 {
		memory := make([]int64, 3+r.IntN(6))
		for i := range memory {
			memory[i] = 1<<30 + r.Int64N(1<<35)
		}
		last := len(memory) - 1
		few := hash(t, Config{Members: weighed(memory[:last]...), Items: items, Parts: 4096})
		many := weighed(memory...)
		if few.Reweigh(many) {
			t.Fatal("a node more, and nothing changed")
		}
		all := hash(t, Config{Members: many, Items: items, Parts: 4096})
		moved, sum := 0, 0.0
		for i := range int32(items) {
			before, _, _ := few.Place(i)
			after, _, _ := all.Place(i)
			if before == after {
				continue
			}
			if moved++; after != last {
				t.Fatalf("memory %v: item %d moved from %d to %d when %d came", memory, i, before, after, last)
			}
		}
		for _, b := range memory {
			sum += float64(b)
		}
		want := float64(memory[last]) / sum
		if got := float64(moved) / items; math.Abs(got-want) > 4*math.Sqrt(want/4096)+.005 {
			t.Errorf("memory %v: %.4f of the items moved, the node that came has %.4f of the memory", memory, got, want)
		}
	}
}

// Small changes of memory move nothing, in any scale; large ones do. A node without a weight, one that is away, keeps
// its share.
func TestReweigh(t *testing.T) {
	m := hash(t, Config{Members: weighed(10, 20, 30), Items: 100})
	for _, c := range []struct {
		weights []float64
		same    bool
		want    []float64 // shares of the weights
	}{
		{[]float64{10, 20, 30}, true, []float64{1. / 6, 2. / 6, 3. / 6}},
		{[]float64{1000, 2000, 3000}, true, []float64{1. / 6, 2. / 6, 3. / 6}},
		{[]float64{11, 19, 31}, true, []float64{1. / 6, 2. / 6, 3. / 6}},
		{[]float64{0, 200, 300}, true, []float64{1. / 6, 2. / 6, 3. / 6}},
		{[]float64{20, 20, 20}, false, []float64{1. / 3, 1. / 3, 1. / 3}},
		{[]float64{10, 20, 30, 60}, false, []float64{1. / 12, 2. / 12, 3. / 12, 6. / 12}},
		{[]float64{10, 20}, false, []float64{1. / 3, 2. / 3}},
	} {
		members := Members(len(c.weights))
		for i, w := range c.weights {
			members[i].Weight = w
		}
		same, sum := m.Reweigh(members), 0.0
		for _, x := range members {
			sum += x.Weight
		}
		text := fmt.Sprint(members)
		for i, x := range members {
			if same != c.same || math.Abs(x.Weight/sum-c.want[i]) > 1e-12 {
				t.Errorf("%v: same is %v and members are %s, want %v and shares %v",
					c.weights, same, text, c.same, c.want)
				break
			}
		}
	}
}
