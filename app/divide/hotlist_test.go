package divide

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"grebe/alloc"
	"grebe/embed"
)

func TestHotListsComeBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hot", "items.rows")
	if rows, err := readHot(file, "items"); rows != nil || err != nil {
		t.Errorf("no file: %v, %v", rows, err)
	}
	want := []alloc.Wanted{{Key: 7, Uses: 3}, {Key: 1 << 63, Uses: 1 << 31}}
	if err := writeHot(file, "items", want); err != nil {
		t.Fatal(err)
	}
	if rows, err := readHot(file, "items"); !slices.Equal(rows, want) || err != nil {
		t.Errorf("%v, %v: want %v", rows, err, want)
	}
	if rows, err := readHot(file, "users"); rows != nil || err != nil {
		t.Errorf("the list of another table: %v, %v", rows, err)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		bad := slices.Clone(whole)
		bad[i] ^= 4
		if rows, err := parseHot(bad, "items"); err == nil {
			t.Fatalf("byte %d changed: %v", i, rows)
		}
		if _, err := parseHot(whole[:i], "items"); err == nil {
			t.Fatalf("cut off after %d bytes", i)
		}
	}
}

func FuzzHotList(f *testing.F) {
	f.Add([]byte(hotMagic + "\x01\x00\x00\x00\x01\x00\x00\x00x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if rows, err := parseHot(b, "x"); err == nil && len(rows)*hotRow > len(b) {
			t.Errorf("%d rows of %d bytes", len(rows), len(b))
		}
	})
}

// A cache that is smaller than the list begins with the hottest rows of it.
func TestTheHottestOfAList(t *testing.T) {
	file, list := filepath.Join(t.TempDir(), "items.rows"), make([]alloc.Wanted, 64)
	for i := range list {
		list[i] = alloc.Wanted{Key: uint64(i+1) * 0x9E3779B97F4A7C15, Uses: uint32(i) + 2}
	}
	if err := writeHot(file, "items", list); err != nil {
		t.Fatal(err)
	}
	r := NewRefiller(RefillConfig{Rows: func() int { return 8 }, Most: 256, RowBytes: 8, Name: "items", File: file})
	r.load()
	for i, w := range list {
		if r.plan.Known(w.Key) != (i >= 56) {
			t.Errorf("row %d of 64: it is known: %v", i, i < 56)
		}
	}
}

// A damaged list is no reason not to start.
func TestADamagedHotListIsLeftAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "items.rows")
	if err := os.WriteFile(file, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := NewRefiller(RefillConfig{Rows: func() int { return 64 }, Most: 64, RowBytes: 8, Name: "items", File: file})
	r.load()
	if r.plan.Wants(0) {
		t.Error("rows of a damaged list are wanted")
	}
	r.Gathered(embed.Batch{Hashes: []uint64{9}, Missed: []uint64{9}})
	r.Gathered(embed.Batch{Hashes: []uint64{9}, Missed: []uint64{9}})
	r.save()
	if rows, err := readHot(file, "items"); len(rows) != 1 || err != nil {
		t.Errorf("%v, %v after a row was missed twice", rows, err)
	}
}

// When the boundary moves, rows that had no room are fetched, and only after cached rows have moved to their new
// places.
func TestRefillAfterGrowth(t *testing.T) {
	s := newSystem(t)
	var grown []int
	d, err := New(Config{Pool: s.pool, Rows: s.rows, KV: s.store, Controller: alloc.Static(0.8),
		Grown: func(rows int) { grown = append(grown, rows) }}, 0.3)
	if err != nil {
		t.Fatal(err)
	}
	for d.Fill() {
	}
	before := s.rows.Rows()
	grown = nil
	d.Step()
	for d.Fill() {
	}
	if len(grown) != 1 || grown[0] != s.rows.Rows()-before || grown[0] < 10000 {
		t.Errorf("told of %v rows, and the cache grew from %d to %d", grown, before, s.rows.Rows())
	}
	s.close(t)
}
