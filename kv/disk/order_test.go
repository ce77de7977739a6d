package disk

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// Between any two system calls of a Put in place of a record, the old or the new one is there.
func TestReplaceIsAtomic(t *testing.T) {
	d := newMemFolder(t, true)
	s := mustOpen(t, d, Options{Budget: mib})
	key := keyOf(1)
	mustPut(t, s, key, nil, pattern(key, 'p', 1, 9000))
	var left []*memFolder
	d.fail = func(string) error { left = append(left, d.copyOf()); return nil }
	mustPut(t, s, key, nil, pattern(key, 'p', 2, 9000))
	d.fail = nil
	gen := 1
	for i, c := range append(left, d) {
		s := mustOpen(t, c, Options{Budget: mib})
		_, p, ok := fetch(t, s, key)
		if ok && bytes.Equal(p, pattern(key, 'p', 2, 9000)) {
			gen = 2
		}
		if !ok || !bytes.Equal(p, pattern(key, 'p', gen, 9000)) {
			t.Fatalf("call %d: want generation %d, found a record: %v", i, gen, ok)
		}
		if stale := s.Stats().StaleRecords; stale > 0 && gen != 2 {
			t.Fatalf("call %d: of two records the older one was taken", i)
		}
		if st := s.Stats(); st.Entries != 1 || st.LiveBytes != recordSize(0, 9000) {
			t.Fatalf("call %d: %+v", i, st)
		}
	}
	if gen != 2 {
		t.Fatal("the new record is not there at the end")
	}
}

// An older copy of a deleted key was in a file whose removal is not durable by itself.
func TestRemovedSegmentStaysRemoved(t *testing.T) {
	opt := Options{Budget: mib, Segment: 128 << 10}
	for seed := range uint64(20) {
		d := newMemFolder(t, true)
		s := mustOpen(t, d, opt)
		key := keyOf(1)
		mustPut(t, s, key, nil, pattern(key, 'p', 1, 120_000))
		mustPut(t, s, keyOf(2), nil, pattern(keyOf(2), 'p', 1, 20_000)) // in the next segment
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		mustPut(t, s, key, nil, pattern(key, 'p', 2, 1000))
		if n := s.Stats().Segments; n != 1 {
			t.Fatalf("%d segments, want 1: the first is empty", n)
		}
		if err := s.Delete(key); err != nil {
			t.Fatal(err)
		}
		c := d.powerCut(rand.New(rand.NewPCG(seed, 2)))
		s = mustOpen(t, c, opt)
		if _, _, ok := fetch(t, s, key); ok {
			t.Fatalf("seed %d: a deleted record came back from a removed segment", seed)
		}
	}
}

// The header of a record cut off by a power cut must not come back over records written in its place:
// Delete would not find them.
func TestNothingHidesUnderATornRecord(t *testing.T) {
	opt := Options{Budget: mib}
	for seed := range uint64(60) {
		d := newMemFolder(t, true)
		s := mustOpen(t, d, opt)
		mustPut(t, s, keyOf(1), nil, pattern(keyOf(1), 'p', 0, 20_000))
		d = d.copyOf()
		d.only(t).resize(2*block + 100)
		d.only(t).Pages.Sync()

		s = mustOpen(t, d, opt)
		for k := 2; k < 9; k++ {
			mustPut(t, s, keyOf(k), nil, pattern(keyOf(k), 'p', 0, 3000))
		}
		d = d.powerCut(rand.New(rand.NewPCG(seed, 4)))

		s = mustOpen(t, d, opt)
		for k := 2; k < 9; k++ {
			if err := s.Delete(keyOf(k)); err != nil {
				t.Fatal(err)
			}
			p := pattern(keyOf(k), 'p', 0, 3000)
			for at := 0; at+32 <= len(p); at += 128 {
				if bytes.Contains(d.all(), p[at:at+32]) {
					t.Fatalf("seed %d: bytes of deleted record %d are in the files", seed, k)
				}
			}
		}
	}
}
