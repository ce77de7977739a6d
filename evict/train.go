package evict

import (
	"fmt"
	"math"
	"slices"
)

const (
	maxDepth = 8
	bins     = 64
	edgeRows = 2048 // rows that bin edges are computed from
)

// TrainParams are the parameters of training. Zero values mean the defaults.
type TrainParams struct {
	Trees   int     // 20
	Depth   int     // 5, at most 8
	Rate    float32 // learning rate, 0.2
	MinLeaf int     // least number of rows in a leaf, 20
	Lambda  float64 // L2 penalty on leaf values, 1
	Share   float64 // share of the rows that each tree sees, 0.5
	Seed    uint64  // draws those rows
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

// Validate returns an error if p is not usable.
func (p TrainParams) Validate() error {
	p = p.orDefaults()
	if p.Trees < 0 || p.Depth < 1 || p.Depth > maxDepth || p.Rate <= 0 || p.MinLeaf < 1 || p.Lambda < 0 || p.Share <= 0 ||
		p.Share > 1 {
		return fmt.Errorf("evict: train: parameters out of range: %+v", p)
	}
	return nil
}

// Train fits trees to labels by gradient boosting on squared error, with features sorted into 64 bins of equal counts.
// It uses at most the last million samples. Params MUST be valid, and every sample MUST have a label. The same
// arguments give the same model.
func Train(samples []Sample, labels []float32, params TrainParams) *Model {
	extra := max(len(samples)-maxRows, 0)
	return train(samples[extra:], newSquares(labels[extra:]), params.orDefaults())
}

// TrainReturns fits log2 of the time per return, which is the argument of Return. It is Poisson regression over the
// time that each sample was watched, so it learns from samples that have not returned yet as much as from those that
// have. MinLeaf and Lambda are in expected returns, not rows; their defaults are 10 and 5. All else is as for Train.
func TrainReturns(samples []Sample, outcomes []Outcome, params TrainParams) *Model {
	if params.MinLeaf == 0 {
		params.MinLeaf = 10
	}
	if params.Lambda == 0 {
		params.Lambda = 5
	}
	extra := max(len(samples)-maxRows, 0)
	l := newReturns(outcomes[extra:])
	m := train(samples[extra:], l, params.orDefaults())
	m.rescale(-math.Log2E)
	m.base += l.unit
	return m
}

func train(samples []Sample, l loss, params TrainParams) *Model {
	m := &Model{depth: params.Depth}
	if len(samples) == 0 {
		return m
	}
	t := newTrainer(samples, l, params)
	m.base = l.begin()
	for range params.Trees {
		t.grow(m)
	}
	m.index()
	return m
}

// bucket is a sum of gradients and a sum of weights in one integer: sum<<weightBits + weight. Training spends most of
// its time on additions to buckets, so there is one per row and feature. Integer sums do not depend on their order.
type bucket int64

const (
	maxRows    = 1<<20 - 1
	weightBits = 28
	maxWeight  = 1<<8 - 1 // of a row
	one        = 1 << 15  // the largest gradient, as an integer
)

func (b bucket) weight() int  { return int(b & (1<<weightBits - 1)) }
func (b bucket) sum() float64 { return float64(b >> weightBits) }

type histogram [Features][bins]bucket

// add adds rows to the histogram.
func (h *histogram) add(t *trainer, rows []int32) {
	used := h[:len(t.columns)]
	for _, r := range rows {
		g, row := t.gradient[r], t.binned[r][:len(used)]
		for c := range used {
			used[c][row[c]%bins] += g
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

// node is a set of rows of a growing tree, with its histogram.
type node struct {
	rows []int32
	hist *histogram
}

type trainer struct {
	params   TrainParams
	loss     loss
	least    int                 // least weight of a leaf
	lambda   float64             // in units of weight
	columns  []uint8             // features that differ between samples; all below are indexed by position in columns
	edges    [Features][]float32 // bin b holds values ≤ edges[b] and above the edge before
	binned   [][Features]uint8
	gradient []bucket
	scale    float64 // of a step: gradients' unit divided by weights' unit
	rows     []int32 // of the tree, grouped by node as it grows
	swap     []int32
	at       []uint8 // leaf of each row
	spare    []*histogram
	random   uint64
}

func newTrainer(samples []Sample, l loss, params TrainParams) *trainer {
	t := &trainer{
		params: params, loss: l, binned: make([][Features]uint8, len(samples)), gradient: make([]bucket, len(samples)),
		rows: make([]int32, 0, len(samples)), swap: make([]int32, len(samples)), at: make([]uint8, len(samples)),
		random: params.Seed,
	}
	t.least, t.lambda = params.MinLeaf*l.weightUnits(), params.Lambda*float64(l.weightUnits())
	t.cut(samples)
	rulers := make([]*ruler, len(t.columns))
	for c := range rulers {
		rulers[c] = newRuler(t.edges[c])
	}
	for i := range samples {
		for c, f := range t.columns {
			t.binned[i][c] = rulers[c].bin(samples[i][f%Features])
		}
	}
	return t
}

// cut computes bin edges: quantiles of evenly spaced rows, without duplicates.
func (t *trainer) cut(samples []Sample) {
	step := max(1, len(samples)/edgeRows)
	values := make([]float32, 0, edgeRows+1)
	for f := range Features {
		values = values[:0]
		for i := 0; i < len(samples); i += step {
			values = append(values, samples[i][f])
		}
		slices.Sort(values)
		if values[0] == values[len(values)-1] {
			continue
		}
		edges := make([]float32, 0, bins)
		for b := 1; b < bins; b++ {
			v := values[(b*len(values)-1)/bins]
			if len(edges) == 0 || v > edges[len(edges)-1] {
				edges = append(edges, v)
			}
		}
		t.edges[len(t.columns)] = edges
		t.columns = append(t.columns, uint8(f))
	}
}

// ruler holds edges as integers ordered as the floats are, filled up with the largest integer.
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

// bin returns how many edges are below v, by binary search without branches.
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

// sample draws the rows of one tree, four per random number and without branches.
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

func (t *trainer) histogram() *histogram {
	if n := len(t.spare); n > 0 {
		h := t.spare[n-1]
		t.spare = t.spare[:n-1]
		*h = histogram{}
		return h
	}
	return new(histogram)
}

// grow adds one tree to m, level by level, and updates all rows' predictions.
func (t *trainer) grow(m *Model) {
	t.sample()
	t.scale = t.loss.gradients(t.rows, t.gradient, t.next())
	inner, leaves := 1<<m.depth-1, 1<<m.depth
	feature, threshold, leaf := make([]uint8, inner), make([]float32, inner), make([]float32, leaves)
	columns, cuts := make([]uint8, inner), make([]uint8, inner)
	level := []node{{rows: t.rows, hist: t.histogram()}}
	level[0].hist.add(t, t.rows)
	at := 0
	for d := range m.depth {
		below := make([]node, 0, 2*len(level))
		for _, n := range level {
			col, cut := t.split(n)
			columns[at], cuts[at], threshold[at] = col, cut, t.edge(col, cut)
			if cut != whole {
				feature[at] = t.columns[col]
			}
			l, r := t.part(n, col, cut, d+1 < m.depth)
			below = append(below, l, r)
			at++
		}
		level = below
	}
	for i, n := range level {
		leaf[i] = t.value(n.rows)
	}
	m.feature, m.threshold, m.leaf = append(m.feature, feature...), append(m.threshold, threshold...),
		append(m.leaf, leaf...)
	t.step(m.depth, columns, cuts, leaf)
}

// whole is the cut that sends every row to the left.
const whole = bins - 1

func (t *trainer) edge(column, cut uint8) float32 {
	if cut == whole {
		return math.MaxFloat32
	}
	return t.edges[column][cut]
}

// split returns the cut that lowers the squared error most, or (0, whole) if none does.
func (t *trainer) split(n node) (column, cut uint8) {
	cut = whole
	if n.hist == nil {
		return 0, cut
	}
	var total bucket
	for _, b := range n.hist[0] {
		total += b
	}
	if total.weight() < 2*t.least {
		return 0, cut
	}
	best := t.gain(total) * (1 + 1e-9)
	for f := range t.columns {
		var left bucket
		for c := range t.edges[f] {
			left += n.hist[f][c]
			right := total - left
			if left.weight() < t.least {
				continue
			}
			if right.weight() < t.least {
				break
			}
			if g := t.gain(left) + t.gain(right); g > best {
				best, column, cut = g, uint8(f), uint8(c)
			}
		}
	}
	return column, cut
}

// gain returns sum²/(weight + λ), in the units of gradients and weights.
func (t *trainer) gain(b bucket) float64 {
	sum := b.sum()
	return sum * sum / (float64(b.weight()) + t.lambda)
}

// part divides a node's rows in place and keeps their order. If histograms are wanted, it counts only the smaller side;
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
		// An unpredictable branch would be slow: write to both sides, keep one.
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

// above returns 1 if b > cut, else 0, without branches.
func above(b, cut uint8) int { return int((uint32(cut) - uint32(b)) >> 31) }

func (t *trainer) value(rows []int32) float32 {
	var all bucket
	for _, r := range rows {
		all += t.gradient[r]
	}
	step := t.loss.bound(all.sum() * t.scale / (float64(all.weight()) + t.lambda))
	return t.params.Rate * float32(step)
}

// step passes every row, sampled or not, through the new tree.
func (t *trainer) step(depth int, columns, cuts []uint8, leaf []float32) {
	for i := range t.binned {
		n := 0
		for range depth {
			n = 2*n + 1 + above(t.binned[i][columns[n]], cuts[n])
		}
		t.at[i] = uint8(n - len(columns))
	}
	t.loss.step(t.at, leaf)
}
