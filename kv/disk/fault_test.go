package disk

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
)

// Any change of a file or the folder may fail, writes after half of their bytes.
func TestFaults(t *testing.T) {
	t.Parallel()
	skipUnderRace(t)
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 9))
		d := newMemFolder(t, seed%2 == 0)
		d.budget = mib
		d.cut = true // a file that could not be removed, or space not freed, makes exact books impossible
		opt := Options{Budget: mib, Segment: 128 << 10}
		s := mustOpen(t, d, opt)
		on := false
		d.fail = func(op string) error {
			if on && r.IntN(4) == 0 {
				return syscall.EIO
			}
			return nil
		}
		want := map[int]bool{} // there unless evicted
		for range 120 {
			k := r.IntN(15)
			on = r.IntN(3) > 0
			faultStep(t, s, d, r, k, want, &on)
			books(t, s)
		}
		on = false
		if err := s.Delete(); err != nil {
			t.Fatalf("seed %d: nothing fails any more, but delete does: %v", seed, err)
		}
		if s := mustOpen(t, d.copyOf(), opt); s.Stats().TornRecords != 0 {
			t.Fatalf("seed %d: remains of failed puts are in the files: %+v", seed, s.Stats())
		}
	}
}

func faultStep(t *testing.T, s *Store, d *memFolder, r *rand.Rand, k int, want map[int]bool, on *bool) {
	key := keyOf(k)
	switch r.IntN(5) {
	case 0:
		delete(want, k)
		err := s.Delete(key)
		if err != nil && !errors.Is(err, syscall.EIO) {
			t.Fatal(err)
		}
		if b := pattern(key, 'p', 0, 4000*k); err == nil && k > 0 && bytes.Contains(d.all(), b[:32]) {
			t.Fatalf("delete reported success, and the bytes are there")
		}
		if _, ok := s.Has(key); ok {
			t.Fatal("a record whose delete failed is served")
		}
	case 1, 2:
		_, payload, ok := fetch(t, s, key)
		if ok && !want[k] || ok && !bytes.Equal(payload, pattern(key, 'p', 0, 4000*k)) {
			t.Fatalf("record %d is wrong or should not be there", k)
		}
		if !ok && want[k] && s.Stats().Evictions == 0 {
			t.Fatalf("record %d is lost", k)
		}
	default:
		err := s.Put(key, nil, cutUp(r, pattern(key, 'p', 0, 4000*k)))
		if err == nil {
			want[k] = true
		} else if !*on {
			t.Fatalf("put fails when nothing else does: %v", err)
		} else if !errors.Is(err, syscall.EIO) && !errors.Is(err, ErrNoRoom) {
			t.Fatal(err)
		}
	}
}

func TestDiskFull(t *testing.T) {
	d := newMemFolder(t, true)
	s := mustOpen(t, d, Options{Budget: 8 * mib})
	mustPut(t, s, keyOf(1), nil, pattern(keyOf(1), 'p', 0, 100_000))
	d.fail = func(op string) error {
		if op == "write" || op == "create" {
			return syscall.ENOSPC
		}
		return nil
	}
	for i := range 5 {
		if err := s.Put(keyOf(2+i), nil, [][]byte{make([]byte, 100_000)}); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("put on a full disk: %v", err)
		}
	}
	if _, p, ok := fetch(t, s, keyOf(1)); !ok || !bytes.Equal(p, pattern(keyOf(1), 'p', 0, 100_000)) {
		t.Fatal("a full disk stops reads")
	}
	st := s.Stats()
	if st.WriteErrors != 5 || st.Entries != 1 {
		t.Fatalf("after five failed puts: %+v", st)
	}
	books(t, s)
	d.fail = nil
	mustPut(t, s, keyOf(2), nil, pattern(keyOf(2), 'p', 0, 100_000))
}

