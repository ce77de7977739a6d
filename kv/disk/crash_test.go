package disk

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// small returns a store of a few records in one segment, after close.
func small(t *testing.T, holes bool) (*memFolder, []int) {
	d := newMemFolder(t, holes)
	s := mustOpen(t, d, Options{Budget: mib})
	sizes := []int{700, 300, 2000}
	for i, n := range sizes {
		mustPut(t, s, keyOf(i), pattern(keyOf(i), 'm', 0, 20), pattern(keyOf(i), 'p', 0, n))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return d, sizes
}

func (d *memFolder) only(t *testing.T) *memFile {
	t.Helper()
	if len(d.files) != 1 {
		t.Fatalf("%d files, want 1", len(d.files))
	}
	for _, f := range d.files {
		return f
	}
	return nil
}

// survivors returns how many records are there; each must be right, and all missing ones counted.
func survivors(t *testing.T, s *Store, sizes []int, what string) int {
	t.Helper()
	n := 0
	for i, size := range sizes {
		meta, payload, ok := fetch(t, s, keyOf(i))
		if !ok {
			continue
		}
		n++
		if !bytes.Equal(meta, pattern(keyOf(i), 'm', 0, 20)) || !bytes.Equal(payload, pattern(keyOf(i), 'p', 0, size)) {
			t.Fatalf("%s: record %d is wrong", what, i)
		}
	}
	return n
}

func TestTruncatedAnywhere(t *testing.T) {
	t.Parallel()
	skipUnderRace(t)
	for _, holes := range []bool{true, false} {
		d, sizes := small(t, holes)
		whole := d.only(t).Data
		var starts, ends []int
		for at, i := block, 0; i < len(sizes); i++ {
			starts = append(starts, at)
			ends = append(ends, at+int(payloadAt(20, int64(sizes[i])))+sizes[i])
			at += int(recordSize(20, int64(sizes[i])))
		}
		for cut := range whole {
			c := d.copyOf()
			c.only(t).resize(int64(cut))
			s := mustOpen(t, c, Options{Budget: mib})
			what := fmt.Sprintf("cut at %d", cut)
			want, torn := 0, cut > 0 && cut < block
			for i := range sizes {
				if ends[i] <= cut {
					want++
				} else if starts[i] < cut {
					torn = true
				}
			}
			if got := survivors(t, s, sizes, what); got != want {
				t.Fatalf("%s: %d records, want %d", what, got, want)
			}
			if st := s.Stats(); (st.TornRecords > 0) != torn || st.TornRecords > 1 {
				t.Fatalf("%s: %d torn records counted, want %v", what, st.TornRecords, torn)
			}
			if cut%97 == 0 { // it can be written again
				mustPut(t, s, keyOf(9), nil, pattern(keyOf(9), 'p', 0, 9000))
				s = mustOpen(t, c.copyOf(), Options{Budget: mib})
				if _, p, ok := fetch(t, s, keyOf(9)); !ok || !bytes.Equal(p, pattern(keyOf(9), 'p', 0, 9000)) {
					t.Fatalf("%s: record put afterwards is missing or wrong", what)
				}
				survivors(t, s, sizes, what)
			}
		}
	}
}

func TestAnyByteFlipped(t *testing.T) {
	t.Parallel()
	skipUnderRace(t)
	for _, reopen := range []bool{true, false} {
		d, sizes := small(t, true)
		n := len(d.only(t).Data)
		for at := range n {
			c := d.copyOf()
			f := c.only(t)
			var s *Store
			if !reopen { // damaged while the store has it open
				s = mustOpen(t, c, Options{Budget: mib})
			}
			f.Data[at] ^= 1 << (at % 8)
			if reopen {
				s = mustOpen(t, c, Options{Budget: mib})
			}
			got := survivors(t, s, sizes, fmt.Sprintf("byte %d flipped", at))
			st := s.Stats()
			if got < len(sizes) && st.TornRecords+st.ChecksumFailures == 0 {
				t.Fatalf("byte %d flipped: a record is missing and nothing was counted", at)
			}
			if got < len(sizes)-1 && at >= block {
				t.Fatalf("byte %d flipped: %d records are missing", at, len(sizes)-got)
			}
			if got == len(sizes) && st.ChecksumFailures != 0 {
				t.Fatalf("byte %d flipped: counted, though nothing is missing", at)
			}
		}
	}
}

// The same on real files, at every 61st byte.
func TestDamagedFiles(t *testing.T) {
	d, sizes := small(t, true)
	whole := d.only(t).Data
	dir := t.TempDir()
	name := filepath.Join(dir, segmentName(1))
	for at := 0; at < len(whole); at += 61 {
		flipped := slices.Clone(whole)
		flipped[at] ^= 0x10
		for what, data := range map[string][]byte{"flipped": flipped, "cut": whole[:at]} {
			if err := os.WriteFile(name, data, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := Open(dir, Options{Budget: mib})
			if err != nil {
				t.Fatalf("%s at %d: %v", what, at, err)
			}
			got := survivors(t, s, sizes, fmt.Sprintf("%s at %d", what, at))
			if st := s.Stats(); got < len(sizes) && what == "flipped" && st.TornRecords+st.ChecksumFailures == 0 {
				t.Fatalf("flipped at %d: a record is missing and nothing was counted", at)
			}
			s.closeFiles() // without syncing, for speed
			_ = s.dir.Close()
			_ = os.Remove(name)
		}
	}
}

// Random operations, then a power cut that loses any sector written since it was synced.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	skipUnderRace(t)
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 5))
		d := newMemFolder(t, seed%2 == 0)
		opt := Options{Budget: mib, Segment: 128 << 10}
		deleted := map[int]bool{}
		for range 3 { // several lives
			s := mustOpen(t, d, opt)
			books(t, s)
			synced := map[int]bool{}
			for range r.IntN(40) {
				powerStep(t, s, r, deleted, synced)
			}
			evicted := s.Stats().Evictions > 0
			d = d.powerCut(r)
			s = mustOpen(t, d, opt)
			for k := range 20 {
				meta, payload, ok := fetch(t, s, keyOf(k))
				if ok && deleted[k] {
					t.Fatalf("seed %d: deleted record %d came back", seed, k)
				}
				if ok && (!bytes.Equal(meta, pattern(keyOf(k), 'm', 0, 50)) ||
					!bytes.Equal(payload, pattern(keyOf(k), 'p', 0, k*3000))) {
					t.Fatalf("seed %d: record %d is wrong", seed, k)
				}
				if !ok && synced[k] && !evicted && s.Stats().Evictions == 0 {
					t.Fatalf("seed %d: record %d was synced and is lost: %+v", seed, k, s.Stats())
				}
			}
			all := d.all()
			for k := range deleted {
				for _, b := range [][]byte{pattern(keyOf(k), 'm', 0, 50), pattern(keyOf(k), 'p', 0, k*3000)} {
					for at := 0; at+24 <= len(b); at += 2000 {
						if bytes.Contains(all, b[at:at+24]) {
							t.Fatalf("seed %d: bytes of deleted record %d are in the files", seed, k)
						}
					}
				}
			}
		}
	}
}

