package codes

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// level is k-means of one level.
type level struct {
	*pass
	k         int
	number    int // from 1 on
	passes    int
	options   Options
	random    *rand.Rand
	centroids []float32
}

const (
	sampleRows       = 256 // rows per code that the first passes see, as more do not change centroids much
	sampleIterations = 40
	starts           = 3    // of which the best goes on
	settled          = 1e-4 // a pass that lowers the error by less than this share is the last one
	balancePasses    = 4    // with bounds, at most
)

// train finds centroids, on a sample first, and the code of each row.
func (t *level) train() error {
	t.random = rand.New(rand.NewPCG(t.options.Seed, uint64(t.number)))
	sample := t.sample(sampleRows * t.k)
	var best []float32
	least := math.Inf(1)
	for range starts {
		t.seed(sample)
		err := t.lloyd(sample, sampleIterations)
		if err == nil {
			err = sample.assign(t.centroids)
		}
		if err != nil {
			return err
		}
		if e := sample.err(); best == nil || e < least {
			best, least = t.centroids, e
		}
	}
	t.centroids = best
	if err := t.lloyd(t.pass, t.options.Iterations); err != nil {
		return err
	}
	if err := t.assign(t.centroids); err != nil {
		return err
	}
	return t.balance()
}

// sample returns a pass over at most most rows: all of them, or a random choice in the order of the rows.
func (t *level) sample(most int) *pass {
	if t.n <= most {
		return t.pass
	}
	values := make([]float32, 0, most*t.dims)
	for r, need := 0, most; need > 0; r++ {
		if t.random.IntN(t.n-r) < need {
			values, need = append(values, t.row(r)...), need-1
		}
	}
	return newPass(t.m, values, t.dims)
}

// lloyd moves centroids to the means of their rows until that changes little.
func (t *level) lloyd(p *pass, most int) error {
	before := 0.0
	for i := range most {
		if err := p.assign(t.centroids); err != nil {
			return err
		}
		now := p.err()
		if err := t.step(p.n, now); err != nil {
			return err
		}
		empty := p.mean(t.centroids)
		t.revive(p, empty)
		if len(empty) == 0 && i > 0 && before-now <= settled*before {
			return nil
		}
		before = now
	}
	return nil
}

func (t *level) step(rows int, err float64) error {
	t.passes++
	if t.options.Step == nil {
		return nil
	}
	return t.options.Step(Progress{Level: t.number, Pass: t.passes, Rows: rows, Error: err})
}

// revive moves centroids without rows to the rows that are farthest from theirs.
func (t *level) revive(p *pass, empty []int32) {
	if len(empty) == 0 {
		return
	}
	far := make([]int32, 0, p.n)
	for r, s := range p.score {
		if p.distance(r, s) > 0 {
			far = append(far, int32(r))
		}
	}
	slices.SortFunc(far, func(a, b int32) int {
		return cmp.Or(cmp.Compare(p.distance(int(b), p.score[b]), p.distance(int(a), p.score[a])), cmp.Compare(a, b))
	})
	for i, c := range empty[:min(len(empty), len(far))] {
		copy(t.centroids[int(c)*t.dims:][:t.dims], p.row(int(far[i])))
	}
}

const (
	seedRows  = 16      // rows per code that seeds are chosen from, at least 4096
	seedTries = 4       // rows of which the best becomes a seed
	seedWork  = 1 << 35 // most multiply-adds of seeding; beyond, seeds are random rows
)

// seed chooses the first centroids by greedy k-means++: of a few rows, drawn with a probability in proportion to the
// square of their distance to the centroids before, the one that lowers the sum of these squares most.
func (t *level) seed(sample *pass) {
	t.centroids = make([]float32, t.k*t.dims)
	n := min(sample.n, max(4096, seedRows*t.k))
	order := t.random.Perm(sample.n)[:n]
	if seedTries*n*t.k > seedWork/t.dims {
		for c := range t.k {
			copy(t.centroids[c*t.dims:][:t.dims], sample.row(order[c]))
		}
		return
	}
	distance := slices.Repeat([]float64{math.Inf(1)}, n)
	next := make([][]float64, seedTries)
	for i := range next {
		next[i] = make([]float64, n)
	}
	for c := range t.k {
		tries := order[:1]
		if c > 0 {
			tries = make([]int, seedTries)
			for i := range tries {
				tries[i] = order[draw(t.random, distance)]
			}
		}
		best, least := 0, math.Inf(1)
		for i, row := range tries {
			pieces(t.m, 0, n, func(r int) {
				next[i][r] = min(distance[r], apart(sample.row(order[r]), sample.row(row)))
			})
			sum := 0.0
			for _, d := range next[i] {
				sum += d
			}
			if sum < least {
				best, least = i, sum
			}
		}
		copy(t.centroids[c*t.dims:][:t.dims], sample.row(tries[best]))
		distance, next[best] = next[best], distance
	}
}

// apart returns the square of the distance of two rows.
func apart(a, b []float32) float64 {
	var s0, s1, s2, s3 float32
	i := 0
	for ; i+4 <= len(a); i += 4 {
		a, b := a[i:i+4:i+4], b[i:i+4:i+4]
		d0, d1, d2, d3 := a[0]-b[0], a[1]-b[1], a[2]-b[2], a[3]-b[3]
		s0, s1, s2, s3 = s0+d0*d0, s1+d1*d1, s2+d2*d2, s3+d3*d3
	}
	for ; i < len(a); i++ {
		d := a[i] - b[i]
		s0 += d * d
	}
	return float64(s0+s1) + float64(s2+s3)
}

// draw returns a place with a probability in proportion to its weight; any if all weights are 0.
func draw(random *rand.Rand, weights []float64) int {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	at := random.Float64() * sum
	for i, w := range weights {
		if at < w {
			return i
		}
		at -= w
	}
	return random.IntN(len(weights))
}
