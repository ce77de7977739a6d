package alloc

import (
	"math/rand/v2"
	"testing"
)

func none(uint64) bool { return false }

// all takes rows until there are no more.
func all(r *Refill, n int) (rows []Wanted) {
	for range 1000 {
		if !r.Wants(r.now) {
			break
		}
		rows = r.Next(rows, n, none)
		if len(rows) == n {
			break
		}
	}
	return rows
}

// keyOf is a hash.
func keyOf(i int) uint64 { return (uint64(i) + 1) * 0x9E3779B97F4A7C15 }

// Room is filled with the rows of most uses, by halvings, and not with those that were missed once.
func TestRefillOrdersByUses(t *testing.T) {
	r := NewRefill(4096)
	for i := range 1000 {
		for range 1 << (i % 4) { // 1, 2, 4 or 8
			r.Gathered(1, nil, []uint64{keyOf(i)})
		}
	}
	r.Grown(600)
	rows := all(r, 600)
	if len(rows) != 600 {
		t.Fatalf("%d rows, want 600", len(rows))
	}
	for i, w := range rows {
		want := uint32(8)
		if i >= 500 {
			want = 2
		} else if i >= 250 {
			want = 4
		}
		if w.Uses != want {
			t.Fatalf("row %d has %d uses, want %d", i, w.Uses, want)
		}
	}
	if r.Wants(2) {
		t.Error("more is wanted than there is room for")
	}
	r.Grown(1000)
	if rows := all(r, 1000); len(rows) < 740 || len(rows) > 750 || r.Wants(2) {
		t.Errorf("%d rows of 750 that were used twice, more wanted: %v", len(rows), r.Wants(2))
	}
}

// Rows that return are fetched while hits are low; then they are not.
func TestRefillOfRowsThatReturn(t *testing.T) {
	r := NewRefill(1 << 14)
	r.Cached(1000)
	day, night := make([]uint64, 1000), make([]uint64, 1000)
	for i := range day {
		day[i], night[i] = keyOf(i), keyOf(i+5000)
	}
	now := 0.0
	phase := func(keys []uint64, seconds int, missed int) {
		for range seconds * 10 {
			now += 0.1
			r.Gathered(now, keys, keys[:missed])
		}
	}
	phase(day, 60, 0)
	if r.Wants(now) {
		t.Error("hits are as usual, and rows are wanted")
	}
	phase(night, 180, 0)
	for i := range 30 { // thirty of them each tenth of a second, and what is cached is used too
		now += 0.1
		r.Gathered(now, day[30*i:][:60], day[30*i:][:30])
	}
	if !r.Wants(now) {
		t.Fatal("rows of the day come back, and none are wanted")
	}
	rows := all(r, 2000)
	if len(rows) < 50 || len(rows) > 100 {
		t.Errorf("%d rows are fetched of those of the day that have not come, want most of 100", len(rows))
	}
	for _, w := range rows {
		if w.Share <= 0 || w.Share > 0.1 {
			t.Fatalf("%+v: want a share", w)
		}
	}
	phase(day, 10, 0)
	if r.Wants(now) {
		t.Error("hits are as usual again, and rows are wanted")
	}
}

// A cache may have kept the hottest of the rows that return. Their hits say as much of the others as misses do.
func TestRefillOfRowsWhoseHottestStayed(t *testing.T) {
	r, now := NewRefill(1<<16), 0.0
	r.Cached(50_000)
	tick := func(first, hot int, missed ...uint64) { // all hot rows and some others
		now += 0.1
		var keys []uint64
		for range 10 {
			for i := range hot {
				keys = append(keys, keyOf(first+i))
			}
		}
		r.Gathered(now, append(keys, missed...), missed)
	}
	others := func(n int) (out []uint64) {
		for i := range 10 {
			out = append(out, keyOf(100+(10*n+i)%100))
		}
		return out
	}
	for n := range 500 {
		tick(0, 100, others(n)...)
	}
	for range 1700 {
		tick(5000, 100)
	}
	for n := range 5 { // fifty of the others, and hits fall because of rows that nobody knows
		missed := others(n)
		for i := range 1000 {
			missed = append(missed, keyOf(10_000+1000*n+i))
		}
		tick(0, 100, missed...)
	}
	if !r.Wants(now) {
		t.Fatal("rows come back, and none are wanted")
	}
	kept := map[uint64]bool{}
	for i := range 100 {
		kept[keyOf(i)] = true
	}
	rows, found := []Wanted(nil), 0
	for len(rows) < 100 && r.Wants(now) {
		rows = r.Next(rows, 100, func(key uint64) bool { return kept[key] })
	}
	for _, w := range rows {
		for i := 150; i < 200; i++ {
			if w.Key == keyOf(i) {
				found++
			}
		}
	}
	if found < 40 {
		t.Errorf("%d of %d rows are some that have not come yet, want most of 50", found, len(rows))
	}
}

