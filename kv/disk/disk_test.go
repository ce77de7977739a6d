package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"grebe/plan"
)

const mib = 1 << 20

func keyOf(n int) (k plan.Key) {
	binary.LittleEndian.PutUint64(k[:], uint64(n)*0x9e3779b97f4a7c15)
	binary.LittleEndian.PutUint64(k[24:], uint64(n))
	return k
}

// pattern fills n bytes that only this key, kind and generation have. No byte is zero.
func pattern(key plan.Key, kind byte, gen, n int) []byte {
	var seed [32]byte
	copy(seed[:], key[:])
	seed[9] ^= kind
	binary.LittleEndian.PutUint32(seed[10:], uint32(gen))
	r := rand.NewChaCha8(seed)
	b := make([]byte, n)
	_, _ = r.Read(b) // never fails
	for i := range b {
		b[i] |= 1
	}
	return b
}

// cutUp returns b in up to four pieces.
func cutUp(r *rand.Rand, b []byte) [][]byte {
	var out [][]byte
	for len(out) < 3 && len(b) > 1 {
		n := r.IntN(len(b))
		out = append(out, b[:n])
		b = b[n:]
	}
	return append(out, b)
}

// fetch gets a record into fresh memory.
func fetch(t *testing.T, s *Store, key plan.Key) (meta, payload []byte, ok bool) {
	t.Helper()
	meta, ok, err := s.Get(key, func(_ []byte, n int64) ([][]byte, error) {
		payload = make([]byte, n)
		return [][]byte{payload[:n/3], payload[n/3:]}, nil
	})
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	return meta, payload, ok
}

