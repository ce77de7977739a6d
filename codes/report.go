package codes

import "math"

// Report says how good paths are.
type Report struct {
	Items int `json:"items"`
	// Error is what remains of the rows' squares, as a share of what their mean leaves: 0 is exact.
	Error  float64 `json:"error"`
	Levels []Use   `json:"levels"`
	// Shared counts the items whose path another item has too, Paths the different paths, and Most the items of the
	// path that has the most.
	Shared int `json:"shared"`
	Paths  int `json:"paths"`
	Most   int `json:"most"`
}

// Use is how a level's codes are used.
type Use struct {
	Size    int `json:"size"`
	Used    int `json:"used"`
	Largest int `json:"largest"` // items of the code that has the most
	// Effective is the number of equally used codes with the same entropy.
	Effective float64 `json:"effective"`
}

// Spread returns the sum of squares of rows' differences to their mean, the error of codes that say nothing.
func Spread(rows []float32, dims int) float64 {
	mean, squares := make([]float64, dims), 0.0
	for i, v := range rows {
		mean[i%dims] += float64(v)
		squares += float64(v) * float64(v)
	}
	n := float64(len(rows) / dims)
	for _, s := range mean {
		squares -= s * s / n
	}
	return max(0, squares)
}

// Describe returns the report of paths. Rows are what remains, and spread is that of the rows they were made of.
func (b *Book) Describe(rows []float32, paths []int32, spread float64) *Report {
	levels := len(b.Levels)
	out := &Report{Items: len(paths) / levels}
	sum := 0.0
	for _, v := range rows {
		sum += float64(v) * float64(v)
	}
	if spread > 0 {
		out.Error = sum / spread
	}
	for l, size := range b.Sizes() {
		count := make([]int, size)
		for at := l; at < len(paths); at += levels {
			count[paths[at]]++
		}
		out.Levels = append(out.Levels, use(count, out.Items))
	}
	out.collisions(b.Sizes(), paths)
	return out
}

func use(count []int, items int) Use {
	u, entropy := Use{Size: len(count)}, 0.0
	for _, n := range count {
		if n > 0 {
			u.Used++
			u.Largest = max(u.Largest, n)
			share := float64(n) / float64(items)
			entropy -= share * math.Log(share)
		}
	}
	u.Effective = math.Exp(entropy)
	return u
}

func (r *Report) collisions(sizes []int, paths []int32) {
	s, count := &space{sizes: sizes}, map[uint64]int{}
	for at := 0; at < len(paths); at += len(sizes) {
		count[s.key(paths[at:][:len(sizes)])]++
	}
	r.Paths = len(count)
	for _, n := range count {
		if n > 1 {
			r.Shared += n
		}
		r.Most = max(r.Most, n)
	}
}
