package place

import "grebe/placement"

// world is a generated graph: items with power-law degrees, in communities of about 1,000 within categories of 100
// communities. It is a function of its fields, so edges take no memory until they are put into a graph.
type world struct {
	items int
	edges int64
	seed  uint64
	step  uint64 // scatters items; no common divisor with their number
}

func newWorld(items int, edges int64, seed uint64) world {
	n := uint64(items)
	w := world{items: items, edges: edges, seed: seed, step: max(uint64(float64(n)*0.6180339887), 1)}
	for gcd(w.step, n) != 1 {
		w.step++
	}
	return w
}

const (
	communitySize = 1000
	categorySize  = 100 * communitySize

	// Shares of edges: within a community, within a category, anywhere.
	nearShare = 0.5
	farShare  = 0.2
)

// each draws the edges. The same world draws the same ones.
func (w world) each(visit func(a, b int32, weight float32)) {
	w.until(func(a, b int32) bool { visit(a, b, 1); return true })
}

// until draws the edges until visit returns false.
func (w world) until(visit func(a, b int32) bool) {
	r := random(w.seed)
	communities := max(w.items/communitySize, 1)
	categories := max(w.items/categorySize, 1)
	for range w.edges {
		a := w.draw(&r, w.items)
		b := 0
		switch u := r.unit(); {
		case u < nearShare:
			b = w.within(&r, a, communities)
		case u < nearShare+farShare:
			b = w.within(&r, a, categories)
		default:
			b = w.draw(&r, w.items)
		}
		if !visit(w.id(a), w.id(b)) {
			return
		}
	}
}

// draw draws a rank below n. The item of rank k is drawn in proportion to k^(−2/3), so degrees have a power law with
// exponent 2.5.
func (w world) draw(r *random, n int) int {
	u := r.unit()
	return int(u * u * u * float64(n))
}

// within draws an item of a's group. The group of a rank is its remainder, so groups have hot and cold items alike.
func (w world) within(r *random, a, groups int) int {
	group := a % groups
	return w.draw(r, (w.items-group+groups-1)/groups)*groups + group
}

// id scatters ranks over the items, so that neither hot items nor groups lie together in memory.
func (w world) id(rank int) int32 { return int32(uint64(rank) * w.step % uint64(w.items)) }

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// uses returns how often each item is requested: once per edge.
func (w world) uses(g *placement.Graph) []float64 {
	out := make([]float64, w.items)
	for i := range out {
		g.Near(int32(i), func(_ int32, weight float32) { out[i] += float64(weight) })
	}
	return out
}

// random is splitmix64.
type random uint64

func (r *random) unit() float64 {
	*r += 0x9e3779b97f4a7c15
	x := uint64(*r)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return float64((x^x>>31)>>11) / (1 << 53)
}
