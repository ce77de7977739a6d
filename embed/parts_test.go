package embed

import (
	"context"
	"errors"
	"math"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"grebe/pool"
)

// Counts halve once per half-life, in steps of a sixteenth of it.
func TestDecay(t *testing.T) {
	for _, n := range []uint16{0, 1, 64, 1000, math.MaxUint16} {
		for _, half := range []int{8, 12} {
			for age := uint32(0); age < 20<<half; age += 1 << (half - 4) {
				want := float64(n) * math.Exp2(-float64(age)/float64(uint32(1)<<half))
				if got := decay(n, age, half); math.Abs(float64(got)-want) > 1+want/1000 || age>>half >= 16 && got != 0 {
					t.Fatalf("%d after %d of a half-life of %d is %d, want %.1f", n, age, 1<<half, got, want)
				}
			}
		}
	}
}

// A use adds one to what is left of the counts, and remembers when it was. One that was overtaken by a later use ages
// nothing.
func TestUse(t *testing.T) {
	s := scale{short: 8, long: 12}
	m := s.use(newStamp(100, 640, 1280), 100+256)
	if m.last() != 356 || m.short() != 320+oneUse || math.Abs(float64(m.long())-1280*math.Exp2(-1./16)-oneUse) > 2 {
		t.Errorf("used at %d, counts %d and %d", m.last(), m.short(), m.long())
	}
	if m := s.use(newStamp(100, 640, 1280), 90); m.short() != 704 || m.long() != 1344 || m.last() != 90 {
		t.Errorf("overtaken: %d, counts %d and %d", m.last(), m.short(), m.long())
	}
	if m := s.use(newStamp(100, math.MaxUint16, math.MaxUint16-3), 100); m.short() != math.MaxUint16 ||
		m.long() != math.MaxUint16 {
		t.Errorf("counts %d and %d, want the most that there is", m.short(), m.long())
	}
	for rows, want := range map[int]scale{1: {8, 11}, 31: {8, 11}, 1 << 10: {13, 16}, 1 << 40: {26, 30}} {
		if got := scaleFor(rows); got != want {
			t.Errorf("%d rows: half-lives %+v, want %+v", rows, got, want)
		}
	}
}

// Bins are half an octave wide, the first has all that is smaller, the last all that is larger; a bin's middle lies in
// it.
func TestBins(t *testing.T) {
	for _, b := range []struct{ base, bins int }{{ageBase, ageBins}, {6, countBins}} {
		last := 0
		for v := uint32(1); v != 0 && v < 1<<30; v += 1 + v/7 {
			got := bin(v, b.base, b.bins)
			want := 0
			if v >= 1<<b.base {
				n := bits.Len32(v) - 1
				want = min(1+2*(n-b.base)+int(v>>(n-1)&1), b.bins-1)
			}
			if got != want || got < last {
				t.Fatalf("%d is in bin %d of base %d, want %d", v, got, b.base, want)
			}
			last = got
		}
		for i := range b.bins - 1 {
			if m := middle(i, b.base); bin(uint32(m), b.base, b.bins) != i {
				t.Errorf("the middle %v of bin %d is in bin %d", m, i, bin(uint32(m), b.base, b.bins))
			}
		}
	}
	for n := range 1 << 16 {
		if got, want := countBin(uint16(n)), bin(uint32(n)&^31, 6, countBins); got != want {
			t.Fatalf("count %d is in bin %d, want %d", n, got, want)
		}
	}
	seen := map[int]bool{}
	for a := range ageBins {
		for s := range countBins {
			for l := range countBins {
				seen[cell(a, s, l)] = true
			}
		}
	}
	if len(seen) != cells || seen[-1] || seen[cells] {
		t.Errorf("%d cells, want %d", len(seen), cells)
	}
}

