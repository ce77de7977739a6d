package codes

// pass has rows, and their nearest centroids.
type pass struct {
	m       Machine
	rows    []float32
	dims, n int
	nearest []int32
	score   []float32 // of the nearest centroid: product minus half its square
	square  []float32 // of each row
	scores  []float32 // of a block of rows
}

func newPass(m Machine, rows []float32, dims int) *pass {
	n := len(rows) / dims
	p := &pass{m: m, rows: rows, dims: dims, n: n}
	p.nearest, p.score, p.square = make([]int32, n), make([]float32, n), make([]float32, n)
	p.each(func(r int) {
		s := 0.0
		for _, v := range p.row(r) {
			s += float64(v) * float64(v)
		}
		p.square[r] = float32(s)
	})
	return p
}

func (p *pass) row(r int) []float32 { return p.rows[r*p.dims:][:p.dims] }

// piece is the number of rows that one call of a Machine's Each works on.
const piece = 512

func (p *pass) each(f func(r int)) { pieces(p.m, 0, p.n, f) }

// pieces calls f for [from, to).
func pieces(m Machine, from, to int, f func(r int)) {
	m.Each((to-from+piece-1)/piece, func(i int) {
		for r := from + i*piece; r < min(to, from+(i+1)*piece); r++ {
			f(r)
		}
	})
}

// blockRows is the number of rows that are scored together: the scores stay in the cache.
func blockRows(k int) int { return max(64, min(4096, 1<<19/k)) }

// load gives centroids to the machine. Half their squares are subtracted from scores, so that the highest score is
// the nearest centroid.
func load(m Machine, centroids []float32, dims int) error {
	bias := make([]float32, len(centroids)/dims)
	for c := range bias {
		s := 0.0
		for _, v := range centroids[c*dims:][:dims] {
			s += float64(v) * float64(v)
		}
		bias[c] = float32(-s / 2)
	}
	return m.Load(centroids, bias, dims)
}

// assign finds the nearest centroid of each row; of equal ones the first.
func (p *pass) assign(centroids []float32) error {
	if err := load(p.m, centroids, p.dims); err != nil {
		return err
	}
	k := len(centroids) / p.dims
	block := blockRows(k)
	if len(p.scores) < block*k {
		p.scores = make([]float32, block*k)
	}
	for from := 0; from < p.n; from += block {
		to := min(p.n, from+block)
		if err := p.m.Scores(p.scores[:(to-from)*k], p.rows[from*p.dims:to*p.dims]); err != nil {
			return err
		}
		p.m.Each((to-from+63)/64, func(i int) {
			for r := from + i*64; r < min(to, from+(i+1)*64); r++ {
				p.nearest[r], p.score[r] = highest(p.scores[(r-from)*k:][:k])
			}
		})
	}
	return nil
}

func highest(scores []float32) (code int32, score float32) {
	score = scores[0]
	for c, s := range scores {
		if s > score {
			code, score = int32(c), s
		}
	}
	return code, score
}

// distance returns the square of a row's distance to a centroid with this score.
func (p *pass) distance(r int, score float32) float32 { return max(0, p.square[r]-2*score) }

// err returns the mean squared distance.
func (p *pass) err() float64 {
	sum := 0.0
	for r, s := range p.score {
		sum += float64(p.distance(r, s))
	}
	return sum / float64(p.n)
}

// subtract replaces each row by its difference to its centroid.
func (p *pass) subtract(centroids []float32) {
	p.each(func(r int) {
		row, c := p.row(r), centroids[int(p.nearest[r])*p.dims:][:p.dims]
		for i := range row {
			row[i] -= c[i]
		}
	})
}

// members returns the rows of each of k codes: those of code c are list[start[c]:start[c+1]], in order.
func (p *pass) members(k int) (list []int32, start []int) {
	start = make([]int, k+1)
	for _, c := range p.nearest {
		start[c+1]++
	}
	for c := range k {
		start[c+1] += start[c]
	}
	next := append([]int(nil), start[:k]...)
	list = make([]int32, p.n)
	for r, c := range p.nearest {
		list[next[c]] = int32(r)
		next[c]++
	}
	return list, start
}

// mean sets each centroid to the mean of its rows, and returns the codes that have none, whose centroids stay.
func (p *pass) mean(centroids []float32) (empty []int32) {
	k := len(centroids) / p.dims
	list, start := p.members(k)
	p.m.Each(k, func(c int) {
		own := list[start[c]:start[c+1]]
		if len(own) == 0 {
			return
		}
		sum := make([]float64, p.dims)
		for _, r := range own {
			for i, v := range p.row(int(r)) {
				sum[i] += float64(v)
			}
		}
		centroid := centroids[c*p.dims:][:p.dims]
		for i, s := range sum {
			centroid[i] = float32(s / float64(len(own)))
		}
	})
	for c := range k {
		if start[c] == start[c+1] {
			empty = append(empty, int32(c))
		}
	}
	return empty
}
