package codes

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// plain is a Machine without threads. order permutes the calls of Each.
type plain struct {
	centroids, bias []float32
	dims            int
	order           *rand.Rand
}

func (p *plain) Load(centroids, bias []float32, dims int) error {
	p.centroids, p.bias, p.dims = slices.Clone(centroids), slices.Clone(bias), dims
	return nil
}

func (p *plain) Scores(out, rows []float32) error {
	k := len(p.bias)
	for r := range len(rows) / p.dims {
		for c := range k {
			s := 0.0
			for i, v := range rows[r*p.dims:][:p.dims] {
				s += float64(v) * float64(p.centroids[c*p.dims+i])
			}
			out[r*k+c] = float32(s + float64(p.bias[c]))
		}
	}
	return nil
}

func (p *plain) Each(n int, f func(int)) {
	if p.order == nil {
		for i := range n {
			f(i)
		}
		return
	}
	for _, i := range p.order.Perm(n) {
		f(i)
	}
}

// mixture returns rows around centers of different sizes and widths.
func mixture(seed uint64, n, dims, centers int) []float32 {
	random := rand.New(rand.NewPCG(seed, 1))
	at := make([]float32, centers*dims)
	for i := range at {
		at[i] = float32(3 * random.NormFloat64())
	}
	out := make([]float32, 0, n*dims)
	for range n {
		c := int(float64(centers) * math.Pow(random.Float64(), 2)) // the first have the most
		for i := range dims {
			out = append(out, at[c*dims+i]+float32(random.NormFloat64())*(0.5+float32(c)/float32(centers)))
		}
	}
	return out
}

// reference is Lloyd's algorithm in float64 on all rows, from k-means++, until nothing changes. Rows become what
// remains.
func reference(rows []float64, dims, k int, random *rand.Rand) {
	n := len(rows) / dims
	row := func(r int) []float64 { return rows[r*dims:][:dims] }
	apart := func(a, b []float64) (s float64) {
		for i := range a {
			s += (a[i] - b[i]) * (a[i] - b[i])
		}
		return s
	}
	var centroids [][]float64
	distance := slices.Repeat([]float64{math.Inf(1)}, n)
	last := random.IntN(n)
	for range k {
		centroids = append(centroids, slices.Clone(row(last)))
		for r := range n {
			distance[r] = min(distance[r], apart(row(r), row(last)))
		}
		last = draw(random, distance)
	}
	nearest := make([]int, n)
	for changed := true; changed; {
		changed = false
		for r := range n {
			best, least := 0, math.Inf(1)
			for c := range centroids {
				if d := apart(row(r), centroids[c]); d < least {
					best, least = c, d
				}
			}
			changed = changed || nearest[r] != best
			nearest[r] = best
		}
		for c := range centroids {
			sum, count := make([]float64, dims), 0
			for r := range n {
				if nearest[r] == c {
					count++
					for i, v := range row(r) {
						sum[i] += v
					}
				}
			}
			for i := range sum {
				if count > 0 {
					centroids[c][i] = sum[i] / float64(count)
				}
			}
		}
	}
	for r := range n {
		for i := range dims {
			row(r)[i] -= centroids[nearest[r]][i]
		}
	}
}

func squares[F float32 | float64](rows []F) (s float64) {
	for _, v := range rows {
		s += float64(v) * float64(v)
	}
	return s
}

