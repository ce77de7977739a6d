package beam

import (
	"cmp"
	"errors"
	"math"
	"slices"
)

// Rules change which items a search prefers. They never change a path's log-probability.
//
// Each continuation has a key, and the search keeps those with the highest keys. Without rules the key is the
// log-probability of the path. A temperature T replaces it by T times a perturbed log-probability (see draw). To both
// is added the highest boost of the eligible items below, or a bound above it. So no key is lower than that of any item
// below: a search whose last result has a higher key than all that it cut has the results of a search that cuts
// nothing.
type Rules struct {
	Boosts []Boost
	// Temperature above 0 samples paths without replacement: path by path, each in proportion to its probability, which
	// is the product of softmax(logits / Temperature) over the valid continuations of its levels. Boosts count as
	// boost / Temperature there. Equal seeds draw equally.
	Temperature float64
	Seed        uint64
	// Accept is asked about the items of the results, best first, once each, and reports whether an item is taken; nil:
	// all are.
	Accept func(item uint32) bool
}

// Boost adds a value to the keys and scores of a set of items.
type Boost struct {
	Set   *Set
	Value float64
}

const (
	// maxLeaves is how many paths the last round keeps for Accept to choose from.
	maxLeaves = 1 << 16
	// maxLooks bounds the items that are looked at for the bound of one node.
	maxLooks = 64
)

// ruled is what a search with rules remembers.
type ruled struct {
	*Rules
	most  float64    // no item has a larger boost
	lost  float64    // the highest key that was cut
	last  float64    // key of the last result
	of    []int32    // beam of each of the selector's rows
	rows  []drawnRow // by row of the selector
	draws []draw     // by beam
	next  []draw     // of the beams after the round
	noise []float64  // perturbed log-probabilities of one row
	items []ruledItem
	taken map[int32]bool // beams with a result, with OnePerPath
}

type ruledItem struct {
	key, boost float64
	beam       int32
	position   uint32
}

func (r *ruled) reset(ix *Index, rules *Rules) error {
	r.Rules, r.lost, r.last, r.most = rules, negInf, negInf, 0
	if rules == nil {
		return nil
	}
	if t := rules.Temperature; !(t >= 0) || math.IsInf(t, 1) {
		return errors.New("beam: the temperature is not a number from 0 on")
	}
	for _, b := range rules.Boosts {
		if b.Set.ix != ix {
			return errors.New("beam: a boost belongs to another index")
		}
		if math.IsNaN(b.Value) || math.IsInf(b.Value, 0) {
			return errors.New("beam: a boost is not a finite number")
		}
		r.most += max(0, b.Value)
	}
	r.draws = append(r.draws[:0], root(rules.Seed))
	return nil
}

// chooseRuled returns the continuations with the highest keys, at most topK of one beam, in the order of their nodes.
// The selector has the rows of the round.
func (s *Search) chooseRuled(width, topK int) []candidate {
	sel, r := &s.sel, &s.ruled
	sel.floor = negInf
	sel.sortRows()
	sel.kept.reset(width)
	r.rows = slices.Grow(r.rows[:0], len(sel.rows))[:len(sel.rows)]
	for _, i := range sel.order {
		if topK >= min(width, sel.rows[i].n) {
			s.collectRuled(i, &sel.kept)
			continue
		}
		sel.own.reset(topK)
		s.collectRuled(i, &sel.own)
		for _, c := range sel.own.heap {
			s.keep(&sel.kept, c)
		}
	}
	chosen := sel.kept.heap
	slices.SortFunc(chosen, func(a, b candidate) int { return cmp.Compare(a.node, b.node) })
	r.next = r.next[:0]
	for k := range chosen {
		c := &chosen[k]
		row := &sel.rows[c.row]
		d := r.draws[r.of[c.row]]
		if row.row < 0 {
			c.score = row.score
		} else {
			i := int(c.node - row.first)
			if r.Temperature > 0 {
				d = r.rows[c.row].child(d, r.Temperature, row, i)
			}
			c.score = row.continued(row.logit(i))
		}
		r.next = append(r.next, d)
		c.row = row.row
	}
	r.draws, r.next = r.next, r.draws
	return chosen
}

// collectRuled offers the continuations of row i to b.
func (s *Search) collectRuled(i int32, b *best) {
	sel, r := &s.sel, &s.ruled
	row := &sel.rows[i]
	if row.row < 0 {
		key := row.score
		if r.Temperature > 0 {
			key = r.Temperature * r.draws[r.of[i]].g
		}
		s.consider(b, candidate{score: key, node: row.first, row: i})
		return
	}
	if r.Temperature > 0 {
		r.noise = slices.Grow(r.noise[:0], row.n)[:row.n]
		r.rows[i] = drawRow(r.noise, r.draws[r.of[i]], r.Temperature, row)
		for j, g := range r.noise {
			if g > negInf {
				s.consider(b, candidate{score: r.Temperature * g, node: row.first + uint32(j), row: i})
			}
		}
		return
	}
	for k, top := range sel.maxes[row.blocks:][:row.countBlocks()] {
		node := row.first + uint32(k*blockLen)
		if s.below(b, candidate{score: row.continued(top), node: node}) {
			continue
		}
		for j, x := range sel.block(row, k) {
			if x >= -math.MaxFloat32 {
				s.consider(b, candidate{score: row.continued(x), node: node + uint32(j), row: i})
			}
		}
	}
}

