package proto

import (
	"context"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// Each prototype that can be matched is once in each table of its token's row, where its sketch says, and no other is.
func TestTablesHoldWhatCanBeMatched(t *testing.T) {
	w := newWorld(1, 300, 64)
	x := mustBuild(t, Config{Radius: 0.4, Most: 1 << 14}, w, w.model())
	x.Remove(x.Prototype(200).Source)
	b := &x.buckets
	seen := make([]int, x.Len())
	for r := range int32(len(x.space.rows)) {
		n := 0
		for i := range x.prototypes {
			if x.alive(i) && x.space.row(x.prototypes[i].Token) == r {
				n++
			}
		}
		if want := min(bits.Len(uint(n/8)), 16); int(b.bits[r]) != want {
			t.Fatalf("row %d has %d prototypes and keys of %d bits, want %d", r, n, b.bits[r], want)
		}
		for table := range Tables {
			for k := range uint32(1) << b.bits[r] {
				at := b.first[r] + uint32(table)<<b.bits[r] + k
				for _, e := range b.entries[b.starts[at]:b.starts[at+1]] {
					seen[e.number]++
					if e.sketch != x.sketches[e.number] || uint32(e.sketch>>(16*table))&(1<<b.bits[r]-1) != k {
						t.Fatalf("prototype %d is in bucket %d of table %d, row %d", e.number, k, table, r)
					}
				}
			}
		}
	}
	alive := 0
	for i, n := range seen {
		want := 0
		if x.alive(i) {
			want, alive = Tables, alive+1
		}
		if n != want {
			t.Fatalf("prototype %d is in %d tables, want %d", i, n, want)
		}
	}
	if alive < 500 || alive == x.Len() {
		t.Errorf("%d of %d prototypes can be matched: the test sees too few, or none that was removed", alive, x.Len())
	}
}

// keep holds the nearest eight, in order, each once.
func TestKeepAgainstSorting(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 300 {
		var found [compared]uint32
		var far [compared]uint8
		count := 0
		var all []uint8
		for number := range uint32(r.IntN(40)) {
			d := uint8(r.IntN(12))
			for range 1 + r.IntN(2) { // it may be in several tables
				if count < compared || d < far[compared-1] {
					count = keep(&found, &far, count, number, d)
				}
			}
			all = append(all, d)
		}
		slices.Sort(all)
		if count != min(len(all), compared) || !slices.Equal(far[:count], all[:count]) {
			t.Fatalf("kept distances %v, want %v", far[:count], all[:min(len(all), compared)])
		}
		kept := slices.Clone(found[:count])
		slices.Sort(kept)
		if len(slices.Compact(kept)) != count {
			t.Fatalf("kept %v: one twice", found[:count])
		}
	}
}

// Clusters count histories, not occurrences; the rare ones go first, and the most frequent are chosen.
func TestClusters(t *testing.T) {
	vector := func(v int8) *[Width]int8 {
		var out [Width]int8
		for i := range out {
			out[i] = v
		}
		return &out
	}
	const apart = 10 // a squared distance of 10² · Width between neighbours
	c := newClusters([]uint32{0, 100}, 8, 4*Width)
	for k := range int8(8) {
		for h := range uint32(k) + 1 {
			for range 3 { // thrice in each history
				c.add(1, uint64(k), vector(k*apart), h)
			}
		}
	}
	if want := []uint32{1, 2, 3, 4, 5, 6, 7, 8}; !slices.Equal(c.counts, want) {
		t.Fatalf("counts %v, want %v", c.counts, want)
	}
	if k := c.nearest(1, 3, vector(3*apart+2)); k != 3 {
		t.Errorf("what lies just within the radius is of cluster %d, want 3", k)
	}
	if k := c.nearest(1, 3, vector(3*apart+3)); k != -1 {
		t.Errorf("what lies beyond the radius is of cluster %d", k)
	}
	c.add(1, 100, vector(100), 50) // one more than there may be: a quarter goes, and what occurred as seldom
	if want := []uint32{4, 5, 6, 7, 8, 1}; !slices.Equal(c.counts, want) {
		t.Fatalf("counts %v, want %v", c.counts, want)
	}
	for k := range int8(8) { // those that stay are found again
		if got := c.nearest(1, uint64(k), vector(k*apart)); (got >= 0) != (k >= 3) {
			t.Errorf("cluster %d is found as %d", k, got)
		}
	}
	c.choose(3, 7)
	if want := []uint32{7, 8}; !slices.Equal(c.counts, want) {
		t.Errorf("counts %v, want %v", c.counts, want)
	}
	c.choose(1, 7)
	if want := []uint32{8}; !slices.Equal(c.counts, want) || c.vectors[0] != *vector(7 * apart) || c.sketches[0] != 7 {
		t.Errorf("counts %v, want %v", c.counts, want)
	}
	c.choose(-1, 0)
	if len(c.counts) != 0 {
		t.Errorf("%d clusters of none", len(c.counts))
	}
}

// Folding keeps lengths and angles about as they are; what fits stays as it is.
func TestFold(t *testing.T) {
	s := newSpace(Config{}.withDefaults())
	r := rand.New(rand.NewPCG(5, 5))
	random := func(n int) []float32 {
		e := make([]float32, n)
		for i := range e {
			e[i] = float32(r.NormFloat64())
		}
		return e
	}
	for _, n := range []int{1, Width - 1, Width} {
		e := random(n)
		if f := s.fold(e); !slices.Equal(f[:n], e) || slices.ContainsFunc(f[n:], func(x float32) bool { return x != 0 }) {
			t.Errorf("an embedding of %d values is changed", n)
		}
	}
	dot := func(a, b []float32) (sum float64) {
		for i := range a {
			sum += float64(a[i]) * float64(b[i])
		}
		return sum
	}
	for _, n := range []int{Width + 1, 4 * Width, 4096} {
		a, b := random(n), random(n)
		for i := range b {
			b[i] = (a[i] + b[i]) / 2
		}
		fa, fb := s.fold(a), s.fold(b)
		want := dot(a, b) / math.Sqrt(dot(a, a)*dot(b, b))
		if got := dot(fa[:], fb[:]) / math.Sqrt(dot(fa[:], fa[:])*dot(fb[:], fb[:])); math.Abs(got-want) > 0.2 {
			t.Errorf("%d values: a cosine of %.2f becomes %.2f", n, want, got)
		}
		if ratio := dot(fa[:], fa[:]) / dot(a, a); ratio < 0.6 || ratio > 1.6 {
			t.Errorf("%d values: a squared length becomes %.2f of what it was", n, ratio)
		}
	}
	u := s.feature(random(1000))
	if l := dot(u[:], u[:]); math.Abs(l-1) > 1e-5 {
		t.Errorf("a feature's squared length is %v", l)
	}
	for _, bad := range []float32{0, float32(math.NaN()), float32(math.Inf(1))} {
		if v := []float32{bad, 0, 0}; true {
			if scale(v); v[0] != 0 {
				t.Errorf("a vector of %v is scaled to %v", bad, v)
			}
		}
	}
}

// The direction of places has no step where its table ends.
func TestPlaces(t *testing.T) {
	for _, i := range []int{0, 16, 1000, placesKnown - 1, placesKnown, placesKnown + 1, 1 << 20} {
		if want := float32(math.Log2(1 + float64(i)/16)); place(i) != want {
			t.Errorf("place %d lies at %v, want %v", i, place(i), want)
		}
	}
}

// Tokens that the model has no embedding of never stand for others, and nothing stands for them.
func TestTokensWithoutEmbedding(t *testing.T) {
	w := newWorld(1, 80, 64)
	for i := range w.histories {
		w.histories[i] = slices.Insert(w.histories[i], 5, int32(words+i%3), -1)
	}
	m := w.model()
	m.Natural = func(int32) bool { return true }
	embeddings := m.Embeddings
	m.Embeddings = func(t int32) []float32 {
		if t < 0 {
			return nil
		}
		return embeddings(t)
	}
	x := mustBuild(t, Config{Radius: 0.6}, w, m)
	if x.Len() == 0 {
		t.Fatal("no prototypes")
	}
	for i := range x.Len() {
		if p := x.Prototype(i); p.Token < 0 || p.Token >= words {
			t.Fatalf("prototype %d is of token %d", i, p.Token)
		}
	}
	out := make([]Match, len(w.histories[0]))
	x.Match(new(Scratch), w.histories[0], 0, 1, out)
	if out[5].Prototype != -1 || out[6].Prototype != -1 {
		t.Errorf("tokens without an embedding match %d and %d", out[5].Prototype, out[6].Prototype)
	}
}

// Extended indexes can be kept and read: no token has two rows, and pages are as many as there are.
func TestExtendedIndexIsReadBack(t *testing.T) {
	w := newWorld(1, 60, 64)
	x := mustBuild(t, Config{Radius: 0.6, Most: 1024}, w, w.model())
	for seed := range uint64(3) {
		y, err := Extend(context.Background(), x, 4096, w.model(), newWorld(seed, 40, 64), nil)
		if err != nil {
			t.Fatal(err)
		}
		back, err := decode(encoded(t, y))
		if err != nil {
			t.Fatalf("after %d: %v", seed, err)
		}
		if back.Len() != y.Len() || !slices.Equal(back.dead, y.dead) || len(y.dead) != (y.Len()+Page-1)/Page {
			t.Errorf("%d prototypes in %d pages, read back as %d in %d", y.Len(), len(y.dead), back.Len(), len(back.dead))
		}
		x = y
	}
	same, err := Extend(context.Background(), x, 4096, w.model(), w, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(same.space.tokens) != len(x.space.tokens) {
		t.Errorf("known tokens make %d rows of %d", len(same.space.tokens), len(x.space.tokens))
	}
}
