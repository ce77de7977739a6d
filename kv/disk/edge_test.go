package disk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"grebe/plan"
)

// A closed store does nothing any more and says so.
func TestClosedStoreRefuses(t *testing.T) {
	s := openDir(t, t.TempDir(), Options{Budget: mib})
	mustPut(t, s, keyOf(1), []byte("meta"), []byte("payload"))
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := s.Get(keyOf(1), func([]byte, int64) ([][]byte, error) { return nil, nil })
	for op, err := range map[string]error{
		"put": s.Put(keyOf(2), nil, nil), "get": err, "delete": s.Delete(keyOf(1)), "sync": s.Sync(),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", op, err)
		}
	}
	if _, ok := s.Has(keyOf(1)); ok {
		t.Error("it has a record")
	}
	if _, _, ok := s.Stat(keyOf(1)); ok {
		t.Error("it knows a record's meta")
	}
	s.Range(func(plan.Key, []byte, int64) bool { t.Error("it lists a record"); return true })
}

// Options are checked at their borders, and have the defaults that they promise.
func TestOptions(t *testing.T) {
	const gib, tib = 1 << 30, 1 << 40
	for _, c := range []struct{ budget, segment, want int64 }{
		{mib - 1, 0, -1}, {mib, 0, mib / 4}, {16 * tib, 0, tib / 16}, {16*tib + 1, 0, -1}, {mib, -1, -1},
		{gib, 0, 64 << 20}, {64 * gib, 0, 256 << 20}, {gib, 100_000, 98304}, {gib, 1, 64 << 10}, {gib, gib, gib / 4},
	} {
		o := Options{Budget: c.budget, Segment: c.segment}
		err := o.validate()
		if (err != nil) != (c.want < 0) || err == nil && (o.Segment != c.want || o.Logger == nil) {
			t.Errorf("budget %d, segments of %d: %d, %v, want %d", c.budget, c.segment, o.Segment, err, c.want)
		}
	}
	if _, err := Open(t.TempDir(), Options{}); err == nil {
		t.Error("a store without a budget was opened")
	}
}

// A record's meta has up to 64 KiB.
func TestMetaHasALimit(t *testing.T) {
	s := mustOpen(t, newMemFolder(t, true), Options{Budget: mib})
	mustPut(t, s, keyOf(1), pattern(keyOf(1), 'm', 0, 65536), nil)
	if meta, _, ok := s.Stat(keyOf(1)); !ok || !bytes.Equal(meta, pattern(keyOf(1), 'm', 0, 65536)) {
		t.Error("the largest meta is not there")
	}
	if err := s.Put(keyOf(2), make([]byte, 65537), nil); err == nil {
		t.Error("a larger meta was taken")
	}
}

// Of two records of a key the one that was put later counts, wherever they lie.
func TestTheLaterRecordCounts(t *testing.T) {
	for _, seq := range []uint64{1, 2, 3, 9} {
		d := newMemFolder(t, true)
		s := mustOpen(t, d, Options{Budget: mib})
		mustPut(t, s, keyOf(2), nil, nil)
		mustPut(t, s, keyOf(1), nil, pattern(keyOf(1), 'p', 0, 1000)) // sequence 2
		seg := s.segments()[0]
		other := header{nonce: seg.nonce, offset: uint64(seg.end), seq: seq, key: keyOf(1)}
		other.metaCRC, other.payloadCRC = checksum(nil), checksum(nil)
		b := make([]byte, block)
		other.encode(b)
		if _, err := seg.f.WriteAt(b, seg.end); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, d.copyOf(), Options{Budget: mib})
		if size, ok := s.Has(keyOf(1)); !ok || (size == 0) != (seq > 2) {
			t.Errorf("behind sequence 2, sequence %d: a payload of %d bytes, %v", seq, size, ok)
		}
		if st := s.Stats(); st.StaleRecords != 1 || st.Entries != 2 {
			t.Errorf("sequence %d: %+v, want one stale record of three", seq, st)
		}
		mustPut(t, s, keyOf(3), nil, nil)
		if s.seq != max(seq, 2)+1 {
			t.Errorf("after sequence %d the next is %d", seq, s.seq)
		}
		books(t, s)
	}
}

