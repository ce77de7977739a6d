package evict

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

// Next returns the slot that Place takes for a row that is worth one.
func TestNextIsWhatPlaceTakes(t *testing.T) {
	c, r := NewSlab(64), rand.New(rand.NewPCG(7, 7))
	var stamps tinyStamps
	now := uint64(1 << 20)
	for i := range stamps {
		stamps[i] = c.First(now)
	}
	var q Queue
	named := 0
	for range 5000 {
		now += 1 + r.Uint64N(3)
		if r.IntN(2) == 0 {
			i := r.IntN(SlabSlots)
			stamps[i] = c.Use(stamps[i], now)
			continue
		}
		m := c.Use(c.Use(c.First(now), now), now)
		if r.IntN(8) == 0 {
			m = c.First(now - 1<<12) // worth little
		}
		want, ok := c.Next(&q, &stamps)
		declined := q.declined
		slot, placed := c.Place(&q, m, now, 2, &stamps)
		if ok && placed && slot != want {
			t.Fatalf("Next named slot %d, Place took %d", want, slot)
		}
		if !placed && q.declined != declined+1 && q.declined != 1 { // 1: after another scan
			t.Fatalf("%d declined after %d and one more", q.declined, declined)
		}
		if ok {
			named++
		}
		if placed {
			stamps[slot] = m
		}
	}
	if named < 500 {
		t.Errorf("%d were named: the draw tests too little", named)
	}
	q = Queue{n: 3, declined: patience}
	if w := q.Waiting(); w != nil {
		t.Errorf("a queue that was declined too often has %v", w)
	}
	if _, ok := c.Next(&q, &stamps); ok {
		t.Error("Next named a slot of a queue that is looked at again first")
	}
}

// Use can be computed from Parts.
func TestPartsMakeUse(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for _, rows := range []int{1, 100, 5000, 1 << 20} {
		c := NewSlab(rows)
		last, short, long, more := c.Parts()
		plus := func(f, t uint64) uint64 { // t + log2(2^d + 1), where d is the field's difference from t
			d := int64(int32(uint32(f-t)<<12) >> 12)
			return t + uint64(max(d, 0)) + more[min(uint64(max(d, -d)), 255)]
		}
		for range 2000 {
			now := r.Uint64N(1 << 40)
			m := c.First(now)
			for range r.IntN(5) {
				now += r.Uint64N(1 << 12)
				s, l := plus(uint64(m)>>20&0xfffff, now>>short), plus(uint64(m)&0xfffff, now>>long)
				want := Stamp(now>>last<<40 | s&0xfffff<<20 | l&0xfffff)
				if m = c.Use(m, now); m != want {
					t.Fatalf("%d rows: %x, want %x", rows, m, want)
				}
			}
		}
	}
}

// A ghost remembers a row's stamp until it is taken. If more rows come than fit, it keeps those of highest value.
func TestGhostRemembers(t *testing.T) {
	c := NewSlab(1000)
	var g Ghost
	const h, now = 0x123456789abcdef0, 1 << 30
	m := c.Use(c.First(now-100), now-50)
	g.Put(c, h, m, now, 2)
	first, _ := ghostAt(h)
	if g.Ask(h) != &g[first] || uintptr(unsafe.Pointer(g.Ask(h)))%8 != 0 || *g.Ask(h) == 0 {
		t.Error("Ask does not name the row's place")
	}
	if got, want := g.Take(c, h, now), c.Use(m&(1<<40-1), now); got != want {
		t.Errorf("took %x, want %x", got, want)
	}
	if got, want := g.Take(c, h, now), c.First(now); got != want {
		t.Errorf("a row that is not remembered has stamp %x, want %x", got, want)
	}
	// Five rows share one group of places: the one of least value is dropped.
	uses := []int{3, 1, 4, 2, 5}
	for i, n := range uses {
		m := c.First(now)
		for range n {
			m = c.Use(m, now)
		}
		g.Put(c, uint64(i+1)<<16|h&0xffff, m, now, 0)
	}
	for i, n := range uses {
		got := g.Take(c, uint64(i+1)<<16|h&0xffff, now)
		if known := got != c.First(now); known != (n != 1) {
			t.Errorf("the row of %d uses is remembered: %v", n, known)
		}
	}
}

