package evict

import (
	"fmt"
	"math"
	"slices"
)

const (
	maxDepth = 8
	bins     = 64
	edgeRows = 2048 // rows that bin edges are taken from
)

// TrainParams shapes a model. Zero values mean the defaults.
type TrainParams struct {
	Trees   int     // 20
	Depth   int     // 5, at most 8
	Rate    float32 // learning rate, 0.2
	MinLeaf int     // rows in a leaf at least, 20
	Lambda  float64 // L2 penalty on leaf values, 1
	Share   float64 // rows that each tree sees, 0.5
	Seed    uint64  // picks those rows
}

func (p TrainParams) orDefaults() TrainParams {
	if p.Trees == 0 {
		p.Trees = 20
	}
	if p.Depth == 0 {
		p.Depth = 5
	}
	if p.Rate == 0 {
		p.Rate = 0.2
	}
	if p.MinLeaf == 0 {
		p.MinLeaf = 20
	}
	if p.Lambda == 0 {
		p.Lambda = 1
	}
	if p.Share == 0 {
		p.Share = 0.5
	}
	return p
}

// Validate says what is wrong with p.
func (p TrainParams) Validate() error {
	p = p.orDefaults()
	if p.Trees < 0 || p.Depth < 1 || p.Depth > maxDepth || p.Rate <= 0 || p.MinLeaf < 1 || p.Lambda < 0 || p.Share <= 0 || p.Share > 1 {
		return fmt.Errorf("evict: train: parameters out of range: %+v", p)
	}
	return nil
}

// Train fits trees to labels by gradient boosting on squared error, with features sorted into 64 bins
// of equal counts. Of more than a million samples the last are
// used. Params MUST be valid and every sample have a label. The same arguments give the same model.
func Train(samples []Sample, labels []float32, params TrainParams) *Model {
	params = params.orDefaults()
	m := &Model{depth: params.Depth}
	if len(samples) == 0 {
		return m
	}
	if extra := len(samples) - maxRows; extra > 0 {
		samples, labels = samples[extra:], labels[extra:]
	}
	t := newTrainer(samples, labels, params)
	m.base = t.base
	for range params.Trees {
		t.grow(m)
	}
	m.index()
	return m
}

// bucket is a sum of residuals and a count of rows in one integer: sum<<countBits + count. One addition per row
// and feature is what training time is made of, and integer sums do not depend on their order.
type bucket int64

const (
	countBits = 20
	maxRows   = 1<<countBits - 1
	one       = 1 << 20 // the largest residual, as an integer
)

func (b bucket) n() int       { return int(b & maxRows) }
func (b bucket) sum() float64 { return float64(b >> countBits) }

type histogram [Features][bins]bucket

// add counts rows.
func (h *histogram) add(t *trainer, rows []int32) {
	for _, r := range rows {
		g, row := t.gradient[r], &t.binned[r]
		for f := 0; f < Features; f++ {
			h[f][row[f]%bins] += g
		}
	}
}

func (h *histogram) sub(o *histogram) {
	for f := range h {
		for b := range h[f] {
			h[f][b] -= o[f][b]
		}
	}
}

// node is a set of rows on the way down, and where it will be split.
type node struct {
	rows []int32
	hist *histogram
}

type trainer struct {
	params   TrainParams
	base     float32
	edges    [Features][]float32 // bin b holds values ≤ edges[b] and above the edge before
	binned   [][Features]uint8
	residual []float32
	gradient []bucket // residuals in units of scale, each a row of one
	scale    float64
	rows     []int32 // of the tree, grouped by node as it grows
	swap     []int32
	spare    []*histogram
	random   uint64
}

func newTrainer(samples []Sample, labels []float32, params TrainParams) *trainer {
	t := &trainer{
		params: params, binned: make([][Features]uint8, len(samples)), residual: make([]float32, len(samples)),
		gradient: make([]bucket, len(samples)),
		rows:     make([]int32, 0, len(samples)), swap: make([]int32, len(samples)), random: params.Seed,
	}
	sum := 0.0
	for _, y := range labels {
		sum += float64(y)
	}
	t.base = float32(sum / float64(len(labels)))
	for i, y := range labels {
		t.residual[i] = y - t.base
	}
	t.cut(samples)
	var rulers [Features]*ruler
	for f := range rulers {
		rulers[f] = newRuler(t.edges[f])
	}
	for i := range samples {
		for f, v := range &samples[i] {
			t.binned[i][f] = rulers[f].bin(v)
		}
	}
	return t
}

// cut finds bin edges: quantiles of evenly spaced rows, each value once.
func (t *trainer) cut(samples []Sample) {
	step := max(1, len(samples)/edgeRows)
	values := make([]float32, 0, edgeRows+1)
	for f := range t.edges {
		values = values[:0]
		for i := 0; i < len(samples); i += step {
			values = append(values, samples[i][f])
		}
		slices.Sort(values)
		edges := make([]float32, 0, bins)
		for b := 1; b < bins; b++ {
			v := values[(b*len(values)-1)/bins]
			if len(edges) == 0 || v > edges[len(edges)-1] {
				edges = append(edges, v)
			}
		}
		t.edges[f] = edges
	}
}

// ruler is edges as integers in the order of the floats, filled up with the largest.
type ruler [bins - 1]int32

func newRuler(edges []float32) *ruler {
	var r ruler
	for i := range r {
		r[i] = math.MaxInt32
		if i < len(edges) {
			r[i] = sortable(edges[i])
		}
	}
	return &r
}

// bin returns how many edges lie below v, by halving without a branch.
func (r *ruler) bin(v float32) uint8 {
	key, at := int64(sortable(v)), 0
	for step := bins / 2; step > 0; step /= 2 {
		below := int((int64(r[at+step-1]) - key) >> 63) // −1 or 0
		at += step & below
	}
	return uint8(at)
}