// lockedFolder fails a test in which the folder changes while another could change it too.
func lockedFolder(t *testing.T, holes bool, s **Store) *memFolder {
	d := newMemFolder(t, holes)
	d.fail = func(op string) error {
		if *s != nil && (*s).w.TryLock() {
			(*s).w.Unlock()
			t.Errorf("a %s while nobody holds the store's lock for writes", op)
		}
		return nil
	}
	return d
}

// Only one at a time changes files.
func TestFilesChangeUnderTheLock(t *testing.T) {
	for _, holes := range []bool{true, false} {
		var s *Store
		d := lockedFolder(t, holes, &s)
		s = mustOpen(t, d, Options{Budget: mib, Segment: 128 << 10})
		for i := range 60 {
			mustPut(t, s, keyOf(i%20), nil, pattern(keyOf(i%20), 'p', i, 20_000))
			if i%7 == 0 {
				if err := s.Delete(keyOf(i % 20)); err != nil {
					t.Fatal(err)
				}
			}
			if i%11 == 0 {
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
			}
		}
		mustPut(t, s, keyOf(1), nil, nil)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Where copies cannot be made durable a compaction changes nothing, and leaves no bytes that a later Delete misses.
func TestFailedCompactionLeavesNothing(t *testing.T) {
	for _, holes := range []bool{true, false} {
		for _, op := range []string{"sync", "write", "create"} {
			d := newMemFolder(t, holes)
			s := mustOpen(t, d, Options{Budget: 4 * mib, Segment: 256 << 10})
			for k := range 10 {
				mustPut(t, s, keyOf(k), nil, pattern(keyOf(k), 'p', 0, 70_000))
			}
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			ops := 0
			d.fail = func(o string) error {
				if o == op {
					if ops++; ops > 2 || op != "write" {
						return syscall.EIO
					}
				}
				return nil
			}
			s.w.Lock()
			err := s.compact(s.segments()[0])
			s.w.Unlock()
			if !errors.Is(err, syscall.EIO) {
				t.Fatalf("holes=%v, a %s that fails: %v", holes, op, err)
			}
			d.fail = nil
			for k := range 10 {
				if _, p, ok := fetch(t, s, keyOf(k)); !ok || !bytes.Equal(p, pattern(keyOf(k), 'p', 0, 70_000)) {
					t.Fatalf("holes=%v, a %s that fails: record %d is lost", holes, op, k)
				}
			}
			for k := range 10 {
				if err := s.Delete(keyOf(k)); err != nil {
					t.Fatal(err)
				}
				if bytes.Contains(d.all(), pattern(keyOf(k), 'p', 0, 70_000)[:64]) {
					t.Errorf("holes=%v, a %s that fails: bytes of record %d are there after its deletion", holes, op, k)
				}
			}
		}
	}
}

// A record that a reader drops while it is copied does not come back, and its copy is erased with it.
func TestCompactionOfARecordThatIsDropped(t *testing.T) {
	d := newMemFolder(t, true)
	opt := Options{Budget: 4 * mib, Segment: 256 << 10}
	s := mustOpen(t, d, opt)
	for k := range 10 {
		mustPut(t, s, keyOf(k), nil, pattern(keyOf(k), 'p', 0, 70_000))
	}
	d.fail = func(op string) error {
		if op == "sync" { // the copies are made
			s.mu.Lock()
			if id := s.index.find(new(keyOf(1))); id != 0 {
				s.forget(id)
			}
			s.mu.Unlock()
		}
		return nil
	}
	s.w.Lock()
	err := s.compact(s.segments()[0])
	s.w.Unlock()
	d.fail = nil
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(keyOf(1)); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(d.all(), pattern(keyOf(1), 'p', 0, 70_000)[:64]) {
		t.Error("its bytes are there after its deletion")
	}
	s = mustOpen(t, d.copyOf(), opt)
	for k := range 10 {
		if _, ok := s.Has(keyOf(k)); ok != (k != 1) {
			t.Errorf("record %d: %v", k, ok)
		}
	}
}

// A record that cannot be read is dropped by a compaction, and counted as evicted; the others stay.
func TestCompactionDropsWhatCannotBeRead(t *testing.T) {
	d := newMemFolder(t, true)
	s := mustOpen(t, d, Options{Budget: 4 * mib, Segment: 256 << 10})
	for k := range 8 {
		mustPut(t, s, keyOf(k), nil, pattern(keyOf(k), 'p', 0, 70_000))
	}
	first := s.segments()[0]
	in := first.records
	first.f.(*memFile).bad = true
	s.w.Lock()
	err := s.compact(first)
	s.w.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	st := s.Stats()
	if left := 8 - int(in); st.Entries != left || st.Evictions != uint64(in) || st.Compactions != 1 {
		t.Errorf("%+v, want %d entries, %d evicted", st, left, in)
	}
	books(t, s)
}

// partly is a folder whose list or files cannot be read.
type partly struct {
	*memFolder
	list error
	open map[string]error
}

func (p *partly) List() ([]string, error) {
	if p.list != nil {
		return nil, p.list
	}
	return p.memFolder.List()
}

func (p *partly) Open(name string) (file, error) {
	if err := p.open[name]; err != nil {
		return nil, err
	}
	return p.memFolder.Open(name)
}

// A folder that cannot be read is an error, not an empty store: what is in it would be erased or written over.
func TestFolderThatCannotBeRead(t *testing.T) {
	d := newMemFolder(t, true)
	opt := Options{Budget: 4 * mib, Segment: 128 << 10}
	s := mustOpen(t, d, opt)
	for k := range 8 {
		mustPut(t, s, keyOf(k), nil, pattern(keyOf(k), 'p', 0, 70_000))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := opt.validate(); err != nil {
		t.Fatal(err)
	}
	last := segmentName(s.nextSeg - 1)
	for what, p := range map[string]*partly{
		"list": {memFolder: d, list: syscall.EIO},
		"open": {memFolder: d, open: map[string]error{last: syscall.EMFILE}},
	} {
		if _, err := open(p, opt); !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.EMFILE) {
			t.Errorf("%s: %v", what, err)
		}
		for name, f := range d.files {
			if f.open != 0 {
				t.Errorf("%s: %s is left open", what, name)
			}
		}
	}
	s = mustOpen(t, d, opt)
	for k := range 8 {
		if _, _, ok := fetch(t, s, keyOf(k)); !ok {
			t.Errorf("record %d is lost", k)
		}
	}
	if _, err := Open(filepath.Join(os.DevNull, "x"), opt); err == nil {
		t.Error("a folder that cannot be made was opened")
	}
}

// Names that are no segment's are left alone.
func TestSegmentNames(t *testing.T) {
	for _, id := range []uint32{1, 255, 1<<32 - 1} {
		if got, ok := segmentID(segmentName(id)); !ok || got != id {
			t.Errorf("segment %d is read as %d, %v", id, got, ok)
		}
	}
	bad := []string{segmentName(0), "x" + segmentName(1), segmentName(1) + "x", "1" + segmentSuffix, lockName, ""}
	for _, name := range bad {
		if id, ok := segmentID(name); ok {
			t.Errorf("%q is taken for segment %d", name, id)
		}
	}
}

// Range stops when it is told to.
func TestRangeStops(t *testing.T) {
	s := mustOpen(t, newMemFolder(t, true), Options{Budget: mib})
	for k := range 5 {
		mustPut(t, s, keyOf(k), []byte{byte(k)}, make([]byte, k))
	}
	if err := s.Delete(keyOf(2)); err != nil {
		t.Fatal(err)
	}
	seen := map[plan.Key]int64{}
	s.Range(func(key plan.Key, meta []byte, size int64) bool {
		if len(meta) != 1 || int64(meta[0]) != size {
			t.Errorf("meta %v of %d bytes", meta, size)
		}
		seen[key] = size
		return true
	})
	if _, ok := seen[keyOf(2)]; ok || len(seen) != 4 {
		t.Errorf("%d records, want the four that are there", len(seen))
	}
	n := 0
	s.Range(func(plan.Key, []byte, int64) bool { n++; return n < 2 })
	if n != 2 {
		t.Errorf("%d records after the second said stop", n)
	}
}
