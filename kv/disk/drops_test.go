package disk

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"grebe/plan"
)

// Who follows the puts and the reported drops knows what the store has.
func TestDropsAreReported(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{Budget: mib, Segment: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	known := map[plan.Key]bool{}
	reports := 0
	s.OnDrop(func(keys []plan.Key) {
		for _, k := range keys {
			if _, ok := s.Has(k); !ok {
				delete(known, k)
			}
			reports++
		}
	})
	same := func(when string) {
		t.Helper()
		n := 0
		s.Range(func(k plan.Key, _ []byte, _ int64) bool {
			if n++; !known[k] {
				t.Fatalf("%s: a record is there that was reported as dropped", when)
			}
			return true
		})
		if n != len(known) {
			t.Fatalf("%s: %d records are there, and %d known", when, n, len(known))
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 500 {
		k := keyOf(r.IntN(300))
		if r.IntN(5) == 0 {
			if err := s.Delete(k, keyOf(r.IntN(300))); err != nil {
				t.Fatal(err)
			}
		} else if err := s.Put(k, nil, [][]byte{pattern(k, 0, i, 1+r.IntN(20000))}); err != nil {
			t.Fatal(err)
		} else {
			known[k] = true
		}
		if i%25 == 0 {
			same("after a change")
		}
	}
	if st := s.Stats(); st.Evictions == 0 || len(known) == 0 || reports == 0 {
		t.Fatalf("%d known, %d reports, %+v", len(known), reports, st)
	}
	// Damage is found by who reads, and reported.
	files, err := filepath.Glob(filepath.Join(dir, "*.seg"))
	if err != nil || len(files) == 0 {
		t.Fatalf("segments %v: %v", files, err)
	}
	for _, f := range files {
		if err := os.Truncate(f, block); err != nil {
			t.Fatal(err)
		}
	}
	for k := range known {
		place := func(_ []byte, n int64) ([][]byte, error) { return [][]byte{make([]byte, n)}, nil }
		if _, ok, err := s.Get(k, place); ok || err != nil {
			t.Fatalf("a record that was cut off is read: %v, %v", ok, err)
		}
	}
	if same("after damage"); len(known) > 0 {
		t.Errorf("%d records are known that cannot be read", len(known))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
