package evict

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// plainDirectory is a Directory written to be obviously right: sets in a map, rows found by a search of all slots.
type plainDirectory struct {
	slab   Slab
	mode   Mode
	most   int // sets that there may be
	now    uint64
	sets   []*rows
	decide []*SlabSet
	of     map[uint64]uint32 // row by hash
}

func (p *plainDirectory) find(row uint32) (set, slot int, ok bool) {
	for i, s := range p.sets {
		for j, k := range s.keys {
			if k == scatter(row) {
				return i, j, true
			}
		}
	}
	return 0, 0, false
}

func (p *plainDirectory) use(row uint32) bool {
	p.now++
	set, slot, ok := p.find(row)
	if ok {
		p.sets[set].stamps[slot] = p.slab.Use(p.sets[set].stamps[slot], p.now)
	}
	return ok
}

func (p *plainDirectory) place(row uint32) (slot int, evicted uint32, ok bool) {
	h := scatter(row)
	home := Homes(p.most).Home(h, len(p.sets))
	s := p.sets[home]
	slot, m, ok := p.decide[home].Place(p.slab, h, p.now, p.mode, s)
	if !ok {
		return 0, NoRow, false
	}
	evicted = NoRow
	if k := s.keys[slot]; k != 0 {
		evicted = p.of[k]
	}
	p.of[h] = row
	s.keys[slot], s.stamps[slot] = h, m
	return home*SlabSlots + slot, evicted, true
}

// TestDirectoryEqualsSlab: on random streams, also while pages come and go and rows change, a Directory decides as
// Slab does on plain sets.
func TestDirectoryEqualsSlab(t *testing.T) {
	for _, mode := range []Mode{LRU, 1, 2, 3} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("mode=%d/seed=%d", mode, seed), func(t *testing.T) { compareDirectory(t, mode, seed) })
		}
	}
}

func compareDirectory(t *testing.T, mode Mode, seed uint64) {
	const all, pages, setsPerPage = 2000, 4, 2
	r := rand.New(rand.NewPCG(seed, 7))
	d := NewDirectory(all, pages, setsPerPage*SlabSlots, mode)
	const most = pages * setsPerPage
	p := &plainDirectory{slab: NewSlab(most * SlabSlots), mode: mode, most: most, now: 1, of: map[uint64]uint32{}}
	open := func() {
		if page, ok := d.Open(); ok != (len(p.sets) < p.most) || ok && page != len(p.sets)/setsPerPage {
			t.Fatalf("page %d, %v comes to %d sets", page, ok, len(p.sets))
		} else if !ok {
			return
		}
		for range setsPerPage {
			p.sets, p.decide = append(p.sets, &rows{}), append(p.decide, &SlabSet{})
		}
	}
	open()
	hot := rand.NewZipf(r, 1.1, 8, all-1)
	hits, evictions, declined := 0, 0, 0
	for i := range 40_000 {
		row := uint32((hot.Uint64() + uint64(i/10_000)*500) % all)
		switch x := r.IntN(4000); {
		case x == 0:
			open()
		case x == 1 && len(p.sets) > setsPerPage:
			d.Shut()
			p.sets, p.decide = p.sets[:len(p.sets)-setsPerPage], p.decide[:len(p.decide)-setsPerPage]
		case x < 10:
			set, slot, ok := p.find(row)
			if d.Remove(row) != ok {
				t.Fatalf("row %d is removed: %v", row, !ok)
			}
			if ok {
				p.sets[set].keys[slot] = 0
			}
		}
		want := p.use(row)
		if got := d.Use(row); got != want {
			t.Fatalf("access %d: row %d is cached: %v, want %v", i, row, got, want)
		}
		if want {
			set, slot, _ := p.find(row)
			if got, ok := d.Slot(row); !ok || got != set*SlabSlots+slot {
				t.Fatalf("access %d: row %d is in slot %d, %v, want %d of set %d", i, row, got, ok, slot, set)
			}
			hits++
			continue
		}
		slot, evicted, ok := p.place(row)
		if s, e, o := d.Place(row); s != slot || e != evicted || o != ok {
			t.Fatalf("access %d: row %d gets slot %d of row %d, %v, want %d, %d, %v",
				i, row, s, e, o, slot, evicted, ok)
		}
		if !ok {
			declined++
		} else if evicted != NoRow {
			evictions++
		}
	}
	if hits < 10_000 || evictions < 1000 || mode != LRU && declined == 0 {
		t.Errorf("%d hits, %d evictions, %d declined: the stream tries too little", hits, evictions, declined)
	}
}

// BenchmarkDirectory is the host's work for a request of 15,000 events over a table of 5 million rows, of which a tenth
// is cached: all look-ups, and the decisions about those that missed.
func BenchmarkDirectory(b *testing.B) {
	const all, pageRows, events = 5_000_000, 4096, 15_000
	d := NewDirectory(all, all/10/pageRows, pageRows, 2)
	for ok := true; ok; {
		_, ok = d.Open()
	}
	r := rand.New(rand.NewPCG(1, 2))
	hot := rand.NewZipf(r, 1.1, 100, all-1)
	ids := make([]uint32, events*64)
	for i := range ids {
		ids[i] = uint32(scatter(uint32(hot.Uint64())) % all)
	}
	misses, at := 0, 0
	for b.Loop() {
		for _, row := range ids[at : at+events] {
			if !d.Use(row) {
				d.Place(row)
				misses++
			}
		}
		at = (at + events) % len(ids)
	}
	b.ReportMetric(float64(misses)/float64(b.N), "misses/op")
}

// A page that is opened again has none of the rows that it had before.
func TestReopenedPagesAreEmpty(t *testing.T) {
	const rows = 4 * SlabSlots
	d := NewDirectory(rows, 2, 2*SlabSlots, 2)
	d.Open()
	d.Open()
	for round := range 3 {
		for row := range uint32(rows) {
			d.Place(row)
		}
		d.Shut()
		d.Open()
		cached := 0
		for row := range uint32(rows) {
			if slot, ok := d.Slot(row); ok {
				if cached++; slot >= 2*SlabSlots {
					t.Fatalf("round %d: row %d is in slot %d of a page that was opened again", round, row, slot)
				}
			}
		}
		if cached == 0 {
			t.Fatal("no row is cached")
		}
	}
}
