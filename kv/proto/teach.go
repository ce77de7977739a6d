package proto

import (
	"fmt"
	"math"
	"slices"
	"sync"
)

// A lesson is an occurrence of a token: its context's features, and what it shall be like.
type lesson struct {
	token   int32
	context [features]float32
	target  [Width]float32
}

// penalty is what keeps images small, for each lesson.
const penalty = 0.00075

// teach finds the images of embeddings whose sums predict best what the teacher says of a sample of histories.
func (b *builder) teach() error {
	list, err := b.sample()
	if err != nil || len(list) == 0 {
		return err
	}
	means := centreByToken(list)
	images := regress(list)
	if images == nil {
		return fmt.Errorf("proto: nothing can be learned from %d tokens", len(list))
	}
	s := b.space
	s.images = images
	copy(s.frame.places[:Width], images[(features-1)*Width:])
	s.project(&s.frame.places)
	s.fit(list, means)
	return nil
}

// sample asks the teacher about histories from all over, until there are enough tokens.
func (b *builder) sample() ([]lesson, error) {
	var out []lesson
	n := b.in.Len()
	for k := 0; k < n && len(out) < b.space.cfg.Lessons; k++ {
		if err := b.ctx.Err(); err != nil {
			return nil, err
		}
		i := int(mix(b.space.cfg.Seed+uint64(k)) % uint64(n))
		tokens, _, err := b.in.History(i)
		if err != nil {
			return nil, fmt.Errorf("proto: history %d: %w", i, err)
		}
		at := b.asked(tokens)
		targets, err := b.model.Teacher(b.ctx, tokens, at)
		if err != nil {
			return nil, fmt.Errorf("proto: history %d: %w", i, err)
		}
		out = b.lessonsOf(out, tokens, at, targets)
		if b.progress != nil {
			b.progress("lessons", min(len(out), b.space.cfg.Lessons), b.space.cfg.Lessons)
		}
	}
	return out, nil
}

// asked returns the tokens of a history that the teacher is asked about. Of long ones some are left out: there are
// more different users then.
func (b *builder) asked(tokens []int32) (at []int) {
	const most = 256
	step := 1 + len(tokens)/most
	for i := 0; i < len(tokens); i += step {
		if b.model.Natural(tokens[i]) {
			at = append(at, i)
		}
	}
	return at
}

// lessonsOf appends those of a history.
func (b *builder) lessonsOf(out []lesson, tokens []int32, at []int, targets [][]float32) []lesson {
	var before [Scales][Width]float32
	for i, t := range tokens {
		if len(at) > 0 && at[0] == i {
			l := lesson{token: t, target: b.space.fold(targets[0])}
			for j := range before {
				copy(l.context[j*Width:], before[j][:])
			}
			l.context[features-1] = place(i)
			out = append(out, l)
			at, targets = at[1:], targets[1:]
		}
		e := b.model.Embeddings(t)
		if e == nil {
			e = b.space.mean[:]
		}
		u := b.space.feature(e)
		for j := range before {
			left, gain := b.space.cfg.Left[j], b.space.gain(j)
			for d, x := range u {
				before[j][d] = float32(before[j][d]*left) + float32(x*gain)
			}
		}
	}
	return out
}

// centreByToken takes the mean of each token's occurrences away, of contexts and targets: what is the same for all of
// them needs no prediction. It returns the mean of all contexts.
func centreByToken(list []lesson) (mean [features]float64) {
	type total struct {
		n       int
		context [features]float64
		target  [Width]float64
	}
	by := map[int32]*total{}
	for i := range list {
		l := &list[i]
		s := by[l.token]
		if s == nil {
			s = &total{}
			by[l.token] = s
		}
		s.n++
		for d, x := range l.context {
			s.context[d] += float64(x)
			mean[d] += float64(x) / float64(len(list))
		}
		for d, x := range l.target {
			s.target[d] += float64(x)
		}
	}
	for i := range list {
		l := &list[i]
		s := by[l.token]
		for d := range l.context {
			l.context[d] -= float32(s.context[d] / float64(s.n))
		}
		for d := range l.target {
			l.target[d] -= float32(s.target[d] / float64(s.n))
		}
	}
	return mean
}

// columns are those of products: X, then Y.
const columns = features + Width

// products returns the rows of Xᵀ[X Y], of XᵀX the lower half.
func products(list []lesson) []float64 {
	g := make([]float64, features*columns)
	var wait sync.WaitGroup
	const parts = 4
	for part := range parts {
		wait.Go(func() {
			for some := range slices.Chunk(list, 32) { // as many as a cache holds
				for i := part; i < features; i += parts { // of each row of the products one goroutine has all
					multiply(g[i*columns:(i+1)*columns], some, i)
				}
			}
		})
	}
	wait.Wait()
	return g
}