func (t *trainer) next() uint64 {
	t.random += 0x9E3779B97F4A7C15
	z := t.random
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// sample picks the rows of one tree: four by each random number, without a branch.
func (t *trainer) sample() {
	t.rows = t.rows[:cap(t.rows)]
	limit, n := int(t.params.Share*(1<<16)), 0
	for i, bits := 0, uint64(0); i < len(t.binned); i++ {
		if i%4 == 0 {
			bits = t.next()
		}
		t.rows[n] = int32(i)
		n += int(uint64(int(bits&0xFFFF)-limit) >> 63)
		bits >>= 16
	}
	t.rows = t.rows[:n]
}

// quantise turns the residuals of the tree's rows into integers.
func (t *trainer) quantise() {
	magnitude := math.Float32bits(1e-30)
	for _, r := range t.residual {
		magnitude = max(magnitude, math.Float32bits(r)&math.MaxInt32) // in the order of the floats
	}
	largest := math.Float32frombits(magnitude)
	t.scale = float64(largest) / one
	unit := one / largest
	for _, i := range t.rows {
		t.gradient[i] = bucket(int64(t.residual[i]*unit))<<countBits + 1
	}
}

func (t *trainer) histogram() *histogram {
	if n := len(t.spare); n > 0 {
		h := t.spare[n-1]
		t.spare = t.spare[:n-1]
		*h = histogram{}
		return h
	}
	return new(histogram)
}

// grow adds one tree to m, level by level, and takes what it explains off the residuals.
func (t *trainer) grow(m *Model) {
	t.sample()
	t.quantise()
	inner, leaves := 1<<m.depth-1, 1<<m.depth
	feature, threshold, leaf := make([]uint8, inner), make([]float32, inner), make([]float32, leaves)
	cuts := make([]uint8, inner)
	level := []node{{rows: t.rows, hist: t.histogram()}}
	level[0].hist.add(t, t.rows)
	at := 0
	for d := range m.depth {
		below := make([]node, 0, 2*len(level))
		for _, n := range level {
			f, c := t.split(n)
			cuts[at], feature[at], threshold[at] = c, f, t.edge(f, c)
			l, r := t.part(n, f, c, d+1 < m.depth)
			below = append(below, l, r)
			at++
		}
		level = below
	}
	for i, n := range level {
		leaf[i] = t.value(n.rows)
	}
	m.feature, m.threshold, m.leaf = append(m.feature, feature...), append(m.threshold, threshold...), append(m.leaf, leaf...)
	t.subtract(m.depth, feature, cuts, leaf)
}

// whole is the cut that sends every row to the left.
const whole = bins - 1

func (t *trainer) edge(f, cut uint8) float32 {
	if cut == whole {
		return math.MaxFloat32
	}
	return t.edges[f][cut]
}

// split finds the cut that lowers the squared error most; (0, whole) when none does.
func (t *trainer) split(n node) (feature, cut uint8) {
	cut = whole
	if n.hist == nil || len(n.rows) < 2*t.params.MinLeaf {
		return 0, cut
	}
	var total bucket
	for _, b := range n.hist[0] {
		total += b
	}
	best := t.gain(total) * (1 + 1e-9)
	for f := range Features {
		var left bucket
		for c := range t.edges[f] {
			left += n.hist[f][c]
			right := total - left
			if left.n() < t.params.MinLeaf {
				continue
			}
			if right.n() < t.params.MinLeaf {
				break
			}
			if g := t.gain(left) + t.gain(right); g > best {
				best, feature, cut = g, uint8(f), uint8(c)
			}
		}
	}
	return feature, cut
}

// gain is in units of scale squared.
func (t *trainer) gain(b bucket) float64 {
	sum := b.sum()
	return sum * sum / (float64(b.n()) + t.params.Lambda)
}

// part divides a node's rows in place, keeping their order. With histograms wanted, only the smaller side is counted:
// the other is the difference.
func (t *trainer) part(n node, f, cut uint8, wanted bool) (left, right node) {
	if cut == whole {
		if n.hist != nil {
			t.spare = append(t.spare, n.hist)
		}
		return node{rows: n.rows}, node{}
	}
	l, r := 0, 0
	for _, row := range n.rows {
		// Without a branch that cannot be foreseen: written to both sides, kept on one.
		right := above(t.binned[row][f], cut)
		n.rows[l], t.swap[r] = row, row
		l += 1 - right
		r += right
	}
	copy(n.rows[l:], t.swap[:r])
	left, right = node{rows: n.rows[:l]}, node{rows: n.rows[l:]}
	if !wanted {
		t.spare = append(t.spare, n.hist)
		return left, right
	}
	small, large := &left, &right
	if r < l {
		small, large = large, small
	}
	small.hist = t.histogram()
	small.hist.add(t, small.rows)
	large.hist = n.hist
	large.hist.sub(small.hist)
	return left, right
}

// above is 1 when b > cut, else 0, without a branch.
func above(b, cut uint8) int { return int((uint32(cut) - uint32(b)) >> 31) }

func (t *trainer) value(rows []int32) float32 {
	var all bucket
	for _, r := range rows {
		all += t.gradient[r]
	}
	return t.params.Rate * float32(all.sum()*t.scale/(float64(len(rows))+t.params.Lambda))
}

// subtract runs every row, sampled or not, through the new tree.
func (t *trainer) subtract(depth int, feature, cuts []uint8, leaf []float32) {
	for i := range t.binned {
		n := 0
		for range depth {
			n = 2*n + 1 + above(t.binned[i][feature[n]], cuts[n])
		}
		t.residual[i] -= leaf[n-len(feature)]
	}
}