// What is remembered of a row that left is its last use and the bins of its counts, and of no other row.
func TestHistoryOfRows(t *testing.T) {
	y := newHistory(3)
	h := mix(7)
	m := newStamp(1000, 300, 5000)
	if got := y.get(1, h, 55); got != newStamp(55, 0, 0) {
		t.Errorf("nothing is remembered: %x", got)
	}
	y.put(1, h, m)
	got := y.get(1, h, 55)
	if got.last() != 1000 || countBin(got.short()) != countBin(300) || countBin(got.long()) != countBin(5000) {
		t.Errorf("remembered as %d, %d, %d", got.last(), got.short(), got.long())
	}
	if got := y.get(2, h, 55); got != newStamp(55, 0, 0) {
		t.Errorf("another set remembers %x", got)
	}
	other := h ^ 1<<20 // of the same place
	if y.at(1, other) != y.at(1, h) {
		t.Fatal("the test's rows do not meet")
	}
	if got := y.get(1, other, 55); got != newStamp(55, 0, 0) {
		t.Errorf("another row is remembered as %x", got)
	}
	if len(y) != 3*remembered || y.at(2, 0) == y.at(1, 0) || y.at(1, 255<<8) == y.at(1, 254<<8) {
		t.Error("places of sets meet")
	}
}

// Tags of 64 slots are compared at once, with and without wide instructions, and a slot is found by its tag and key.
func TestSets(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	var s set
	var want [setSlots]uint64
	if s.empty() != 0 || s.find(5) != -1 {
		t.Errorf("an empty set: slot %d is free, row 5 is in %d", s.empty(), s.find(5))
	}
	for range 2000 {
		slot := r.IntN(setSlots)
		if want[slot] = 0; r.IntN(3) > 0 {
			want[slot] = 1 + r.Uint64N(1<<12)
			s.set(slot, want[slot])
		} else {
			s.clear(slot)
		}
		for tag := range uint64(256) {
			mask := uint64(0)
			for i, h := range want {
				if h == 0 && tag == 0 || h != 0 && tagOf(h) == tag {
					mask |= 1 << i
				}
			}
			if got := s.matchWords(tag); got != mask {
				t.Fatalf("tag %d is in slots %b, want %b", tag, got, mask)
			}
			if got := s.match(tag); got != mask {
				t.Fatalf("tag %d is in slots %b by wide instructions, want %b", tag, got, mask)
			}
		}
		h := 1 + r.Uint64N(1<<12)
		if got := s.find(h); got >= 0 && want[got] != h || got < 0 && slices.Contains(want[:], h) {
			t.Fatalf("row %d is found in slot %d", h, got)
		}
		if got := s.empty(); got != slices.Index(want[:], 0) {
			t.Fatalf("slot %d is free, want %d", got, slices.Index(want[:], 0))
		}
	}
	version := s.version.Load()
	s.clearAll()
	if s.version.Load() != version+2 || s.match(0) != math.MaxUint64 {
		t.Errorf("after all is cleared: version %d, free %b", s.version.Load(), s.match(0))
	}
	if tagOf(0) != 1 || tagOf(256) != 1 || tagOf(0x1FF) != 255 {
		t.Error("a tag is 0, or not the lowest byte")
	}
	if unsafe.Offsetof(s.version) != 64 || setHead != 128 || setBytes != 128+16*setSlots {
		t.Errorf("the head of a set is at %d, its slots are at %d of %d bytes", unsafe.Offsetof(s.version), setHead, setBytes)
	}
}

// Every counter of a cache says what happened.
func TestCacheCounts(t *testing.T) {
	c := cacheOf(t, setSlots, "lru")
	var row [testRow]byte
	check := func(what string, hits, misses, evictions int64) {
		t.Helper()
		if s := c.Stats(); s.Hits != hits || s.Misses != misses || s.Evictions != evictions || s.Declined != 0 ||
			s.Rows != setSlots {
			t.Errorf("%s: counted %+v, want %d hits, %d misses, %d evictions", what, s, hits, misses, evictions)
		}
	}
	for k := range uint64(setSlots) {
		c.Get(k, row[:])
		c.Put(k, row[:], c.Epoch(k))
	}
	check("as many as fit", 0, setSlots, 0)
	for k := range uint64(setSlots) {
		c.Get(k, row[:])
	}
	check("all again", setSlots, setSlots, 0)
	c.Get(1000, row[:])
	c.Put(1000, row[:], c.Epoch(1000))
	check("one more", setSlots, setSlots+1, 1)
	c.Put(1000, row[:], c.Epoch(1000)) // it is there
	check("once more", setSlots, setSlots+1, 1)
	c.Remove(1000)
	c.Put(1001, row[:], c.Epoch(1001))
	check("in the place of one that was removed", setSlots, setSlots+1, 1)
	c.changed(nil)
	if c.Get(5, row[:]) {
		t.Error("a row is there after all may have changed")
	}
	c.Put(5, row[:], c.Epoch(5))
	c.changed([]uint64{4, 5})
	if c.Get(5, row[:]) {
		t.Error("a row is there after it changed")
	}
	if c.RowBytes() != testRow || c.Overhead() != float64(setBytes)/setSlots {
		t.Errorf("rows of %d bytes, %v bytes beside each", c.RowBytes(), c.Overhead())
	}
	for policy, least := range map[string]float64{"default": 20, "laru": 140} {
		if got := cacheOf(t, setSlots, policy).Overhead(); got < least || got > least+60 {
			t.Errorf("%s takes %v bytes beside each row", policy, got)
		}
	}
}

