package beam

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// selector finds the best continuations of a round's beams (XGR-4 in docs/explain/papers.md): exactly those that
// sorting all of them by candidate.better would put first.
//
// add reads each row of logits once, for its normaliser and the largest logit of each block. choose
// keeps the best candidates in a heap and visits the rows from the one with the best continuation down:
// a row whose best is not above the heap's worst ends the search, a block whose best is not is skipped.
// It does so twice: the best of the blocks' best alone give a floor under the scores that can be kept,
// so that then hardly a logit is looked at which is not.
type selector struct {
	rows    []selectorRow
	order   []int32
	maxes   []float32 // of all rows' blocks
	sums    []float32 // of one row's blocks
	scratch []float32 // valid logits of one row, padded to whole blocks
	kept    best      // of all rows
	own     best      // of one row, where a row may keep fewer than all

	eligible *Eligible // nil: all
	level    int       // that the nodes of candidates belong to
	floor    float64   // no lower score is kept
}

// selectorRow is a beam and its continuations.
type selectorRow struct {
	logits []float32
	codes  Codes   // valid codes; empty if all are, and logits are theirs
	n      int     // continuations
	first  uint32  // node of the first
	score  float64 // of the beam
	norm   float64 // log of the sum of the exponentials of its valid logits
	top    float64 // score of the best continuation
	blocks int     // where its maxes begin
	row    int32
	from   uint32 // positions below the beam
	to     uint32
}

func (r *selectorRow) logit(i int) float32 {
	if r.codes.Len() > 0 {
		return r.logits[r.codes.At(i)]
	}
	return r.logits[i]
}

func (r *selectorRow) countBlocks() int {
	if r.row < 0 {
		return 0
	}
	return (r.n + blockLen - 1) / blockLen
}

// continued is the score of a continuation with a logit. It never falls as the logit grows.
func (r *selectorRow) continued(logit float32) float64 { return r.score + (float64(logit) - r.norm) }

func (s *selector) reset(level int, e *Eligible) {
	s.rows, s.maxes, s.level, s.eligible = s.rows[:0], s.maxes[:0], level, e
}

// addSettled adds a beam with one continuation, of probability one.
func (s *selector) addSettled(score float64, node uint32) {
	s.rows = append(s.rows, selectorRow{n: 1, first: node, score: score, top: score, row: -1})
}

// add adds a beam; codes are its valid continuations and logits those of all codes of the level.
func (s *selector) add(r selectorRow) error {
	r.blocks = len(s.maxes)
	blocks := r.countBlocks()
	s.maxes = slices.Grow(s.maxes, blocks+groupLen)[:r.blocks+blocks]
	s.sums = slices.Grow(s.sums[:0], blocks+groupLen)[:blocks]
	maxes := s.maxes[r.blocks:]
	if r.codes.Len() == len(r.logits) {
		r.codes = Codes{}
	}
	if !s.scan(&r, maxes) {
		return r.refuse()
	}
	top := maxes[0]
	for _, m := range maxes {
		if m > top { // no NaN left
			top = m
		}
	}
	switch {
	case math.IsInf(float64(top), 1):
		return r.refuse()
	case math.IsInf(float64(top), -1): // nothing has a probability
		s.maxes = s.maxes[:r.blocks]
		return nil
	}
	r.norm = logSum(maxes, s.sums, top)
	r.top = r.continued(top)
	s.rows = append(s.rows, r)
	return nil
}

// scan fills maxes and s.sums from a row's valid logits.
func (s *selector) scan(r *selectorRow, maxes []float32) bool {
	if r.codes.Len() == 0 {
		whole := r.n / blockLen
		s.scratch = padded(s.scratch, r.logits[whole*blockLen:])
		return scan(r.logits[:whole*blockLen], maxes, s.sums) && scan(s.scratch, maxes[whole:], s.sums[whole:])
	}
	s.scratch = slices.Grow(s.scratch[:0], r.n+blockLen)[:r.n]
	r.codes.gather(s.scratch, r.logits)
	s.scratch = padded(s.scratch, s.scratch)
	return scan(s.scratch, maxes, s.sums)
}

func (r *selectorRow) refuse() error {
	for i := range r.n {
		if x := float64(r.logit(i)); math.IsNaN(x) || math.IsInf(x, 1) {
			code := int32(i)
			if r.codes.Len() > 0 {
				code = r.codes.At(i)
			}
			return fmt.Errorf("row %d: the logit of code %d is %v", r.row, code, x)
		}
	}
	return fmt.Errorf("row %d: a logit changed while it was read", r.row)
}

// choose returns the best width continuations, at most topK of one beam, in the order of their nodes.
// They are valid until the next call.
func (s *selector) choose(width, topK int) []candidate {
	s.sortRows()
	s.raiseFloor(width, topK)
	s.visit(width, topK, (*selector).collect)
	slices.SortFunc(s.kept.heap, func(a, b candidate) int { return cmp.Compare(a.node, b.node) })
	return s.kept.heap
}

// raiseFloor sets the floor to the score of the last that would be kept if each block had its best
// continuation only. Of these, as many may be dead as are in all; with a filter it is not known.
func (s *selector) raiseFloor(width, topK int) {
	s.floor = negInf
	if s.eligible != nil {
		if s.eligible.set != nil {
			return
		}
		width += len(s.eligible.dead[s.level])
	}
	if len(s.maxes) < width {
		return
	}
	s.visit(width, topK, (*selector).collectBlocks)
	if s.kept.full() {
		s.floor = s.kept.heap[0].score
	}
}