// Validate checks the limits of TrainParams.
func TestTrainParamsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		change func(p *TrainParams)
		ok     bool
	}{
		"defaults": {func(*TrainParams) {}, true}, "trees": {func(p *TrainParams) { p.Trees = -1 }, false},
		"one tree": {func(p *TrainParams) { p.Trees = 1 }, true}, "depth": {func(p *TrainParams) { p.Depth = -1 }, false},
		"deepest": {func(p *TrainParams) { p.Depth = 8 }, true}, "deeper": {func(p *TrainParams) { p.Depth = 9 }, false},
		"flat": {func(p *TrainParams) { p.Depth = 1 }, true}, "rate": {func(p *TrainParams) { p.Rate = -0.1 }, false},
		"leaf": {func(p *TrainParams) { p.MinLeaf = -1 }, false}, "a leaf": {func(p *TrainParams) { p.MinLeaf = 1 }, true},
		"lambda": {func(p *TrainParams) { p.Lambda = -1 }, false}, "share": {func(p *TrainParams) { p.Share = -0.1 }, false},
		"all": {func(p *TrainParams) { p.Share = 1 }, true}, "more": {func(p *TrainParams) { p.Share = 1.01 }, false},
	} {
		var p TrainParams
		c.change(&p)
		if err := p.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	want := TrainParams{Trees: 20, Depth: 5, Rate: 0.2, MinLeaf: 20, Lambda: 1, Share: 0.5}
	if got := (TrainParams{}).orDefaults(); got != want {
		t.Errorf("defaults %+v, want %+v", got, want)
	}
}

// Validate checks the limits of Config.
func TestConfigBorders(t *testing.T) {
	for _, c := range []struct {
		Config
		ok bool
	}{
		{Config{Slots: 1, Bytes: 1}, true}, {Config{Slots: math.MaxInt32 / 4, Bytes: 1}, true},
		{Config{Slots: math.MaxInt32/4 + 1, Bytes: 1}, false}, {Config{Slots: 1, Bytes: -1}, false},
	} {
		if err := c.Validate(); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.Config, err)
		}
	}
	for _, name := range Names() {
		if want := name != "lru" && name != "sieve"; Predicts(name) != want {
			t.Errorf("%s predicts: %v", name, !want)
		}
	}
}

// Return converts predictions to times: now for 0 and below, Never if the time is too large.
func TestReturnOfAPrediction(t *testing.T) {
	for _, c := range []struct {
		y    float32
		want int64
	}{{-3, 100}, {0, 100}, {1, 101}, {2, 103}, {10, 1123}, {61, Never}, {100, Never}} {
		if got := Return(100, c.y); got != c.want {
			t.Errorf("%v: %d, want %d", c.y, got, c.want)
		}
	}
	if got := Return(0, 60.9); got == Never || got < 1<<60 {
		t.Errorf("60.9: %d", got)
	}
}

// Error covers about the last thousand guesses whose key returned.
func TestErrorOfGuesses(t *testing.T) {
	var e errorMean
	for range 10 {
		e.add(2)
	}
	e.add(1)
	e.add(-1)
	e.add(-1.5)
	if want := (10*4 + 1 + 1 + 2.25) / 13; e.n != 13 || e.wrong != 11 || math.Abs(e.mean-want) > 1e-9 {
		t.Errorf("%+v, want a mean of %v of 13, 11 of them wrong", e, want)
	}
	for range 20_000 {
		e.add(0)
	}
	if e.mean > 1e-6 {
		t.Errorf("what is long past counts: %v", e.mean)
	}
	tr := NewTracker(TrackerConfig{Keys: 10})
	var x Sample
	tr.Access(1, 10, Context{}, &x)
	tr.Guess(1, 3)   // log2(1+7)
	tr.Guess(2, 100) // unknown key
	tr.Access(1, 17, Context{}, &x)
	if rms, n := tr.Error(); n != 1 || rms > 1e-3 || tr.Wrong() != 0 {
		t.Errorf("an error of %v of %d, %d wrong, want none of 1", rms, n, tr.Wrong())
	}
	tr.Guess(1, 1) // log2(1+1)
	tr.Access(1, 24, Context{}, &x)
	if rms, n := tr.Error(); n != 2 || math.Abs(rms-math.Sqrt(2)) > 1e-3 || tr.Wrong() != 1 {
		t.Errorf("an error of %v of %d, %d wrong, want √2 of 2 and one", rms, n, tr.Wrong())
	}
}