func powerStep(t *testing.T, s *Store, r *rand.Rand, deleted, synced map[int]bool) {
	k := r.IntN(20)
	switch op := r.IntN(20); {
	case op == 0:
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		for k := range 20 {
			_, _, ok := fetch(t, s, keyOf(k)) // a record damaged by an earlier cut is none
			synced[k] = ok
		}
	case op < 4:
		if err := s.Delete(keyOf(k)); err != nil {
			t.Fatal(err)
		}
		deleted[k] = true
		delete(synced, k)
	case op < 6:
		fetch(t, s, keyOf(k))
	default:
		mustPut(t, s, keyOf(k), pattern(keyOf(k), 'm', 0, 50), pattern(keyOf(k), 'p', 0, k*3000))
		delete(deleted, k)
		delete(synced, k) // the old copy may go before the new one is durable
	}
}

// A power cut between any two system calls of Delete leaves each record whole or gone.
func TestPowerCutDuringDelete(t *testing.T) {
	opt := Options{Budget: 2 * mib, Segment: 256 << 10}
	for _, holes := range []bool{true, false} {
		for at, done := 1, false; !done; at++ {
			d := newMemFolder(t, holes)
			s := mustOpen(t, d, opt)
			for k := range 6 {
				mustPut(t, s, keyOf(k), pattern(keyOf(k), 'm', 0, 50), pattern(keyOf(k), 'p', 0, 70_000))
			}
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			var cuts []*memFolder
			calls := 0
			d.fail = func(string) error {
				if calls++; calls == at {
					for seed := range uint64(5) {
						cuts = append(cuts, d.powerCut(rand.New(rand.NewPCG(seed, 1))))
					}
				}
				return nil
			}
			if err := s.Delete(keyOf(1), keyOf(3), keyOf(4)); err != nil {
				t.Fatal(err)
			}
			for _, c := range cuts {
				s := mustOpen(t, c, opt)
				for k := range 6 {
					if _, _, ok := fetch(t, s, keyOf(k)); !ok && (k == 0 || k == 2 || k == 5) {
						t.Fatalf("holes %v, call %d: record %d is lost", holes, at, k)
					}
				}
				if st := s.Stats(); st.ChecksumFailures != 0 {
					t.Fatalf("holes %v, call %d: half a record is left", holes, at)
				}
			}
			done = calls < at
		}
	}
}

