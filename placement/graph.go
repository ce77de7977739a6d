package placement

import (
	"errors"
	"fmt"
	"math"
)

// Graph says which items are requested together: an undirected graph with a weight on each edge. It takes 4 bytes per
// item and direction of an edge, and 4 more where weights differ from 1. It does not change after it was built.
type Graph struct {
	start  []int64   // neighbours of item i are near[start[i]:start[i+1]]
	near   []int32   //
	weight []float32 // of near; nil: all are 1
}

// NewGraph builds a graph of so many items. edges calls visit once for each edge and is itself called twice; it must
// visit the same edges in the same order both times. Edges of an item with itself are left out. Weights of an edge
// that is visited several times add up.
func NewGraph(items int, edges func(visit func(a, b int32, weight float32))) (*Graph, error) {
	if items < 0 || items > math.MaxInt32 {
		return nil, fmt.Errorf("placement: graph of %d items", items)
	}
	g := &Graph{start: make([]int64, items+1)}
	plain, bad := true, false
	edges(func(a, b int32, w float32) {
		if uint32(a) >= uint32(items) || uint32(b) >= uint32(items) || !(w > 0 && w < math.MaxFloat32) {
			bad = true
			return
		}
		if a == b {
			return
		}
		plain = plain && w == 1
		g.start[a]++
		g.start[b]++
	})
	if bad {
		return nil, errors.New("placement: an edge has an item outside the graph, or a weight that is not above 0")
	}
	var sum int64
	for i, n := range g.start { // where each item's neighbours end; filling moves it to where they start
		sum += n
		g.start[i] = sum
	}
	g.near = make([]int32, sum)
	if !plain {
		g.weight = make([]float32, sum)
	}
	put := func(a, b int32, w float32) {
		g.start[a]--
		g.near[g.start[a]] = b
		if !plain {
			g.weight[g.start[a]] = w
		}
	}
	edges(func(a, b int32, w float32) {
		if a != b {
			put(a, b, w)
			put(b, a, w)
		}
	})
	return g, nil
}

// Items returns the number of items.
func (g *Graph) Items() int { return len(g.start) - 1 }

// Edges returns the number of edges.
func (g *Graph) Edges() int64 { return int64(len(g.near)) / 2 }

// Near calls visit for each neighbour of an item.
func (g *Graph) Near(item int32, visit func(other int32, weight float32)) {
	for at := g.start[item]; at < g.start[item+1]; at++ {
		visit(g.near[at], g.at(at))
	}
}

func (g *Graph) at(edge int64) float32 {
	if g.weight == nil {
		return 1
	}
	return g.weight[edge]
}

// Cut returns the share of the edges' weight that runs between items of different owners. Edges of items that are
// everywhere are not counted.
func (g *Graph) Cut(m *Map) float64 {
	var cut, all float64
	for i := range int32(g.Items()) {
		owner, _, every := m.Place(i)
		if every {
			continue
		}
		for at := g.start[i]; at < g.start[i+1]; at++ {
			other, _, every := m.Place(g.near[at])
			if every {
				continue
			}
			w := float64(g.at(at))
			all += w
			if other != owner {
				cut += w
			}
		}
	}
	if all == 0 {
		return 0
	}
	return cut / all
}