// consider offers a continuation, whose key has no boost yet, if an eligible item lies below it.
func (s *Search) consider(b *best, c candidate) {
	if s.below(b, c) || s.eligible != nil && !s.eligible.alive(s.level, c.node) {
		return
	}
	if len(s.ruled.Boosts) > 0 {
		c.score += s.bonus(c.node)
	}
	s.keep(b, c)
}

// below reports whether a continuation would be cut, whatever boost it has, and without changing what was lost.
func (s *Search) below(b *best, c candidate) bool {
	c.score += s.ruled.most
	return c.score < s.ruled.lost && !(b.wants(c) && (b == &s.sel.kept || s.sel.kept.wants(c)))
}

// keep offers a candidate and remembers the best that is cut.
func (s *Search) keep(b *best, c candidate) {
	if b.full() {
		worse := b.heap[0]
		if !c.better(worse) {
			worse = c
		}
		s.ruled.lost = max(s.ruled.lost, worse.score)
	}
	b.offer(c)
}

// bonus returns the highest boost of the eligible items below a node: exactly for a leaf, and a bound above it
// otherwise.
func (s *Search) bonus(node uint32) float64 {
	from, to := s.ix.positions(s.level, node)
	if s.level == s.ix.Depth()-1 {
		top := negInf
		for p, ok := s.eligibleFrom(from, to); ok; p, ok = s.eligibleFrom(p+1, to) {
			top = max(top, s.ruled.boost(p))
		}
		return top
	}
	sum := 0.0
	for _, b := range s.ruled.Boosts {
		if b.Value > 0 && s.some(b.Set, from, to) || b.Value < 0 && s.only(b.Set, from, to) {
			sum += b.Value
		}
	}
	return sum
}

// some reports whether a range has an eligible item of a set. It may report true if the range has many items.
func (s *Search) some(set *Set, from, to uint32) bool {
	for range maxLooks {
		p, ok := set.next(from, to)
		if !ok {
			return false
		}
		if s.eligible == nil || s.eligible.has(p) {
			return true
		}
		from = p + 1
	}
	return true
}

// only reports whether all eligible items of a range are in a set. It may report false if the range has many items.
func (s *Search) only(set *Set, from, to uint32) bool {
	for range maxLooks {
		p, ok := s.eligibleFrom(from, to)
		if !ok {
			return true
		}
		if !set.at(p) {
			return false
		}
		from = p + 1
	}
	return false
}

// eligibleFrom returns the first eligible position of a range.
func (s *Search) eligibleFrom(from, to uint32) (uint32, bool) {
	if s.eligible == nil {
		return from, from < to
	}
	return s.eligible.next(from, to)
}

// Of returns the boost of an item that the index of the boosts holds.
func (r *Rules) Of(item uint32) float64 {
	if len(r.Boosts) == 0 {
		return 0
	}
	return r.boost(r.Boosts[0].Set.ix.place[item])
}

// boost returns the boost of the item at a position.
func (r *Rules) boost(position uint32) float64 {
	sum := 0.0
	for _, b := range r.Boosts {
		if b.Set.at(position) {
			sum += b.Value
		}
	}
	return sum
}

// ruledResults appends the results of a search with rules: by key, then as Results does.
func (s *Search) ruledResults(dst []Result, n int) (results []Result, short bool) {
	r, depth := &s.ruled, s.ix.Depth()
	r.items = r.items[:0]
	for i, b := range s.beams {
		key := b.score
		if r.Temperature > 0 {
			key = r.Temperature * r.draws[i].g
		}
		from, to := s.ix.levels[depth-1].below.bounds(b.node)
		for p, ok := s.eligibleFrom(from, to); ok; p, ok = s.eligibleFrom(p+1, to) {
			boost := r.boost(p)
			r.items = append(r.items, ruledItem{key + boost, boost, int32(i), p})
		}
	}
	slices.SortFunc(r.items, func(a, b ruledItem) int {
		return cmp.Or(cmp.Compare(b.key, a.key), cmp.Compare(a.position, b.position))
	})
	if s.opts.OnePerPath {
		r.taken = make(map[int32]bool, min(n, len(s.beams)))
	}
	s.paths = slices.Grow(s.paths[:0], depth*min(n, len(r.items)))
	for _, it := range r.items {
		if n == 0 {
			break
		}
		item := s.ix.items[it.position]
		if s.opts.OnePerPath && r.taken[it.beam] || r.Accept != nil && !r.Accept(item) {
			continue
		}
		if s.opts.OnePerPath {
			r.taken[it.beam] = true
		}
		s.paths = s.ix.Path(s.paths, s.beams[it.beam].node)
		codes := s.paths[len(s.paths)-depth:]
		dst = append(dst, Result{Item: item, Codes: codes, Score: s.beams[it.beam].score + it.boost, Boost: it.boost})
		r.last = it.key
		n--
	}
	if n > 0 {
		r.last = negInf
	}
	return dst, n > 0
}

// Certain reports, after Results of a search with rules, whether a search that cuts nothing has the same results.
func (s *Search) Certain() bool { return s.ruled.lost == negInf || s.ruled.last > s.ruled.lost }