// visit offers the continuations that read finds to the heap of all rows, by a heap of the row's own
// where that limits them.
func (s *selector) visit(width, topK int, read func(*selector, *selectorRow, *best)) {
	s.kept.reset(width)
	for _, i := range s.order {
		r := &s.rows[i]
		if r.top < s.floor || !s.kept.wants(candidate{score: r.top, node: r.first}) {
			break
		}
		if topK >= min(width, r.n) {
			read(s, r, &s.kept)
			continue
		}
		s.own.reset(topK)
		read(s, r, &s.own)
		for _, c := range s.own.heap {
			s.kept.offer(c)
		}
	}
}

func (s *selector) sortRows() {
	s.order = s.order[:0]
	for i := range s.rows {
		s.order = append(s.order, int32(i))
	}
	slices.SortFunc(s.order, func(i, j int32) int {
		a, b := &s.rows[i], &s.rows[j]
		if c := cmp.Compare(b.top, a.top); c != 0 {
			return c
		}
		return cmp.Compare(a.first, b.first)
	})
}

// collect offers to b the continuations of a row that the heap of all rows would keep too.
func (s *selector) collect(r *selectorRow, b *best) {
	if r.row < 0 {
		s.try(b, candidate{score: r.score, node: r.first, row: -1})
		return
	}
	if s.eligible != nil && s.eligible.few(r.from, r.to, s.fewItems(r)) {
		s.collectEligible(r, b)
		return
	}
	least := s.least(r, b)
	for k, top := range s.maxes[r.blocks:][:r.countBlocks()] {
		node := r.first + uint32(k*blockLen)
		if top < least || !s.wants(b, candidate{score: r.continued(top), node: node}) {
			continue
		}
		for i, x := range s.block(r, k) {
			if x >= least && s.try(b, candidate{score: r.continued(x), node: node + uint32(i), row: r.row}) {
				least = s.least(r, b)
			}
		}
	}
}

// block returns the logits of a row's block.
func (s *selector) block(r *selectorRow, k int) []float32 {
	from, to := k*blockLen, min((k+1)*blockLen, r.n)
	if r.codes.Len() == 0 {
		return r.logits[from:to]
	}
	s.scratch = slices.Grow(s.scratch[:0], blockLen)[:blockLen]
	r.codes.slice(uint32(from), uint32(to)).gather(s.scratch, r.logits)
	return s.scratch[:to-from]
}

// collectBlocks offers the best continuation of each block, as if it were the block's first.
func (s *selector) collectBlocks(r *selectorRow, b *best) {
	if r.row < 0 {
		b.offer(candidate{score: r.score, node: r.first, row: -1})
		return
	}
	least := s.least(r, b)
	for k, top := range s.maxes[r.blocks:][:r.countBlocks()] {
		c := candidate{score: r.continued(top), node: r.first + uint32(k*blockLen), row: r.row}
		if top >= least && s.wants(b, c) {
			b.offer(c)
			least = s.least(r, b)
		}
	}
}

// fewItems returns how many eligible items below a beam are few. With a share p of n continuations
// eligible in each of the rows, going through items costs in proportion to rows·n·p, and asking for the
// continuations that are good enough to width/p. They cost about the same where these are equal.
func (s *selector) fewItems(r *selectorRow) int {
	return int(math.Sqrt(float64(r.n) * float64(s.kept.limit) / float64(len(s.rows))))
}

// collectEligible goes through the eligible items below a beam, a continuation at a time.
func (s *selector) collectEligible(r *selectorRow, b *best) {
	e := s.eligible
	for p, ok := e.next(r.from, r.to); ok; {
		node := e.ix.nodeAt(s.level, p)
		x := r.logit(int(node - r.first))
		c := candidate{score: r.continued(x), node: node, row: r.row}
		if x >= -math.MaxFloat32 && s.wants(b, c) {
			b.offer(c)
		}
		_, end := e.ix.positions(s.level, node)
		p, ok = e.next(end, r.to)
	}
}

func (s *selector) wants(b *best, c candidate) bool {
	return c.score >= s.floor && b.wants(c) && (b == &s.kept || s.kept.wants(c))
}

// try offers a candidate if it is wanted and eligible. What is wanted is asked first: it is cheaper.
func (s *selector) try(b *best, c candidate) bool {
	if !s.wants(b, c) || s.eligible != nil && !s.eligible.alive(s.level, c.node) {
		return false
	}
	b.offer(c)
	return true
}

// least returns a logit that every continuation that is wanted reaches. It lies a little below the
// smallest such logit, for rounding; who passes it is compared by score.
func (s *selector) least(r *selectorRow, b *best) float32 {
	worst := s.floor
	if b.full() {
		worst = max(worst, b.heap[0].score)
	}
	if s.kept.full() {
		worst = max(worst, s.kept.heap[0].score)
	}
	if worst == negInf {
		return -math.MaxFloat32 // anything but -Inf
	}
	slack := 1e-9 * (1 + math.Abs(worst) + math.Abs(r.score) + math.Abs(r.norm))
	return max(-math.MaxFloat32, math.Nextafter32(float32(worst-r.score+r.norm-slack), float32(negInf)))
}