// A table counts where each row of a batch came from, through a cache and without one; keys that repeat count each
// time.
func TestGatheredIsCounted(t *testing.T) {
	for _, cached := range []bool{false, true} {
		s := &troubled{}
		var c *Cache
		if cached {
			c = cacheOf(t, 4*setSlots, "lru")
		}
		def := make([]byte, testRow)
		fill(def, 77, 7)
		table, err := NewTable(s, c, TableConfig{Default: def})
		if err != nil {
			t.Fatal(err)
		}
		if table.RowBytes() != testRow || table.Dim() != testRow/4 || table.Cache() != c {
			t.Errorf("rows of %d bytes, %d numbers", table.RowBytes(), table.Dim())
		}
		// Rows below 100 are there; 200 are broken, 300 out of reach, and others missing.
		keys := []uint64{1, 2, 1, 150, 200, 201, 200, 300, 3, 150}
		out := make([]byte, len(keys)*testRow)
		g := table.Gather(t.Context(), keys, out)
		if g.Hits != 0 || g.Fetched != 4 || g.Asked != 7 || g.Default != 6 || g.Broken != 3 || g.Outage != 1 || g.Err == nil {
			t.Errorf("gathered %+v", g)
		}
		for i, k := range keys {
			w, whole := words64(out[i*testRow:][:testRow])
			want := uint64(77<<32 | 7)
			if k < 100 {
				want = k<<32 | 1
			}
			if !whole || w != want {
				t.Errorf("row %d is %x, want %x", k, w, want)
			}
		}
		if st := table.Stats(); st.Lookups != 10 || st.Missing != 2 || st.Broken != 3 || st.Outage != 1 || st.Failures != 1 {
			t.Errorf("counted %+v", st)
		}
		g = table.Gather(t.Context(), keys[:3], out)
		if cached && (g.Hits != 3 || g.Asked != 0) || !cached && (g.Fetched != 3 || g.Asked != 2) || g.Default != 0 ||
			g.Err != nil {
			t.Errorf("again, cached %v: %+v", cached, g)
		}
		s.fail = errors.New("gone")
		g = table.Gather(t.Context(), []uint64{50, 51, 150}, out)
		if g.Default != 3 || g.Outage != 3 || !errors.Is(g.Err, s.fail) {
			t.Errorf("in an outage: %+v", g)
		}
		if st := table.Stats(); st.Outage != 4 || st.Failures != 2 || st.Missing != 2 {
			t.Errorf("counted %+v", st)
		}
		s.fail = nil
		if g = table.Gather(t.Context(), []uint64{200, 4}, out); g.Err != nil || g.Broken != 1 || g.Fetched != 1 ||
			table.Stats().Failures != 2 {
			t.Errorf("broken rows alone are no failure: %+v", g)
		}
		if s.deadline <= 0 || s.deadline > 100*time.Millisecond {
			t.Errorf("a trip may take %v", s.deadline)
		}
		if g := table.Gather(t.Context(), nil, nil); g != (Gathered{}) {
			t.Errorf("no keys: %+v", g)
		}
		if err := table.Delete(t.Context(), []uint64{1}); err != nil {
			t.Error(err)
		}
		if g = table.Gather(t.Context(), keys[:2], out); g.Default != 1 || cached && g.Hits != 1 {
			t.Errorf("after a row was deleted: %+v", g)
		}
		failed := errors.New("full")
		s.change = failed
		if err := table.Put(t.Context(), []uint64{2}, def); !errors.Is(err, failed) {
			t.Errorf("a put that fails: %v", err)
		}
		if g = table.Gather(t.Context(), keys[1:2], out); g.Fetched != 1 {
			t.Errorf("after a put that failed the row is fetched again: %+v", g)
		}
		if err := table.Delete(t.Context(), []uint64{2}); !errors.Is(err, failed) {
			t.Errorf("a deletion that fails: %v", err)
		}
	}
}