func mustPut(t *testing.T, s *Store, key plan.Key, meta, payload []byte) {
	t.Helper()
	if err := s.Put(key, meta, [][]byte{payload}); err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t *testing.T, d folder, opt Options) *Store {
	t.Helper()
	if err := opt.validate(); err != nil {
		t.Fatal(err)
	}
	s, err := open(d, opt)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

func openDir(t *testing.T, path string, opt Options) *Store {
	t.Helper()
	s, err := Open(path, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// books checks that the store's accounts are those of its index and, in memory, of the files.
func books(t *testing.T, s *Store) {
	t.Helper()
	var live int64
	n := 0
	s.mu.Lock()
	held := s.lingering
	for id := s.index.oldest(); id != 0; id = s.index.at(id).newer {
		live += s.index.at(id).size()
		n++
	}
	for _, seg := range s.segs {
		held += s.holds(seg)
	}
	s.mu.Unlock()
	st := s.Stats()
	if st.Entries != n || st.LiveBytes != live || st.DiskBytes != held {
		t.Fatalf("stats %+v, want %d entries, %d live, %d on disk", st, n, live, held)
	}
	if st.DiskBytes > s.opt.Budget {
		t.Fatalf("%d bytes on disk, budget %d", st.DiskBytes, s.opt.Budget)
	}
	if d, ok := s.dir.(*memFolder); ok {
		if got := d.held(); got > st.DiskBytes || got < st.DiskBytes && !d.cut {
			t.Fatalf("files hold %d bytes, the store says %d", got, st.DiskBytes)
		}
	}
}

func TestPutGetReopen(t *testing.T) {
	dir := t.TempDir()
	opt := Options{Budget: 8 * mib, Segment: mib}
	s := openDir(t, dir, opt)
	sizes := []int{0, 1, 63, 64, 4000, 4096, directPayload - 1, directPayload, directPayload + 1, 300_000, 1_500_000}
	r := rand.New(rand.NewPCG(1, 1))
	for i, n := range sizes {
		if err := s.Put(keyOf(i), pattern(keyOf(i), 'm', 0, i*100), cutUp(r, pattern(keyOf(i), 'p', 0, n))); err != nil {
			t.Fatal(err)
		}
	}
	check := func() {
		t.Helper()
		for i, n := range sizes {
			meta, payload, ok := fetch(t, s, keyOf(i))
			if !ok || !bytes.Equal(meta, pattern(keyOf(i), 'm', 0, i*100)) ||
				!bytes.Equal(payload, pattern(keyOf(i), 'p', 0, n)) {
				t.Fatalf("record %d of %d bytes: found %v, or wrong", i, n, ok)
			}
			if size, ok := s.Has(keyOf(i)); !ok || size != int64(n) {
				t.Fatalf("record %d: has says %d %v, want %d", i, size, ok, n)
			}
		}
		seen := 0
		s.Range(func(key plan.Key, meta []byte, size int64) bool { seen++; return true })
		if seen != len(sizes) {
			t.Fatalf("range saw %d records, want %d", seen, len(sizes))
		}
		books(t, s)
	}
	check()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openDir(t, dir, opt)
	check()
	if st := s.Stats(); st.TornRecords+st.StaleRecords+st.ChecksumFailures != 0 {
		t.Fatalf("damage in a store closed in order: %+v", st)
	}
}

func TestDirectoryHasOneOwner(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, dir, Options{Budget: mib})
	if _, err := Open(dir, Options{Budget: mib}); !errors.Is(err, ErrInUse) {
		t.Fatalf("second open: %v, want ErrInUse", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openDir(t, dir, Options{Budget: mib})
}

func TestOtherVersionIsReclaimed(t *testing.T) {
	for _, holes := range []bool{true, false} {
		d := newMemFolder(t, holes)
		s := mustOpen(t, d, Options{Budget: 2 * mib, Segment: 256 << 10})
		for i := range 20 {
			mustPut(t, s, keyOf(i), nil, pattern(keyOf(i), 'p', 0, 50_000))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, d, Options{Budget: 2 * mib, Segment: 256 << 10, Version: [32]byte{1}})
		st := s.Stats()
		if st.Entries != 0 || st.StaleRecords != 20 || st.LiveBytes != 0 || st.DiskBytes > 256<<10 {
			t.Fatalf("holes %v: after a change of version: %+v", holes, st)
		}
		for i := range 20 {
			if bytes.Contains(d.all(), pattern(keyOf(i), 'p', 0, 50_000)[:64]) {
				t.Fatalf("holes %v: bytes of another version are still there", holes)
			}
		}
		books(t, s)
	}
}

// Records of both versions are found until the next start, which takes over those of its own.
func TestRecordsOfTwoVersions(t *testing.T) {
	d := newMemFolder(t, true)
	s := mustOpen(t, d, Options{Budget: 2 * mib, Segment: 256 << 10})
	mustPut(t, s, keyOf(1), nil, pattern(keyOf(1), 'p', 0, 5000))
	if err := s.PutAs([32]byte{1}, keyOf(2), nil, [][]byte{pattern(keyOf(2), 'p', 0, 5000)}); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 2; i++ {
		if _, ok := s.Has(keyOf(i)); !ok {
			t.Errorf("record %d is gone", i)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, d, Options{Budget: 2 * mib, Segment: 256 << 10, Version: [32]byte{1}})
	if st := s.Stats(); st.Entries != 1 || st.StaleRecords != 1 {
		t.Errorf("after a start of the new version: %+v", st)
	}
	books(t, s)
}

func TestSmallerBudgetEvictsOldest(t *testing.T) {
	d := newMemFolder(t, true)
	s := mustOpen(t, d, Options{Budget: 4 * mib, Segment: 512 << 10})
	for i := range 30 {
		mustPut(t, s, keyOf(i), nil, pattern(keyOf(i), 'p', 0, 100_000))
	}
	_ = s.Close()
	s = mustOpen(t, d, Options{Budget: mib, Segment: 256 << 10})
	books(t, s)
	st := s.Stats()
	if st.Entries < 8 || st.Evictions != uint64(30-st.Entries) {
		t.Fatalf("after shrinking: %+v", st)
	}
	for i := range 30 {
		if _, ok := s.Has(keyOf(i)); ok != (i >= 30-st.Entries) {
			t.Fatalf("record %d there: %v; %d newest should be", i, ok, st.Entries)
		}
	}
}

func TestTooLarge(t *testing.T) {
	s := mustOpen(t, newMemFolder(t, true), Options{Budget: mib})
	mustPut(t, s, keyOf(1), nil, make([]byte, 1000))
	if err := s.Put(keyOf(2), nil, [][]byte{make([]byte, mib-block)}); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("put of more than the budget: %v", err)
	}
	if _, ok := s.Has(keyOf(1)); !ok {
		t.Fatal("a refused put evicted")
	}
	if err := s.Put(keyOf(2), make([]byte, MaxMeta+1), nil); err == nil {
		t.Fatal("too much meta was taken")
	}
	mustPut(t, s, keyOf(3), make([]byte, block-headerSize), make([]byte, mib-2*block)) // exactly all of it
	books(t, s)
	if st := s.Stats(); st.DiskBytes != mib || st.Entries != 1 {
		t.Fatalf("a record of the whole budget: %+v", st)
	}
}

// Every file is searched for bytes of records that were deleted, evicted, replaced, or damaged.
func TestDeleteLeavesNoBytes(t *testing.T) {
	dir := t.TempDir()
	s := openDir(t, dir, Options{Budget: 4 * mib, Segment: mib})
	gone := func(i, gen int) {
		t.Helper()
		for kind, n := range map[byte]int{'m': 300, 'p': 200_000} {
			b := pattern(keyOf(i), kind, gen, n)
			for at := 0; at+48 <= n; at += n/7 + 1 {
				searchFiles(t, dir, b[at:at+48], fmt.Sprintf("record %d.%d", i, gen))
			}
		}
	}
	put := func(i, gen int) {
		mustPut(t, s, keyOf(i), pattern(keyOf(i), 'm', gen, 300), pattern(keyOf(i), 'p', gen, 200_000))
	}
	for i := range 40 { // evicts more than half
		put(i, 0)
	}
	put(39, 1) // replaces
	if err := s.Delete(keyOf(0), keyOf(38), keyOf(39), keyOf(1000)); err != nil {
		t.Fatal(err)
	}
	gone(0, 0)
	gone(38, 0)
	gone(39, 0)
	gone(39, 1)
	if _, _, ok := fetch(t, s, keyOf(38)); ok {
		t.Fatal("deleted record was found")
	}
	if _, _, ok := fetch(t, s, keyOf(37)); !ok {
		t.Fatal("neighbour of a deleted record is gone")
	}
	books(t, s)
	if on := allocated(t, dir); on > s.Stats().DiskBytes+64<<10 && s.punch {
		t.Fatalf("files take %d bytes of disk, the store says %d", on, s.Stats().DiskBytes)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openDir(t, dir, Options{Budget: 4 * mib, Segment: mib})
	if _, ok := s.Has(keyOf(38)); ok {
		t.Fatal("deleted record came back")
	}
}

func searchFiles(t *testing.T, dir string, b []byte, what string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		data, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.Index(data, b); i >= 0 {
			t.Fatalf("bytes of %s are in %s at %d", what, filepath.Base(n), i)
		}
	}
}

// allocated returns the space of the files, which on some file systems includes their own books.
func allocated(t *testing.T, dir string) (n int64) {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	for _, name := range names {
		var st syscall.Stat_t
		if err := syscall.Stat(name, &st); err != nil {
			t.Fatal(err)
		}
		n += st.Blocks * 512
	}
	return n
}

func TestConcurrentUse(t *testing.T) {
	opt := Options{Budget: 2 * mib, Segment: 256 << 10}
	for _, holes := range []bool{true, false} {
		d := newMemFolder(t, holes)
		d.budget = opt.Budget
		useConcurrently(t, mustOpen(t, d, opt), 150)
	}
	useConcurrently(t, openDir(t, t.TempDir(), opt), 80)
}

func useConcurrently(t *testing.T, s *Store, steps int) {
	t.Helper()
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(g)))
			for range steps {
				concurrentStep(t, s, r)
			}
		})
	}
	wg.Wait()
	if st := s.Stats(); st.ChecksumFailures+st.ReadErrors != 0 || st.Evictions == 0 {
		t.Fatalf("readers met damage, or nothing was evicted: %+v", st)
	}
	books(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func concurrentStep(t *testing.T, s *Store, r *rand.Rand) {
	i := r.IntN(60)
	key, n := keyOf(i), 1000+i*2000
	switch r.IntN(8) {
	case 0, 1, 2:
		err := s.Put(key, pattern(key, 'm', 0, 40), cutUp(r, pattern(key, 'p', 0, n)))
		if err != nil && !errors.Is(err, ErrNoRoom) {
			t.Error(err)
		}
	case 3:
		if r.IntN(3) > 0 {
			return
		}
		if err := s.Delete(key, keyOf(i+1)); err != nil {
			t.Error(err)
		}
	case 4:
		s.Range(func(key plan.Key, meta []byte, _ int64) bool {
			if !bytes.Equal(meta, pattern(key, 'm', 0, 40)) {
				t.Error("range gave wrong meta")
			}
			return r.IntN(10) > 0
		})
	default:
		meta, payload, ok := fetch(t, s, key)
		if ok && (!bytes.Equal(meta, pattern(key, 'm', 0, 40)) || !bytes.Equal(payload, pattern(key, 'p', 0, n))) {
			t.Error("get gave wrong bytes")
		}
	}
}

func TestReaderOfEvictedRecordMisses(t *testing.T) {
	s := mustOpen(t, newMemFolder(t, true), Options{Budget: mib})
	mustPut(t, s, keyOf(1), nil, pattern(keyOf(1), 'p', 0, 100_000))
	_, ok, err := s.Get(keyOf(1), func(_ []byte, n int64) ([][]byte, error) {
		for i := range 20 { // between the read of the meta and that of the payload
			mustPut(t, s, keyOf(10+i), nil, pattern(keyOf(10+i), 'p', 0, 100_000))
		}
		return [][]byte{make([]byte, n)}, nil
	})
	if ok || err != nil {
		t.Fatalf("read of a record evicted meanwhile: %v, %v", ok, err)
	}
	if st := s.Stats(); st.ChecksumFailures != 0 || st.Misses != 1 {
		t.Fatalf("it counts as %+v, want one miss", st)
	}
}

func TestPlaceErrorIsReturned(t *testing.T) {
	s := mustOpen(t, newMemFolder(t, true), Options{Budget: mib})
	mustPut(t, s, keyOf(1), []byte("m"), []byte("payload"))
	no := errors.New("no memory")
	if _, ok, err := s.Get(keyOf(1), func([]byte, int64) ([][]byte, error) { return nil, no }); ok || !errors.Is(err, no) {
		t.Fatalf("place's error: %v %v", ok, err)
	}
	if _, ok, err := s.Get(keyOf(1), func([]byte, int64) ([][]byte, error) { return [][]byte{{0}}, nil }); ok ||
		err == nil {
		t.Fatal("too small a place was taken")
	}
	if _, _, ok := fetch(t, s, keyOf(1)); !ok {
		t.Fatal("record is gone after place failed")
	}
}

// Old segments with one hot record each must not pile up.
func TestFewSegments(t *testing.T) {
	for _, holes := range []bool{true, false} {
		d := newMemFolder(t, holes)
		d.budget = 4 * mib
		s := mustOpen(t, d, Options{Budget: d.budget, Segment: 256 << 10})
		var hot []int
		for i := range 600 {
			mustPut(t, s, keyOf(i), nil, pattern(keyOf(i), 'p', 0, 20_000))
			if i%12 == 0 && len(hot) < 60 {
				hot = append(hot, i)
			}
			for _, h := range hot {
				fetch(t, s, keyOf(h))
			}
		}
		st := s.Stats()
		if st.Segments > s.maxSegments+1 || st.Compactions == 0 {
			t.Fatalf("holes %v: %d segments, want at most %d: %+v", holes, st.Segments, s.maxSegments+1, st)
		}
		kept := slices.DeleteFunc(slices.Clone(hot), func(h int) bool { _, ok := s.Has(keyOf(h)); return !ok })
		if len(kept) < len(hot) {
			t.Fatalf("holes %v: %d of %d records in constant use were evicted", holes, len(hot)-len(kept), len(hot))
		}
		books(t, s)
	}
}