// Random operations, killed between two system calls of one of them.
func TestKilledBetweenSystemCalls(t *testing.T) {
	t.Parallel()
	skipUnderRace(t)
	opt := Options{Budget: mib, Segment: 128 << 10}
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 6))
		d := newMemFolder(t, seed%2 == 0)
		s := mustOpen(t, d, opt)
		var left *memFolder
		calls := r.IntN(300)
		d.fail = func(string) error {
			if calls--; calls == 0 {
				left = d.copyOf()
			}
			return nil
		}
		has, deleted := map[int]bool{}, map[int]bool{} // what is sure at the time of the kill
		for left == nil {
			k := r.IntN(15)
			delete(has, k)
			if r.IntN(5) == 0 {
				if err := s.Delete(keyOf(k)); err != nil {
					t.Fatal(err)
				}
				deleted[k] = deleted[k] || left == nil
				continue
			}
			delete(deleted, k)
			mustPut(t, s, keyOf(k), pattern(keyOf(k), 'm', 0, 50), pattern(keyOf(k), 'p', 0, k*9000))
			has[k] = left == nil
		}
		evicted := s.Stats().Evictions > 0
		left.budget = opt.Budget
		s = mustOpen(t, left, opt)
		books(t, s)
		for k := range 15 {
			meta, payload, ok := fetch(t, s, keyOf(k))
			if ok && (!bytes.Equal(meta, pattern(keyOf(k), 'm', 0, 50)) ||
				!bytes.Equal(payload, pattern(keyOf(k), 'p', 0, k*9000))) {
				t.Fatalf("seed %d: record %d is wrong", seed, k)
			}
			if ok && deleted[k] || !ok && has[k] && !evicted {
				t.Fatalf("seed %d: record %d there: %v, deleted: %v", seed, k, ok, deleted[k])
			}
			if deleted[k] && bytes.Contains(left.all(), pattern(keyOf(k), 'm', 0, 50)) {
				t.Fatalf("seed %d: bytes of deleted record %d are in the files", seed, k)
			}
		}
		if st := s.Stats(); st.ChecksumFailures != 0 || st.TornRecords > 2 {
			t.Fatalf("seed %d: half a record is left: %+v", seed, st)
		}
	}
}