// troubled is a store of rows below 100; those of 200 to 299 are broken, those of 300 to 399 out of reach.
type troubled struct {
	gone     map[uint64]bool
	fail     error // of all reads
	change   error // of all changes
	deadline time.Duration
}

func (s *troubled) RowBytes() int { return testRow }
func (s *troubled) Close() error  { return nil }

func (s *troubled) Put(context.Context, []uint64, []byte) error { return s.change }

func (s *troubled) Delete(_ context.Context, keys []uint64) error {
	if s.gone == nil {
		s.gone = map[uint64]bool{}
	}
	for _, k := range keys {
		s.gone[k] = true
	}
	return s.change
}

func (s *troubled) Gather(ctx context.Context, keys []uint64, rows []byte, found []bool) error {
	if d, ok := ctx.Deadline(); ok {
		s.deadline = time.Until(d)
	}
	var broken []int
	gone := &OutageError{Err: errors.New("a node is gone")}
	for i, k := range keys {
		if found[i] = k < 100 && !s.gone[k]; found[i] {
			fill(rows[i*testRow:][:testRow], k, 1)
		}
		if k >= 200 && k < 300 {
			broken = append(broken, i)
		}
		if k >= 300 && k < 400 {
			gone.Rows = append(gone.Rows, i)
		}
	}
	if s.fail != nil {
		return s.fail
	}
	if len(gone.Rows) == 0 {
		return brokenRows(broken)
	}
	return errors.Join(brokenRows(broken), gone)
}

// Errors of stores say how many rows they are about.
func TestErrorsOfStores(t *testing.T) {
	if got := (&BrokenError{[]int{1, 2}}).Error(); !strings.Contains(got, "2 rows") {
		t.Errorf("%q", got)
	}
	inner := errors.New("inner")
	if err := (&OutageError{[]int{1}, inner}); !strings.Contains(err.Error(), "1 row is") || !errors.Is(err, inner) {
		t.Errorf("%q", err)
	}
	if brokenRows(nil) != nil {
		t.Error("no rows are an error")
	}
}