// The error is within 2 % of a plain k-means in float64, level by level, with the sample and with bounds.
func TestErrorIsThatOfPlainKMeans(t *testing.T) {
	for _, c := range []struct {
		name             string
		n, dims, centers int
		sizes            []int
	}{
		{"clusters", 1500, 8, 12, []int{16, 16, 16}},
		{"one cloud", 1500, 6, 1, []int{8, 8, 8}},
		{"sampled", 2400, 4, 12, []int{6, 6}}, // more than 256 rows per code
	} {
		rows := mixture(7, c.n, c.dims, c.centers)
		want := 0.0
		for seed := range uint64(5) { // whose errors differ by some percent
			plainRows := make([]float64, len(rows))
			for i, v := range rows {
				plainRows[i] = float64(v)
			}
			random := rand.New(rand.NewPCG(seed, 3))
			for _, k := range c.sizes {
				reference(plainRows, c.dims, k, random)
			}
			t.Logf("%s: reference %.1f", c.name, squares(plainRows))
			want += squares(plainRows) / 5
		}
		book, paths, err := Train(&plain{}, rows, c.dims, Options{Sizes: c.sizes, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		got := squares(rows)
		t.Logf("%s: %.5f of the reference's error", c.name, got/want)
		if got > 1.02*want {
			t.Errorf("%s: the error is %.4f of the reference's, want at most 1.02", c.name, got/want)
		}
		spread := Spread(mixture(7, c.n, c.dims, c.centers), c.dims)
		if r := book.Describe(rows, paths, spread); r.Error <= 0 || r.Error >= 1 {
			t.Errorf("%s: a relative error of %v", c.name, r.Error)
		}
	}
}

// What remains, and the centroids of the path, are the row.
func TestRowsAreTheirPathsAndWhatRemains(t *testing.T) {
	rows := mixture(1, 500, 5, 4)
	before := slices.Clone(rows)
	book, paths, err := Train(&plain{}, rows, 5, Options{Sizes: []int{8, 8, 16}, Balance: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := book.Resolve(&plain{}, rows, paths, nil); err != nil {
		t.Fatal(err)
	}
	checkRemains(t, book, before, rows, paths)
}

func checkRemains(t *testing.T, book *Book, before, rows []float32, paths []int32) {
	t.Helper()
	levels := len(book.Levels)
	for r := range len(rows) / book.Dims {
		for i := range book.Dims {
			sum := float64(rows[r*book.Dims+i])
			for l := range levels {
				sum += float64(book.centroid(l, paths[r*levels+l])[i])
			}
			if math.Abs(sum-float64(before[r*book.Dims+i])) > 1e-4 {
				t.Fatalf("row %d, column %d: path and remainder sum up to %v, want %v", r, i, sum, before[r*book.Dims+i])
			}
		}
	}
}

// The order in which a Machine works changes no bit, and a seed gives the same codes each time.
func TestOrderOfWorkChangesNothing(t *testing.T) {
	run := func(m Machine, seed uint64) (*Book, []int32, []float32) {
		rows := mixture(5, 3000, 6, 5)
		book, paths, err := Train(m, rows, 6, Options{Sizes: []int{8, 8, 8}, Seed: seed, Balance: 1.2})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := book.Resolve(m, rows, paths, nil); err == nil {
			t.Fatal("3000 items got different paths of 512")
		}
		return book, paths, rows
	}
	book, paths, rows := run(&plain{}, 4)
	for seed := range uint64(3) {
		b, p, r := run(&plain{order: rand.New(rand.NewPCG(seed, 9))}, 4)
		if !slices.Equal(paths, p) || !slices.Equal(rows, r) || !slices.EqualFunc(book.Levels, b.Levels, slices.Equal) {
			t.Fatal("another order of work gave other codes")
		}
	}
	if _, other, _ := run(&plain{}, 5); slices.Equal(paths, other) {
		t.Error("another seed gave the same codes")
	}
}

// No code has more rows than the bound allows, and no row is nearer to a code that has room or keeps a farther row.
func TestBoundsAreStable(t *testing.T) {
	for _, balance := range []float64{1, 1.1, 2} {
		for seed := range uint64(5) {
			const n, dims, k = 400, 3, 16
			p := &level{pass: newPass(&plain{}, mixture(seed, n, dims, 6), dims), k: k}
			p.centroids = slices.Clone(p.rows[:k*dims])
			if err := p.assign(p.centroids); err != nil {
				t.Fatal(err)
			}
			most := int(math.Ceil(balance * n / k))
			if _, err := p.bound(most); err != nil {
				t.Fatal(err)
			}
			scores := make([]float32, n*k)
			if err := p.m.Scores(scores, p.rows); err != nil {
				t.Fatal(err)
			}
			count, farthest := make([]int, k), make([]float32, k)
			for r, c := range p.nearest {
				count[c]++
				farthest[c] = max(farthest[c], p.distance(r, scores[r*k+int(c)]))
			}
			if worst := slices.Max(count); worst > most {
				t.Fatalf("balance %v: a code has %d rows, at most %d are allowed", balance, worst, most)
			}
			for r, own := range p.nearest {
				for c := range k {
					d := p.distance(r, scores[r*k+c])
					if nearer := scores[r*k+c] > scores[r*k+int(own)]; nearer && (count[c] < most || d < farthest[c]) {
						t.Fatalf("balance %v: row %d is at code %d, code %d is nearer and has room", balance, r, own, c)
					}
				}
			}
		}
	}
}

func TestTrainKeepsTheBound(t *testing.T) {
	const n = 2000
	rows := mixture(2, n, 4, 3)
	book, paths, err := Train(&plain{}, rows, 4, Options{Sizes: []int{16, 16}, Balance: 1.5})
	if err != nil {
		t.Fatal(err)
	}
	for l, u := range book.Describe(rows, paths, 1).Levels {
		if u.Largest > 188 || u.Used != 16 { // 1.5 · 2000 / 16
			t.Errorf("level %d: %d codes are used, the largest has %d items", l+1, u.Used, u.Largest)
		}
	}
}

// Equal rows, fewer different rows than codes and single items give codes too.
func TestDegenerateRows(t *testing.T) {
	for _, c := range []struct {
		rows  []float32
		sizes []int
	}{
		{[]float32{1, 2}, []int{1}},
		{slices.Repeat([]float32{1, 2}, 60), []int{4, 4, 4}},
		{slices.Repeat([]float32{0, 0, 1, 1, 5, 5}, 20), []int{8, 8}},
		{make([]float32, 16), []int{2, 4}},
	} {
		for _, balance := range []float64{0, 1, 3} {
			rows := slices.Clone(c.rows)
			book, paths, err := Train(&plain{}, rows, 2, Options{Sizes: c.sizes, Balance: balance})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := book.Resolve(&plain{}, rows, paths, nil); err != nil {
				t.Fatal(err)
			}
			if r := book.Describe(rows, paths, 1); r.Shared != 0 || r.Paths != len(c.rows)/2 {
				t.Errorf("%v, balance %v: %+v", c.sizes, balance, r)
			}
			checkRemains(t, book, c.rows, rows, paths)
		}
	}
}

// Items get different paths, also when nearly all paths are used, and the first of the old ones stay as they are.
func TestResolveFillsAllPaths(t *testing.T) {
	const n, dims = 64, 3
	rows := mixture(3, n, dims, 2)
	before := slices.Clone(rows)
	book, paths, err := Train(&plain{}, slices.Clone(rows), dims, Options{Sizes: []int{4, 4, 4}})
	if err != nil {
		t.Fatal(err)
	}
	old := paths[:30*3]
	if _, err := book.Resolve(&plain{}, slices.Clone(rows[:30*dims]), old, nil); err != nil {
		t.Fatal(err)
	}
	fresh := rows[30*dims:]
	added, err := book.Encode(&plain{}, fresh, dims)
	if err != nil {
		t.Fatal(err)
	}
	moved, err := book.Resolve(&plain{}, fresh, added, old)
	if err != nil {
		t.Fatal(err)
	}
	if r := book.Describe(fresh, append(slices.Clone(old), added...), 1); r.Paths != n || r.Shared != 0 || moved == 0 {
		t.Errorf("%d moved: %+v, want %d paths", moved, r, n)
	}
	checkRemains(t, book, before[30*dims:], fresh, added)
	_, err = book.Resolve(&plain{}, make([]float32, dims), make([]int32, 3), append(slices.Clone(old), added...))
	if err == nil || !strings.Contains(err.Error(), "0 paths of the levels [4 4 4] are free") {
		t.Errorf("no path is free: %v", err)
	}
}

// With one level, Resolve is what the sentence says: the nearest keeps its code, others take the nearest free one.
func TestResolveAgainstBruteForce(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 2))
		n := 2 + random.IntN(14)
		book := &Book{Dims: 2, Levels: [][]float32{mixture(seed, 16, 2, 4)}}
		rows := mixture(seed+100, n, 2, 2)
		before := slices.Clone(rows)
		got, err := book.Encode(&plain{}, rows, 2)
		if err != nil {
			t.Fatal(err)
		}
		first := slices.Clone(got)
		left := slices.Clone(rows)
		if _, err := book.Resolve(&plain{}, rows, got, nil); err != nil {
			t.Fatal(err)
		}
		want := slices.Repeat([]int32{-1}, n)
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			return int(math.Copysign(1, squares(left[2*a:2*a+2])-squares(left[2*b:2*b+2])))
		})
		for _, r := range order {
			if !slices.Contains(want, first[r]) {
				want[r] = first[r]
			}
		}
		for _, r := range order {
			if want[r] >= 0 {
				continue
			}
			best := int32(-1)
			for c := range int32(16) {
				if !slices.Contains(want, c) && (best < 0 || apart(before[2*r:2*r+2], book.centroid(0, c)) <
					apart(before[2*r:2*r+2], book.centroid(0, best))) {
					best = c
				}
			}
			want[r] = best
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: codes %v, want %v", seed, got, want)
		}
	}
}

