package disk

import "testing"

// Drop forgets records at once and without I/O. The next write erases their bytes and frees their space.
func TestDropForgetsWithoutIO(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, dir, Options{Budget: 4 * mib})
	put := func(i int) {
		mustPut(t, s, keyOf(i), pattern(keyOf(i), 'm', 0, 300), pattern(keyOf(i), 'p', 0, 200_000))
	}
	for i := range 4 {
		put(i)
	}
	before := s.Stats()
	s.w.Lock() // as a writer that the disk keeps waiting
	s.Drop(keyOf(0), keyOf(2), keyOf(99))
	s.w.Unlock()
	after := s.Stats()
	if after.Entries != 2 || after.LiveBytes >= before.LiveBytes || after.DiskBytes != before.DiskBytes ||
		after.Evictions != 0 {
		t.Errorf("after the drop: %+v, before %+v", after, before)
	}
	for i := range 4 {
		if _, _, ok := fetch(t, s, keyOf(i)); ok != (i%2 == 1) {
			t.Errorf("record %d is found: %v", i, ok)
		}
	}
	books(t, s)
	put(4)
	books(t, s)
	for _, i := range []int{0, 2} {
		searchFiles(t, dir, pattern(keyOf(i), 'p', 0, 200_000)[:48], "a dropped record")
	}
	if now := s.Stats(); s.punch && now.DiskBytes >= before.DiskBytes {
		t.Errorf("%d bytes on disk after the next write, %d before two of four records were dropped", now.DiskBytes,
			before.DiskBytes)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s.Drop(keyOf(1)) // of a closed store
}

// A record that is dropped and put again is found, and a reopened store has it.
func TestDroppedRecordsComeAgain(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, dir, Options{Budget: 4 * mib})
	mustPut(t, s, keyOf(1), []byte("a"), []byte("first"))
	s.Drop(keyOf(1))
	mustPut(t, s, keyOf(1), []byte("b"), []byte("second"))
	for range 2 {
		if meta, payload, ok := fetch(t, s, keyOf(1)); !ok || string(meta) != "b" || string(payload) != "second" {
			t.Fatalf("found %q, %q, %v", meta, payload, ok)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openDir(t, dir, Options{Budget: 4 * mib})
	}
}

// The system is asked to write what was put, once and in pieces of a size that a sync of another file can wait for.
func TestWritesStartBeforeTheyPileUp(t *testing.T) {
	d := newMemFolder(t, true)
	s := mustOpen(t, d, Options{Budget: 64 * mib, Segment: 16 * mib})
	for i := range 40 {
		mustPut(t, s, keyOf(i), nil, pattern(keyOf(i), 'p', 0, 300_000))
		for _, seg := range s.segments() {
			if left := seg.end - seg.f.(*memFile).begun; left >= writebackStep+400_000 {
				t.Fatalf("after record %d segment %d has %d bytes that nothing writes", i, seg.id, left)
			}
		}
	}
}
