package catalog

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// TestItemsAreAMap makes random changes to the store of items and to a map, and compares them. Most changes replace, so
// that blocks fill with garbage and are tidied.
func TestItemsAreAMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s, want, version := newItems(), map[string]record{}, uint64(0)
	for round := range 400 {
		for range 250 {
			id := fmt.Sprint("item-", r.IntN(3000))
			if r.IntN(5) == 0 {
				s.remove(id)
				delete(want, id)
				continue
			}
			version++
			size := r.IntN(300)
			if r.IntN(2000) == 0 {
				size = r.IntN(2 * blockSize) // some have a block of their own
			}
			want[id] = itemRecord(&grebev1.Item{Id: id, Text: new(strings.Repeat("x", size)), Codes: []int32{int32(version)}})
			s.put(want[id], version)
		}
		if round%7 == 0 {
			s.tidy(func(f func()) { f() })
		}
	}
	if s.n != len(want) || !slices.Equal(slices.Sorted(s.ids()), slices.Sorted(maps.Keys(want))) {
		t.Fatalf("%d items, want %d", s.n, len(want))
	}
	for i := range 3000 {
		id := fmt.Sprint("item-", i)
		e := s.find(id)
		if (e != nil) != (want[id] != nil) || e != nil && !e.same(want[id]) {
			t.Errorf("%s: found %v, want %v", id, e != nil, want[id] != nil)
		}
	}
	last, n := uint64(0), 0
	all := s.list(s.n)
	defer all.free()
	for e := range all.byVersion() {
		if e.version <= last || !e.same(want[e.id()]) {
			t.Fatalf("%s at version %d after version %d", e.id(), e.version, last)
		}
		last, n = e.version, n+1
	}
	if n != len(want) {
		t.Errorf("%d items by version, want %d", n, len(want))
	}
	s.tidy(func(f func()) { f() })
	held, live := 0, 0
	for _, b := range s.blocks[1:] {
		if b != nil {
			held += len(b.bytes)
		}
	}
	for _, rec := range want {
		live += len(rec)
	}
	if s.bytes < live || s.bytes > live+16*len(want) || held > 3*live+blockSize {
		t.Errorf("%d bytes in blocks, %d counted, for %d bytes of items", held, s.bytes, live)
	}
}

// TestItemsAreReadWhileTheyMove reads items and lists of them while others are replaced and blocks are tidied.
func TestItemsAreReadWhileTheyMove(t *testing.T) {
	c := New(Options{})
	const n = 500
	item := func(i, version int) *grebev1.Item {
		text := fmt.Sprintf("text of %d, %s", i, strings.Repeat("y", 50*(version%9)))
		return &grebev1.Item{Id: fmt.Sprint("item-", i), Text: &text}
	}
	for i := range n {
		if _, err := c.PutItem(item(i, 0)); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for k := range 3 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(3, uint64(k)))
			for {
				select {
				case <-done:
					return
				default:
				}
				i := r.IntN(n)
				it, ok := c.Item(fmt.Sprint("item-", i))
				if !ok || !strings.HasPrefix(it.Text, fmt.Sprintf("text of %d, ", i)) {
					t.Errorf("item %d: %v, %v", i, ok, it)
					return
				}
				if got := len(slices.Collect(c.All())); k == 0 && got != n {
					t.Errorf("%d items, want %d", got, n)
					return
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(4, 4))
	for version := range 3000 {
		if _, err := c.PutItem(item(r.IntN(n), version)); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	wg.Wait()
}

// TestLargeTablesAreOffHeap adds and removes so many items that tables leave the Go heap, grow and have gaps.
func TestLargeTablesAreOffHeap(t *testing.T) {
	s, n := newItems(), shards*tableOffHeap
	key := func(i int) string { return fmt.Sprintf("%08d", i) }
	for i := range n {
		s.put(itemRecord(&grebev1.Item{Id: key(i)}), uint64(i+1))
	}
	if s.shards[0].memory == nil {
		t.Error("a large table is on the heap")
	}
	for i := 0; i < n; i += 3 {
		s.remove(key(i))
	}
	s.tidy(func(f func()) { f() })
	for i := range n {
		if e, ok := s.look(key(i)); ok != (i%3 != 0) || ok && e.version != uint64(i+1) {
			t.Fatalf("item %d: found %v at version %d", i, ok, e.version)
		}
	}
	all, last := s.list(s.n), uint64(0)
	defer all.free()
	for e := range all.byVersion() {
		if e.version <= last {
			t.Fatalf("version %d after %d", e.version, last)
		}
		last = e.version
	}
}