// regress solves (XᵀX + penalty) W = XᵀY; nil when it has no solution.
func regress(list []lesson) []float32 {
	g := products(list)
	for i := range features {
		g[i*columns+i] += penalty * float64(len(list))
	}
	if !factor(g, columns) {
		return nil
	}
	y := make([]float64, 0, features*Width)
	for i := range features {
		y = append(y, g[i*columns+features:(i+1)*columns]...)
	}
	substitute(g, columns, y)
	out := make([]float32, len(y))
	for i, v := range y {
		out[i] = float32(v)
	}
	return out
}

// multiply adds lessons to a row of the products: feature i by the features up to i, and by the targets.
func multiply(row []float64, list []lesson, i int) {
	for k := range list {
		l := &list[k]
		x := float64(l.context[i])
		for j, y := range l.context[:i+1] {
			row[j] += float64(x * float64(y))
		}
		for j, y := range l.target {
			row[features+j] += float64(x * float64(y))
		}
	}
}

// factor replaces the lower triangle of g, of rows of stride numbers, with its Cholesky factor. It returns false if the
// matrix is not positive definite. The race detector skips it, because these loops took nine tenths of a test's time
// under it. That is safe: one goroutine owns g. The detector does check multiply, which several goroutines run.
//
//go:norace
func factor(g []float64, stride int) bool {
	for i := range features {
		ri := g[i*stride : i*stride+i+1]
		for j := 0; j <= i; j++ {
			rj := g[j*stride : j*stride+j+1]
			sum := ri[j]
			for k, x := range rj[:j] {
				sum -= float64(x * ri[k])
			}
			if j < i {
				ri[j] = sum / rj[j]
				continue
			}
			if !(sum > 0) || math.IsInf(sum, 1) {
				return false
			}
			ri[i] = math.Sqrt(sum)
		}
	}
	return true
}

// substitute solves for all targets: y, which has a row of them for each feature, in place.
func substitute(g []float64, stride int, y []float64) {
	row := func(i int) []float64 { return y[i*Width : (i+1)*Width] }
	for i := range features {
		for k, x := range g[i*stride : i*stride+i] {
			takeAway(row(i), row(k), x)
		}
		divide(row(i), g[i*stride+i])
	}
	for i := features - 1; i >= 0; i-- {
		divide(row(i), g[i*stride+i])
		for k, x := range g[i*stride : i*stride+i] {
			takeAway(row(k), row(i), x)
		}
	}
}

//go:norace
func takeAway(dst, src []float64, times float64) {
	for i, x := range src {
		dst[i] -= float64(x * times)
	}
}

//go:norace
func divide(v []float64, by float64) {
	for i := range v {
		v[i] /= by
	}
}

// fit sets what the images leave open: where the middle of all contexts is, how fine steps are, and how much of each
// token's error contexts do not predict.
func (s *space) fit(list []lesson, mean [features]float64) {
	for f, m := range mean {
		addScaled(s.frame.base[:Width], s.images[f*Width:][:Width], -float32(m))
	}
	s.project(&s.frame.base)
	type rest struct{ n, sum float64 }
	by := map[int32]rest{}
	var all rest
	squares := 0.0
	for i := range list {
		l := &list[i]
		var predicted [Width]float32
		for f, x := range l.context {
			addScaled(predicted[:], s.images[f*Width:][:Width], x)
		}
		missed := 0.0
		for d, p := range predicted {
			squares += float64(p) * float64(p)
			missed += float64(l.target[d]-p) * float64(l.target[d]-p)
		}
		r := by[l.token]
		by[l.token] = rest{r.n + 1, r.sum + missed}
		all = rest{all.n + 1, all.sum + missed}
	}
	// An embedding's values reach about as far as six times the usual one, and twice that for tokens' own means.
	if usual := math.Sqrt(squares / (all.n * Width)); usual > 0 {
		s.frame.steps = float32(127 / (12 * usual))
	}
	s.unknown = all.sum / all.n
	s.rest = map[int32]float64{}
	for t, r := range by {
		// Means of few occurrences are drawn to that of all, and corrected for the token's own mean.
		const prior = 8
		s.rest[t] = (r.sum + prior*s.unknown) / (max(r.n-1, 0) + prior)
	}
}

// setFloors gives rows that have none the error that contexts do not predict: that of both tokens.
func (s *space) setFloors() {
	for r, t := range s.tokens {
		if s.floors[r] != 0 || s.images == nil {
			continue
		}
		rest, ok := s.rest[t]
		if !ok {
			rest = s.unknown
		}
		s.floors[r] = float32(math.Sqrt(2 * rest))
	}
}