func TestBadInput(t *testing.T) {
	nan := float32(math.NaN())
	for want, c := range map[string]struct {
		rows []float32
		dims int
		o    Options
	}{
		"no items":                           {nil, 2, Options{Sizes: []int{2}}},
		"no whole number of rows of 2":       {make([]float32, 3), 2, Options{Sizes: []int{1}}},
		"row 1 has a value that is not fini": {[]float32{1, 2, 3, nan}, 2, Options{Sizes: []int{1}}},
		"0 levels, want 1 to 16":             {make([]float32, 4), 2, Options{}},
		"level 2: 3 codes need at least as ": {make([]float32, 4), 2, Options{Sizes: []int{2, 3}}},
		"level 1: 0 codes, want":             {make([]float32, 4), 2, Options{Sizes: []int{0}}},
		"balance: 0.5":                       {make([]float32, 4), 2, Options{Sizes: []int{2}, Balance: 0.5}},
		"iterations: -1":                     {make([]float32, 4), 2, Options{Sizes: []int{2}, Iterations: -1}},
		"more than 2^62 paths":               {make([]float32, 4), 2, Options{Sizes: []int{65536, 65536, 65536, 65536}}},
	} {
		if _, _, err := Train(&plain{}, c.rows, c.dims, c.o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	book := &Book{Dims: 2, Levels: [][]float32{{1, 2}}}
	_, err := book.Encode(&plain{}, make([]float32, 3), 3)
	if err == nil || !strings.Contains(err.Error(), "the codebook has 2") {
		t.Error(err)
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[int]int{
		1: 1, 2: 2, 3: 2, 20: 16, 100: 16, 12_000: 64, 100_000: 128, 1_000_000: 256, 10_000_000: 1024,
	} {
		got := Sizes(n, 3)
		if !slices.Equal(got, []int{want, want, want}) {
			t.Errorf("%d items: %v, want three levels of %d", n, got, want)
		}
		if err := (&Options{Sizes: got}).Validate(n); err != nil {
			t.Error(err)
		}
	}
}

func saved() *Saved {
	return &Saved{
		Book: Book{Dims: 2, Levels: [][]float32{{1, 2, 3, 4, 5, 6}, {-1, 0.5}}},
		IDs:  []string{"a", "", "ü 3"}, Paths: []int32{2, 0, 0, 0, 1, 0},
	}
}

func TestFileIsReadAsItWasWritten(t *testing.T) {
	var file bytes.Buffer
	want := saved()
	if err := want.Write(&file); err != nil {
		t.Fatal(err)
	}
	got, err := Read(file.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if got.Dims != 2 || !slices.EqualFunc(got.Levels, want.Levels, slices.Equal) || !slices.Equal(got.IDs, want.IDs) ||
		!slices.Equal(got.Paths, want.Paths) {
		t.Errorf("read %+v", got)
	}
	for i := range file.Bytes() {
		bad := bytes.Clone(file.Bytes())
		bad[i] ^= 4
		if _, err := Read(bad); err == nil {
			t.Errorf("byte %d is changed and nobody noticed", i)
		}
		if _, err := Read(file.Bytes()[:i]); err == nil {
			t.Errorf("%d bytes are a codebook", i)
		}
	}
	if err := (&Saved{Book: want.Book, IDs: []string{"a"}}).Write(&file); err == nil {
		t.Error("an item without codes was written")
	}
}