// Tables are refused that cannot be, at the very bounds.
func TestBoundsOfTables(t *testing.T) {
	p, err := pool.New(1<<26, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, w := range []struct {
		cfg Config
		ok  bool
	}{
		{Config{Rows: 1, RowBytes: 8}, true}, {Config{Rows: 0, RowBytes: 8}, false}, {Config{Rows: 1, RowBytes: 0}, false},
		{Config{Rows: 1, RowBytes: 4}, false}, {Config{Rows: 1, RowBytes: 1<<20 + 8}, false},
		{Config{Rows: 1, RowBytes: 1 << 20}, true},
		{Config{Rows: 1 << 32, RowBytes: 8}, true}, {Config{Rows: 1<<32 + 1, RowBytes: 8}, false},
		{Config{Rows: 1, MaxRows: 1<<32 + 1, RowBytes: 8}, false},
	} {
		if err := w.cfg.Validate(); (err == nil) != w.ok {
			t.Errorf("%+v: %v", w.cfg, err)
		}
	}
	for most, ok := range map[int]bool{16 * setSlots: true, 17 * setSlots: false} {
		c, err := NewCache(p, Config{Rows: setSlots, MaxRows: most, RowBytes: 64, Policy: "lru"})
		if (err == nil) != ok {
			t.Errorf("from %d rows to %d: %v", setSlots, most, err)
		}
		if c != nil {
			if now, least, all := c.Slabs(); now != 1 || least != 1 || all != 16 {
				t.Errorf("%d slabs, from %d to %d", now, least, all)
			}
			c.Close()
		}
	}
	name := func(n int) string { return strings.Repeat("n", n) }
	for _, w := range []struct {
		s  Spec
		ok bool
	}{
		{Spec{Name: name(255), Store: "pebble", Dim: 1}, true}, {Spec{Name: name(256), Store: "pebble", Dim: 1}, false},
		{Spec{Name: "a b", Store: "pebble", Dim: 1}, false}, {Spec{Name: "a\x00", Store: "pebble", Dim: 1}, false},
		{Spec{Name: "a", Store: "pebble", Dim: 1 << 18}, true}, {Spec{Name: "a", Store: "pebble", Dim: 1<<18 + 1}, false},
		{Spec{Name: "a", Store: "pebble", Dim: 0}, false}, {Spec{Name: "a", Store: "pebble", Dim: 3, Cache: 1}, false},
		{Spec{Name: "a", Store: "pebble", Dim: 3}, true}, {Spec{Name: "a", Store: "pebble", Dim: 2, Cache: 1}, true},
		{Spec{Name: "a", Store: "pebble", Dim: 2, Default: []float32{1}}, false},
		{Spec{Name: "a", Store: "pebble", Dim: 2, Default: []float32{1, 2}}, true},
		{Spec{Name: "a", Store: "file", Dim: 2}, false}, {Spec{Name: "a", Store: "file", File: "x", Dim: 2}, true},
		{Spec{Name: "a", Store: "redis", Dim: 2}, false},
		{Spec{Name: "a", Store: "redis", Addresses: []string{"x"}, Dim: 2}, true},
		{Spec{Name: "a", Store: "disk", Dim: 2}, false},
	} {
		if err := w.s.Validate(); (err == nil) != w.ok {
			t.Errorf("%+v: %v", w.s, err)
		}
	}
	if _, err := NewTable(NewMemory(1, 16), nil, TableConfig{Default: make([]byte, 8)}); !errors.Is(err, ErrRow) {
		t.Errorf("a default row of half the size: %v", err)
	}
	for _, cfg := range []RedisConfig{{RowBytes: 8}, {Addresses: []string{"x"}}} {
		if _, err := NewRedis(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
	r, err := NewRedis(RedisConfig{Addresses: []string{"x"}, RowBytes: 8})
	if err != nil || r.conn.Pause() != 50*time.Millisecond || r.conn.Dial() != time.Second || r.RowBytes() != 8 {
		t.Errorf("defaults %+v, %v", r.cfg, err)
	}
	if !Finite([]float32{1, -2, 0}) || Finite([]float32{1, float32(math.Inf(1))}) ||
		Finite([]float32{float32(math.Inf(-1))}) || Finite([]float32{float32(math.NaN())}) {
		t.Error("numbers that are finite, or not")
	}
	for _, bad := range []float32{float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())} {
		for i := range 3 {
			row := []float32{1, 2, 3}
			row[i] = bad
			if finite(Bytes(row)) || !finite(Bytes([]float32{1, math.MaxFloat32, -math.MaxFloat32})) {
				t.Errorf("row %v", row)
			}
		}
	}
	if Bytes(nil) != nil || len(Bytes(make([]float32, 3))) != 12 {
		t.Error("bytes of numbers")
	}
}

// No tables at all have no names, no problems and nothing to sync. What cannot be opened leaves nothing open.
func TestNoTables(t *testing.T) {
	var none *Tables
	if none.Table("a") != nil || none.Names() != nil || none.Problems() != nil {
		t.Error("no tables have something")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "rows")
	if err := os.WriteFile(file, Bytes(make([]float32, 8)), 0o600); err != nil {
		t.Fatal(err)
	}
	one, err := OpenTables(filepath.Join(dir, "none"), []Spec{{Name: "f", Store: "file", File: file, Dim: 4, Cache: 64}})
	if err != nil {
		t.Fatal(err)
	}
	if err := one.Sync(); err != nil || len(one.Problems()) != 0 {
		t.Errorf("a table in a file: %v, %v", err, one.Problems())
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("a folder was made: %v", err)
	}
	one.files["f"].faults.Store(3)
	if p := one.Problems(); len(p) != 1 || !strings.Contains(p[0], "table f") || !strings.Contains(p[0], "3 rows") {
		t.Errorf("problems %q", p)
	}
	if err := one.Close(); err != nil {
		t.Error(err)
	}
	for name, specs := range map[string][]Spec{
		"a file that is not there": {{Name: "p", Store: "pebble", Dim: 2},
			{Name: "f", Store: "file", File: filepath.Join(dir, "gone"), Dim: 4}},
		"a policy that is not": {{Name: "p", Store: "pebble", Dim: 2, Cache: 64, Policy: "best"}},
		"another size":         {{Name: "p", Store: "pebble", Dim: 2}, {Name: "p2", Store: "file", File: file, Dim: 3}},
		"a file, not a folder": {{Name: "p", Store: "pebble", Dim: 2}},
	} {
		tables := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if name == "a file, not a folder" {
			tables = filepath.Join(file, "below")
		}
		if got, err := OpenTables(tables, specs); err == nil {
			t.Errorf("%s: no error", name)
			got.Close()
		}
		if name == "a file, not a folder" {
			continue
		}
		f, err := OpenFolder(tables) // it is not locked
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	redis, err := OpenTables(dir, []Spec{{Name: "r", Store: "redis", Addresses: []string{"localhost:1"}, Dim: 2},
		{Name: "s", Store: "redis", Addresses: []string{"localhost:1"}, Prefix: "mine:", Dim: 2}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"r": "grebe:r:", "s": "mine:"} {
		if got := redis.Table(name).store.(*Redis).cfg; got.Prefix != want || got.RowBytes != 8 {
			t.Errorf("table %s is in Redis under %q, with rows of %d bytes", name, got.Prefix, got.RowBytes)
		}
	}
	if err := redis.Close(); err != nil {
		t.Error(err)
	}
}

// A table's cache holds as many rows as fit into the bytes that it is given, at least one set.
func TestCachesOfTables(t *testing.T) {
	for _, w := range []struct {
		dim   int
		bytes int64
		rows  int
	}{{2, 1, 512}, {4, 1 << 16, 4096}, {1024, 1 << 20, 256}, {2048, 1, 64}, {100, 400 * 65, 128}, {16, 64 * 65, 128}} {
		tables := &Tables{}
		c, err := tables.cache(&Spec{Dim: w.dim, Cache: w.bytes, Policy: "lru"})
		if err != nil {
			t.Fatalf("%d numbers, %d bytes: %v", w.dim, w.bytes, err)
		}
		if c.Rows() != w.rows {
			t.Errorf("%d numbers, %d bytes: %d rows, want %d", w.dim, w.bytes, c.Rows(), w.rows)
		}
		if err := tables.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A store in memory has the rows that were put, and no others.
func TestMemoryBounds(t *testing.T) {
	m := NewMemory(70, 8)
	row := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	for _, k := range []uint64{0, 63, 64, 69} {
		if err := m.Put(t.Context(), []uint64{k}, row); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Put(t.Context(), []uint64{70}, row); err == nil {
		t.Error("a row beyond the last was put")
	}
	if err := m.Put(t.Context(), []uint64{1, 2}, row); !errors.Is(err, ErrRow) {
		t.Errorf("one row for two keys: %v", err)
	}
	var keys []uint64
	for k := range uint64(200) {
		keys = append(keys, k)
	}
	there := func() (out []uint64) {
		rows, found := make([]byte, 8*len(keys)), make([]bool, len(keys))
		if err := m.Gather(t.Context(), keys, rows, found); err != nil {
			t.Fatal(err)
		}
		for i, f := range found {
			if f {
				out = append(out, keys[i])
				if !slices.Equal(rows[8*i:][:8], row) {
					t.Errorf("row %d is %v", i, rows[8*i:][:8])
				}
			}
		}
		return out
	}
	if got := there(); !slices.Equal(got, []uint64{0, 63, 64, 69}) {
		t.Errorf("rows %v", got)
	}
	if err := m.Delete(t.Context(), []uint64{64, 5, 1000}); err != nil {
		t.Error(err)
	}
	if got := there(); !slices.Equal(got, []uint64{0, 63, 69}) {
		t.Errorf("rows %v after one was deleted", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Gather(ctx, keys[:1], make([]byte, 8), make([]bool, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("gathered for nobody: %v", err)
	}
	if err := m.Put(ctx, keys[:1], row); !errors.Is(err, context.Canceled) {
		t.Errorf("put for nobody: %v", err)
	}
	if err := m.Delete(ctx, keys[:1]); !errors.Is(err, context.Canceled) || len(there()) != 3 {
		t.Errorf("deleted for nobody: %v", err)
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a panic that is no fault is swallowed")
			}
		}()
		isFault("something else")
	}()
	for _, bytes := range []int{0, 7, 12} {
		name := filepath.Join(t.TempDir(), "rows")
		if err := os.WriteFile(name, make([]byte, bytes), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenFile(name, 8); err == nil {
			t.Errorf("a file of %d bytes has rows of 8", bytes)
		}
		if _, err := OpenFile(name, 0); err == nil {
			t.Errorf("a file of %d bytes has rows of 0", bytes)
		}
	}
}

// Tables on disk: names have bounds, a read for nobody ends, and so does a change.
func TestPebbleBounds(t *testing.T) {
	f, err := OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for n, ok := range map[int]bool{0: false, 1: true, 255: true, 256: false} {
		if _, err := f.Table(strings.Repeat("x", n), 8); (err == nil) != ok {
			t.Errorf("a name of %d bytes: %v", n, err)
		}
	}
	p, err := f.Table("t", 8)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]uint64, 600)
	for i := range keys {
		keys[i] = uint64(i)
	}
	if err := p.Put(t.Context(), keys, make([]byte, 8*600)); err != nil {
		t.Fatal(err)
	}
	if err := p.Put(t.Context(), keys, make([]byte, 8*599)); !errors.Is(err, ErrRow) {
		t.Errorf("a row too few: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Gather(ctx, keys, make([]byte, 8*600), make([]bool, 600)); !errors.Is(err, context.Canceled) {
		t.Errorf("gathered for nobody: %v", err)
	}
	if err := p.Delete(ctx, keys); !errors.Is(err, context.Canceled) {
		t.Errorf("deleted for nobody: %v", err)
	}
	found := make([]bool, 600)
	if err := p.Gather(t.Context(), keys, make([]byte, 8*600), found); err != nil || slices.Contains(found, false) {
		t.Errorf("rows are gone that nobody deleted: %v", err)
	}
	if len(f.problems()) != 0 || p.RowBytes() != 8 {
		t.Errorf("problems %q", f.problems())
	}
	// What Pebble panics with is an error, of this change and of all that follow.
	if err := f.write(func() error { panic("no room") }); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a write that panics: %v", err)
	}
	if err := p.Put(t.Context(), keys[:1], make([]byte, 8)); !errors.Is(err, ErrUnavailable) ||
		!strings.HasSuffix(err.Error(), "no room") {
		t.Errorf("after a failure: %v", err)
	}
	if told := f.problems(); len(told) != 1 || !strings.HasSuffix(told[0], "no room") {
		t.Errorf("after a failure: problems %q", told)
	}
	if err := f.Close(); !errors.Is(err, ErrUnavailable) { // it is left as it is
		t.Error(err)
	}
}

// Folders that are not there need no repair; one that is in use cannot be looked at; one that is sound has no problems.
func TestExamineFolders(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tables")
	check := func(what string, want error) {
		t.Helper()
		problems, err := ExamineFolder(dir)
		if !errors.Is(err, want) || len(problems) > 0 {
			t.Errorf("%s: examined %q, %v, want %v", what, problems, err, want)
		}
		loss, err := RepairFolder(dir)
		if !errors.Is(err, want) || loss != nil {
			t.Errorf("%s: repaired %+v, %v, want %v", what, loss, err, want)
		}
	}
	check("not there", nil)
	f, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	check("in use", ErrLocked)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	check("sound", nil)
	logs, err := filepath.Glob(filepath.Join(dir, "marker.manifest*"))
	if err != nil || len(logs) != 1 {
		t.Fatal(logs, err)
	}
	if err := os.Remove(logs[0]); err != nil {
		t.Fatal(err)
	}
	if problems, err := ExamineFolder(dir); len(problems) == 0 || err != nil {
		t.Errorf("without its marker: %q, %v", problems, err)
	}
	if loss, err := RepairFolder(dir); loss == nil || err != nil {
		t.Errorf("without its marker: %+v, %v", loss, err)
	}
	check("repaired", nil)
	if err := os.Rename(dir, dir+".repairing"); err != nil {
		t.Fatal(err)
	}
	if _, err := RepairFolder(dir); err != nil {
		t.Errorf("a repair that was cut off: %v", err)
	}
	if _, err := os.Stat(dir + ".repairing"); !os.IsNotExist(err) {
		t.Errorf("the old folder is left: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ExamineFolder(file); err == nil || errors.Is(err, ErrLocked) {
		t.Errorf("a file: %v", err)
	}
}