// Traffic that does not change wants nothing, whatever is missed.
func TestRefillRests(t *testing.T) {
	for seed := range uint64(20) {
		r, draw := NewRefill(1<<12), rand.New(rand.NewPCG(seed, 77))
		r.Cached(500)
		share := draw.Float64()
		keys := make([]uint64, 200)
		for now := 0.0; now < 600; now += 0.1 {
			for i := range keys {
				keys[i] = keyOf(int(draw.ExpFloat64() * 1000))
			}
			missed := 0
			for range keys {
				if draw.Float64() < share {
					missed++
				}
			}
			r.Gathered(now, keys, keys[:missed])
			if r.Wants(now) {
				t.Fatalf("seed %d: rows are wanted after %.1f s of %.0f %% misses", seed, now, 100*share)
			}
		}
	}
}

// What is remembered is bounded, exact in its sums, and forgotten on demand; rows of most uses stay.
func TestRefillIsBounded(t *testing.T) {
	r, draw := NewRefill(1000), rand.New(rand.NewPCG(1, 2))
	for i := range 100 {
		for range 50 {
			r.Gathered(1, nil, []uint64{keyOf(i)})
		}
	}
	for i := range 100_000 {
		r.Gathered(1+float64(i)/100, []uint64{draw.Uint64()}, []uint64{draw.Uint64()})
	}
	known, uses := 0, 0.0
	for _, b := range r.known {
		for _, k := range b {
			if k.key != 0 {
				known++
				uses += float64(k.uses)
			}
		}
	}
	if known > r.Len() || r.Len() != 1024 || uses != r.uses {
		t.Errorf("%d rows of %d, %v uses and a sum of %v", known, r.Len(), uses, r.uses)
	}
	stay := 0
	for i := range 100 {
		if r.Known(keyOf(i)) {
			stay++
		}
	}
	if stay < 90 {
		t.Errorf("%d of 100 rows with 50 uses stayed", stay)
	}
	hot := r.Hottest(nil, 64, func() {})
	if len(hot) != 64 {
		t.Fatalf("%d hottest rows, want 64", len(hot))
	}
	r.Forget(hot[0].Key)
	if r.Known(hot[0].Key) {
		t.Error("a forgotten row is known")
	}
	s := NewRefill(1000)
	s.Load(5, hot)
	for _, w := range all(s, 64) {
		if w.Uses < 2 || !r.Known(w.Key) && w.Key != hot[0].Key {
			t.Fatalf("loaded %+v", w)
		}
	}
}

// The hottest rows are listed in parts, between which uses are noted: none is listed twice, and no more than were asked
// for.
func TestHottestRowsInParts(t *testing.T) {
	r := NewRefill(1 << 15)
	for i := range 20_000 {
		r.Gathered(1, nil, []uint64{keyOf(i), keyOf(i)})
	}
	rests, next := 0, 0
	hot := r.Hottest([]Wanted{{}}, 500, func() {
		rests++
		for range 1000 { // other rows become the hottest
			next++
			r.Gathered(2, nil, []uint64{keyOf(next), keyOf(next), keyOf(next), keyOf(next)})
		}
	})[1:]
	seen := map[uint64]bool{}
	for _, w := range hot {
		if seen[w.Key] = true; w.Uses < 2 || !r.Known(w.Key) {
			t.Fatalf("%+v", w)
		}
	}
	if len(hot) != 500 || len(seen) != 500 || rests < 8 {
		t.Errorf("%d rows, %d of them distinct, in %d parts; want 500 in 8 or more", len(hot), len(seen), rests)
	}
}

// Rows that could not be fetched are looked for again.
func TestRefillTriesAgain(t *testing.T) {
	r := NewRefill(64)
	r.Load(0, []Wanted{{Key: 7, Uses: 9}})
	if rows := all(r, 5); len(rows) != 1 {
		t.Fatalf("%d rows", len(rows))
	}
	r.Failed(1)
	if rows := all(r, 5); len(rows) != 1 || rows[0].Key != 7 {
		t.Errorf("rows %v after one failed", rows)
	}
}

func TestRefillAllocatesNothing(t *testing.T) {
	r, dst := NewRefill(1<<12), make([]Wanted, 0, 64)
	keys := []uint64{keyOf(1), keyOf(2), keyOf(3)}
	now := 0.0
	if n := testing.AllocsPerRun(200, func() {
		now++
		r.Gathered(now, keys, keys[:2])
		r.Grown(8)
		r.Wants(now)
		dst = r.Next(dst[:0], 8, none)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestPace(t *testing.T) {
	var p Pace
	if p.Rate() != 0 {
		t.Error("a rate of nothing")
	}
	p.Note(1, 1000, 0.001)
	p.Note(2, 500, 0.001) // it waited for others
	if r := p.Rate(); r < 0.99e6 || r > 1e6 {
		t.Errorf("a rate of %v, want almost a million", r)
	}
	for now := 3.0; now < 600; now++ {
		p.Note(now, 200, 0.001)
	}
	if r := p.Rate(); r != 0.2e6 {
		t.Errorf("a rate of %v after ten minutes at 200,000", r)
	}
	p.Note(700, 0, 1)
	p.Note(700, 1, 0)
}