// Once there is a model, noted requests wait for predictions, up to a bound, and are returned once.
func TestNotedRequestsWait(t *testing.T) {
	f := NewForecaster(100)
	f.Note(1, 1, Context{})
	if q := f.Queries(nil); len(q) != 0 || f.Model() != nil {
		t.Errorf("%d wait without a model", len(q))
	}
	m := Train([]Sample{{}, {1}}, []float32{1, 2}, TrainParams{Trees: 1})
	f.Use(m)
	if f.Model() == nil {
		t.Fatal("no model")
	}
	for i := range uint64(maxQueries + 10) {
		f.Note(i, int64(10+i), Context{Turn: float32(i)})
	}
	q := f.Queries([]Query{{Key: 77}})
	if len(q) != maxQueries+1 || q[0].Key != 77 || q[1].Key != 0 || q[1].At != 10 || q[5].Key != 4 || q[5].At != 14 {
		t.Errorf("%d wait", len(q))
	}
	if again := f.Queries(nil); len(again) != 0 {
		t.Errorf("%d wait after they were taken", len(again))
	}
}

// Training is due after as many requests as the cache has entries, between 5,000 and 20,000, and earlier soon after the
// start.
func TestDue(t *testing.T) {
	for _, c := range []struct {
		entries int
		want    []int
	}{
		{100, []int{1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9142}},
		{1 << 20, []int{1000, 2000}},
	} {
		f := NewForecaster(c.entries)
		var got []int
		for i := range c.want[len(c.want)-1] {
			f.Access(uint64(i), int64(i), Context{})
			if f.Due() {
				got = append(got, i+1)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d entries: due after %v, want %v", c.entries, got, c.want)
		}
	}
}

// A table agrees with a map. Removing a key that it does not have changes nothing.
func TestTableAgainstMap(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	tb, want := newTable(4), map[uint64]int32{}
	for range 20_000 {
		k := r.Uint64N(300)
		switch r.IntN(3) {
		case 0:
			tb.remove(k)
			delete(want, k)
		default:
			v := int32(r.IntN(1000))
			tb.put(k, v)
			want[k] = v
		}
		k = r.Uint64N(300)
		v, ok := tb.get(k)
		if w, there := want[k]; ok != there || ok && v != w {
			t.Fatalf("key %d: %d, %v, want %d, %v", k, v, ok, w, there)
		}
	}
	if int(tb.used) != len(want) {
		t.Errorf("%d are counted, want %d", tb.used, len(want))
	}
	tb.clear()
	for k := range want {
		if _, ok := tb.get(k); ok {
			t.Errorf("key %d is there after all were cleared", k)
		}
	}
}

// Models of every depth predict the same after they are written and read back. Incomplete models are refused.
func TestModelsOfAllDepths(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	xs, ys := make([]Sample, 600), make([]float32, 600)
	for i := range xs {
		for f := range xs[i] {
			xs[i][f] = float32(r.IntN(50))
		}
		ys[i] = xs[i][3] + xs[i][7]
	}
	for depth := 1; depth <= maxDepth; depth++ {
		m := Train(xs, ys, TrainParams{Trees: 3, Depth: depth, MinLeaf: 1})
		data, err := m.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var back Model
		if err := back.UnmarshalJSON(data); err != nil {
			t.Fatalf("depth %d: %v", depth, err)
		}
		want, got := make([]float32, len(xs)), make([]float32, len(xs))
		m.Predict(xs, want)
		back.Predict(xs, got)
		if !slices.Equal(got, want) {
			t.Errorf("depth %d: a model that was read predicts otherwise", depth)
		}
		for i := range xs {
			if one := m.one(&xs[i]); one != want[i] {
				t.Fatalf("depth %d: sample %d alone is %v, among others %v", depth, i, one, want[i])
			}
		}
	}
	for _, text := range []string{
		`{"depth":0,"leaf":[]}`, `{"depth":9,"leaf":[]}`, `{"depth":1,"leaf":[1,2],"feature":[0]}`,
		`{"depth":1,"leaf":[1,2],"threshold":[0]}`, `{"depth":1,"leaf":[1,2,3],"feature":[0],"threshold":[0]}`,
		`{"depth":1,"leaf":[1,2],"feature":[255],"threshold":[0]}`, `{`,
	} {
		if err := new(Model).UnmarshalJSON([]byte(text)); err == nil {
			t.Errorf("%s was read", text)
		}
	}
}
