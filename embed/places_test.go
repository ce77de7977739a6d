package embed

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"grebe/internal/locktest"
	"grebe/pool"
)

// Memory of slabs that left is free as soon as the last reader who could see it is gone.
func TestTheGateFreesWhatNobodyReads(t *testing.T) {
	p, err := pool.New(1<<20, 4096)
	if err != nil {
		t.Fatal(err)
	}
	used := func() int { return int(p.Stats().Used / 4096) }
	run := func() pool.Run {
		r, err := p.Alloc(4096)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	var g gate
	g.retire([]pool.Run{run()}, p)
	if used() != 0 || g.limbo.Load() {
		t.Errorf("nobody reads, and %d pages are kept", used())
	}
	for stripe := range 2 * stripes {
		first := g.enter(stripe)
		g.retire([]pool.Run{run(), run()}, p)
		second := g.enter(stripe + 1)
		g.retire([]pool.Run{run()}, p)
		if used() != 3 || !g.limbo.Load() {
			t.Errorf("stripe %d: a reader is inside, and %d of 3 pages are kept", stripe, used())
		}
		g.leave(first, stripe, p)
		if used() != 1 {
			t.Errorf("stripe %d: the first reader is gone, and %d pages are kept, want one", stripe, used())
		}
		third := g.enter(stripe)
		g.leave(second, stripe+1, p)
		if used() != 0 || g.limbo.Load() {
			t.Errorf("stripe %d: who could see them is gone, and %d pages are kept", stripe, used())
		}
		g.leave(third, stripe, p)
	}
	e := g.enter(0)
	g.retire([]pool.Run{run()}, p)
	g.retire([]pool.Run{run()}, p)
	g.close(p)
	_ = e
	if used() != 0 {
		t.Errorf("closed with %d pages", used())
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A cache that shrinks gives its pages back, keeps a sixteenth of its slabs, and grows as far as it may.
func TestGrowAndShrink(t *testing.T) {
	c, p := resizable(t, "lru", 2, 32)
	slab := int64(c.SlabBytes())
	check := func(what string, want int) {
		t.Helper()
		now, least, most := c.Slabs()
		if now != want || least != 2 || most != 32 || c.Rows() != want*setSlots || p.Stats().Used != int64(want)*slab {
			t.Errorf("%s: %d slabs from %d to %d, %d rows, %d bytes; want %d slabs", what, now, least, most, c.Rows(),
				p.Stats().Used, want)
		}
	}
	check("at first", 2)
	for _, s := range []struct {
		grow, got, left int
	}{{3, 3, 5}, {100, 27, 32}, {1, 0, 32}, {-1, 1, 31}, {-5, 5, 26}, {-100, 24, 2}, {-1, 0, 2}, {0, 0, 2}} {
		got := 0
		if s.grow > 0 {
			got, _ = c.Grow(s.grow)
		} else {
			got = c.Shrink(-s.grow)
		}
		if got != s.got {
			t.Errorf("%d slabs were asked for, %d came, want %d", s.grow, got, s.got)
		}
		check(fmt.Sprint("after ", s.grow), s.left)
	}
	if n := c.fewest.Load(); n != 2 {
		t.Errorf("there were never fewer than %d sets", n)
	}
	// Rehome moves as many rows as it may at a time, and all in the end.
	var row [testRow]byte
	const rows = 60
	for k := range uint64(rows) {
		fill(row[:], k, 1)
		c.Put(k, row[:], c.Epoch(k))
	}
	c.Grow(30)
	lost := 0
	for k := range uint64(rows) {
		if !c.Get(k, row[:]) {
			lost++
		}
	}
	moved, turns := 0, 0
	for {
		n, done := c.Rehome(10)
		moved, turns = moved+n, turns+1
		if n > 10 || !done && n != 10 {
			t.Errorf("%d rows were moved of 10, done %v", n, done)
		}
		if done {
			break
		}
	}
	if moved != lost || lost < 30 || turns < 4 {
		t.Errorf("%d rows were moved in %d turns, want %d", moved, turns, lost)
	}
	for k := range uint64(rows) {
		if w, whole := words64(row[:]); !c.Get(k, row[:]) || !whole && w>>32 != k {
			t.Errorf("row %d is not there after it was moved", k)
		}
	}
	// A pool without room ends the growth.
	other, err := p.Alloc(int(int64(64*setSlots*testRow) - p.Stats().Used))
	if err != nil {
		t.Fatal(err)
	}
	c.Shrink(1)
	p.Free(other)
	if other, err = p.Alloc(int(int64(64*setSlots*testRow) - p.Stats().Used)); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Grow(1); got != 0 || err == nil {
		t.Errorf("%d slabs of a full pool, %v", got, err)
	}
	p.Free(other)
	if _, err := NewCache(p, Config{Rows: 200 * setSlots, RowBytes: testRow, Policy: "lru"}); err == nil {
		t.Error("a cache larger than its pool")
	}
	if now, _, _ := c.Slabs(); p.Stats().Used != int64(now)*slab {
		t.Errorf("a cache that could not be made keeps %d bytes", p.Stats().Used-int64(now)*slab)
	}
}

// Writers of a set, of the gate and of the sizes wait for their locks.
func TestCacheCallsWaitForTheirLocks(t *testing.T) {
	c, p := resizable(t, "lru", 2, 4)
	var row [testRow]byte
	c.Put(1, row[:], c.Epoch(1))
	home := c.home(mix(1), int(c.n.Load()))
	s := &c.sets[home]
	m := NewMemory(4, 8)
	defer m.Close()
	locktest.Waits(t, "Put", s.mu.Lock, s.mu.Unlock, func() { c.Put(1, row[:], c.Epoch(1)) })
	locktest.Waits(t, "Remove", s.mu.Lock, s.mu.Unlock, func() { c.Remove(1) })
	locktest.Waits(t, "Clear", s.mu.Lock, s.mu.Unlock, c.Clear)
	locktest.Waits(t, "place", s.mu.Lock, s.mu.Unlock,
		func() { c.place(&claim{h: mix(1), home: home}, 1, row[:], Epoch{}) })
	locktest.Waits(t, "replace", s.mu.Lock, s.mu.Unlock,
		func() { c.replace(&claim{h: mix(1), home: home}, row[:], Epoch{}) })
	locktest.Waits(t, "takeOut", s.mu.Lock, s.mu.Unlock, func() { c.takeOut(home, 0, 7, row[:]) })
	locktest.Waits(t, "expect", s.mu.Lock, s.mu.Unlock, func() { c.expect(home, 7, 1) })
	// From here on the key may live in another set.
	locktest.Waits(t, "Grow", c.resizing.Lock, c.resizing.Unlock, func() { _, _ = c.Grow(1) })
	locktest.Waits(t, "Shrink", c.resizing.Lock, c.resizing.Unlock, func() { c.Shrink(1) })
	locktest.Waits(t, "Rehome", c.resizing.Lock, c.resizing.Unlock, func() { c.Rehome(1) })
	locktest.Waits(t, "retire", c.gate.mu.Lock, c.gate.mu.Unlock, func() { c.gate.retire(nil, p) })
	locktest.Waits(t, "changed", c.closing.Lock, c.closing.Unlock, func() { c.changed([]uint64{1}) })
	locktest.Waits(t, "Memory.Gather", m.mu.Lock, m.mu.Unlock,
		func() { _ = m.Gather(context.Background(), nil, nil, nil) })
	locktest.Waits(t, "Memory.Put", m.mu.Lock, m.mu.Unlock, func() { _ = m.Put(context.Background(), nil, nil) })
	locktest.Waits(t, "Memory.Delete", m.mu.Lock, m.mu.Unlock, func() { _ = m.Delete(context.Background(), nil) })
}

// A fetched row takes the place of the one that it was chosen for, and no other's: not where its set changed meanwhile.
func TestFetchedRowsInFullSets(t *testing.T) {
	c := cacheOf(t, setSlots, "lru")
	var row, got [testRow]byte
	for k := range uint64(setSlots) {
		fill(row[:], k, 1)
		c.Put(k, row[:], c.Epoch(k))
	}
	offer := func() *claim {
		f := &claim{h: mix(1000), home: 0, slot: -1, likely: -1}
		fill(row[:], 1000, 1)
		if r := c.place(f, c.clock.Load(), row[:], c.Epoch(1000)); r != isPlaced || f.slot < 0 {
			t.Fatalf("offered to a full set: %d, slot %d", r, f.slot)
		}
		return f
	}
	for name, change := range map[string]func(f *claim) Epoch{
		"the victim is gone":     func(f *claim) Epoch { e := c.Epoch(1000); c.sets[0].clear(f.slot); return e },
		"another took its place": func(f *claim) Epoch { e := c.Epoch(1000); c.sets[0].set(f.slot, mix(5000)); return e },
		"something was removed":  func(f *claim) Epoch { e := c.Epoch(1000); c.Remove(77); return e },
		"the cache was resized":  func(f *claim) Epoch { e := c.Epoch(1000); e.sets++; return e },
	} {
		f := offer()
		key := c.sets[0].slots[f.slot].key.Load()
		if e := change(f); c.replace(f, row[:], e) || c.Get(1000, got[:]) {
			t.Errorf("%s: the row was written", name)
		}
		c.sets[0].set(f.slot, key)
	}
	f := offer()
	if !c.replace(f, row[:], c.Epoch(1000)) || !c.Get(1000, got[:]) || got != row {
		t.Error("the row was not written")
	}
	if c.replace(f, row[:], c.Epoch(1000)) {
		t.Error("the row was written twice")
	}
	// One that was asked for is written at once.
	fill(row[:], 1001, 1)
	f = &claim{h: mix(1001), home: 0, slot: -1}
	f.likely, _ = c.chosen.place(0, &c.sets[0], f.h, c.clock.Load()-1000)
	c.sets[0].slots[f.likely].meta.Store(0) // it is the oldest
	if r := c.place(f, c.clock.Load(), row[:], c.Epoch(1001)); r != hasEvicted || !c.Get(1001, got[:]) || got != row {
		t.Errorf("a place that was asked for: %d", r)
	}
	if r := c.place(f, c.clock.Load(), row[:], c.Epoch(1001)); r != isPlaced {
		t.Errorf("a row that is there: %d", r)
	}
}

// Rows that come from a store are found in the cache afterwards, whatever the size of the batch, and are counted when
// others go.
func TestBatchesFillTheCache(t *testing.T) {
	for _, policy := range []string{"lru", "default", "laru"} {
		for _, n := range []int{1, 7, 8, 9, 31, 32, 33, 100, 2000} {
			c := cacheOf(t, 8192, policy)
			table, err := NewTable(every{}, c, TableConfig{})
			if err != nil {
				t.Fatal(err)
			}
			keys, out := make([]uint64, n), make([]byte, n*testRow)
			for i := range keys {
				keys[i] = uint64(i)
			}
			table.Gather(t.Context(), keys, out)
			g := table.Gather(t.Context(), keys, out)
			if g.Hits != n {
				t.Errorf("%s, %d rows: %d are cached", policy, n, g.Hits)
			}
			for i := range keys {
				if w, whole := words64(out[i*testRow:][:testRow]); !whole || w != keys[i]<<32|1 {
					t.Fatalf("%s, %d rows: row %d is %x", policy, n, i, w)
				}
			}
			if s := c.Stats(); s.Evictions != 0 || s.Declined != 0 || s.Misses != int64(n) || s.Hits != int64(n) {
				t.Errorf("%s, %d rows: counted %+v", policy, n, s)
			}
		}
		c := cacheOf(t, setSlots, policy)
		table, err := NewTable(every{}, c, TableConfig{})
		if err != nil {
			t.Fatal(err)
		}
		keys, out := make([]uint64, 500), make([]byte, 500*testRow)
		for i := range keys {
			keys[i] = uint64(i)
		}
		table.Gather(t.Context(), keys, out)
		if s := c.Stats(); s.Evictions+s.Declined == 0 || s.Evictions+s.Declined > 500-setSlots {
			t.Errorf("%s: 500 rows for %d places: counted %+v", policy, setSlots, s)
		}
	}
}

// every has every row.
type every struct{ Store }

func (every) RowBytes() int { return testRow }

func (every) Gather(_ context.Context, keys []uint64, rows []byte, found []bool) error {
	for i, k := range keys {
		fill(rows[i*testRow:][:testRow], k, 1)
		found[i] = true
	}
	return nil
}

// Who watches a table in memory is told of every batch, with the time that its rows took.
func TestWatchersOfATableInMemory(t *testing.T) {
	store := NewMemory(100, testRow)
	defer store.Close()
	table := nearTable(t, store, setSlots, "lru", nil)
	var row [testRow]byte
	for k := range uint64(50) {
		fill(row[:], k, 1)
		if err := table.Put(t.Context(), []uint64{k}, row[:]); err != nil {
			t.Fatal(err)
		}
	}
	var told []string
	table.Watch(func(b Batch) {
		if b.Hashes[0] != mix(3) || b.Took < 0 || b.Took > time.Hour {
			t.Errorf("told of %x after %v", b.Hashes, b.Took)
		}
		told = append(told, fmt.Sprint(len(b.Hashes), " ", b.Hits))
	})
	out := make([]byte, 3*testRow)
	table.Gather(t.Context(), []uint64{3, 4, 77}, out)
	table.Gather(t.Context(), []uint64{3, 4, 77}, out)
	table.Gather(t.Context(), nil, nil)
	if !slices.Equal(told, []string{"3 0", "3 2"}) {
		t.Errorf("told %q", told)
	}
}

// A key's homes are draws that fall; every one that it may have had is visited, the lowest first.
func TestEveryHomeIsVisited(t *testing.T) {
	c, _ := resizable(t, "lru", 2, 32)
	for key := range uint64(500) {
		h := mix(key)
		var visited []int
		c.homes(h, func(home int) { visited = append(visited, home) })
		if !slices.IsSorted(visited) {
			t.Fatalf("key %d: homes %v", key, visited)
		}
		for n := 2; n <= 32; n++ {
			if home := c.home(h, n); home >= n || !slices.Contains(visited, home) {
				t.Fatalf("key %d: its home among %d sets is %d, and %v are visited", key, n, home, visited)
			}
		}
	}
}

// A cache that was closed is told of changes, and does nothing.
func TestChangesAfterTheEnd(t *testing.T) {
	p, err := pool.New(1<<20, 4096)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCache(p, Config{Rows: setSlots, RowBytes: testRow})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	c.changed([]uint64{1})
	c.changed(nil)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