func TestReadErrorIsAMiss(t *testing.T) {
	d := newMemFolder(t, true)
	s := mustOpen(t, d, Options{Budget: mib})
	mustPut(t, s, keyOf(1), nil, pattern(keyOf(1), 'p', 0, 1000))
	d.only(t).bad = true
	if _, _, ok := fetch(t, s, keyOf(1)); ok {
		t.Fatal("read what cannot be read")
	}
	if st := s.Stats(); st.ReadErrors != 1 || st.Misses != 1 || st.Entries != 0 {
		t.Fatalf("after a failed read: %+v", st)
	}
	d.only(t).bad = false
	mustPut(t, s, keyOf(1), nil, pattern(keyOf(1), 'p', 0, 1000))
	if _, _, ok := fetch(t, s, keyOf(1)); !ok {
		t.Fatal("a record put anew is not there")
	}
	books(t, s)
}

// A Put that cannot give back the space of what went before fails: it would evict more and more without freeing any.
func TestPutFailsWhileNothingCanBeErased(t *testing.T) {
	d := newMemFolder(t, true)
	s := mustOpen(t, d, Options{Budget: mib})
	mustPut(t, s, keyOf(1), nil, pattern(keyOf(1), 'p', 0, 1000))
	d.fail = func(op string) error {
		if op == "punch" {
			return syscall.EIO
		}
		return nil
	}
	mustPut(t, s, keyOf(1), nil, pattern(keyOf(1), 'p', 1, 1000)) // the old one stays, to be erased
	if err := s.Put(keyOf(2), nil, [][]byte{pattern(keyOf(2), 'p', 0, 1000)}); !errors.Is(err, syscall.EIO) {
		t.Errorf("put while nothing can be erased: %v", err)
	}
	if _, ok := s.Has(keyOf(2)); ok {
		t.Error("a record whose put failed is there")
	}
	if st := s.Stats(); st.Entries != 1 || st.Evictions != 0 || st.WriteErrors == 0 {
		t.Errorf("after it: %+v", st)
	}
	d.fail = nil
	mustPut(t, s, keyOf(2), nil, pattern(keyOf(2), 'p', 0, 1000))
	d.cut = true
	books(t, s)
}

// A disk that fails every write, and then every read, is logged once each. What works again is logged, too.
func TestFailuresAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	d := newMemFolder(t, true)
	s := mustOpen(t, d, Options{Budget: 2 * mib, Segment: 256 << 10, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	payload := [][]byte{make([]byte, 5000)}
	lines := func(what string, want int) {
		t.Helper()
		if n := strings.Count(log.String(), "\n"); n != want {
			t.Errorf("%s: %d lines were logged, want %d:\n%s", what, n, want, &log)
		}
	}
	put := func(from int) (errs int) {
		for k := from; k < from+20; k++ {
			if s.Put(keyOf(k), nil, payload) != nil {
				errs++
			}
		}
		return errs
	}
	if n := put(0); n > 0 || s.Failing() != nil {
		t.Fatalf("%d errors, %v", n, s.Failing())
	}
	lines("in order", 0)
	d.fail = func(op string) error { return syscall.EIO }
	if n := put(10); n != 20 || !errors.Is(s.Failing(), syscall.EIO) {
		t.Errorf("%d errors, %v", n, s.Failing())
	}
	lines("writes fail", 1)
	d.fail = nil
	if n := put(10); n > 0 || s.Failing() != nil {
		t.Errorf("%d errors, %v", n, s.Failing())
	}
	lines("writes work again", 2)
	for _, f := range d.files {
		f.bad = true
	}
	for k := range 15 {
		if _, _, ok := fetch(t, s, keyOf(k)); ok {
			t.Fatal("read from a disk that fails")
		}
	}
	if !errors.Is(s.Failing(), syscall.EIO) || s.Stats().ReadErrors != 15 {
		t.Errorf("%v after %d errors", s.Failing(), s.Stats().ReadErrors)
	}
	lines("reads fail", 3)
	for _, f := range d.files {
		f.bad = false
	}
	if _, _, ok := fetch(t, s, keyOf(17)); !ok || s.Failing() != nil {
		t.Errorf("found %v, %v", ok, s.Failing())
	}
	lines("reads work again", 4)
}
