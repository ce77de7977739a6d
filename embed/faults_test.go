package embed_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"grebe/embed"
	"grebe/embed/embedtest"
)

// What Put and Delete acknowledged is in the folder's files, without a Sync or a Close: a copy of them is what a killed
// process leaves behind.
func TestFolderOutlivesItsProcess(t *testing.T) {
	dir, left := t.TempDir(), t.TempDir()
	f, err := embed.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := f.Table("items", rowBytes)
	if err != nil {
		t.Fatal(err)
	}
	rows := append(embedtest.Row(1, 1, rowBytes), embedtest.Row(2, 1, rowBytes)...)
	if err := errors.Join(p.Put(t.Context(), []uint64{1, 2}, rows), p.Delete(t.Context(), []uint64{2})); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(left, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	again, err := embed.OpenFolder(left)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if p, err = again.Table("items", rowBytes); err != nil {
		t.Fatal(err)
	}
	found := make([]bool, 2)
	if err := p.Gather(t.Context(), []uint64{1, 2}, rows, found); err != nil || !found[0] || found[1] {
		t.Errorf("rows 1 and 2 after the process was killed: found %v, error %v; want the first alone", found, err)
	}
}

// slowPut is a store whose first Put returns late: after, as the table sees it, what then does.
type slowPut struct {
	embed.Store
	then func()
}

func (s *slowPut) Put(ctx context.Context, keys []uint64, rows []byte) error {
	err := s.Store.Put(ctx, keys, rows)
	if then := s.then; then != nil {
		s.then = nil
		then()
	}
	return err
}

// Of two Puts of a row the store keeps the later one; the cache must not keep the other.
func TestPutsOfOneRowAtOnce(t *testing.T) {
	store := &slowPut{Store: embed.NewMemory(8, rowBytes)}
	defer store.Close()
	table, err := embed.NewTable(store, newCache(t, 64, "lru"), embed.TableConfig{})
	if err != nil {
		t.Fatal(err)
	}
	keys, out := []uint64{1}, make([]byte, rowBytes)
	put := func(version uint64) {
		if err := table.Put(t.Context(), keys, embedtest.Row(1, version, rowBytes)); err != nil {
			t.Error(err)
		}
	}
	put(1)
	table.Gather(t.Context(), keys, out)
	store.then = func() { put(3) }
	put(2)
	for range 2 {
		if table.Gather(t.Context(), keys, out); string(out) != string(embedtest.Row(1, 3, rowBytes)) {
			t.Errorf("the table has row %x, its store version 3", out[:8])
		}
	}
}

// expectBroken gathers rows 1 … 3 of which the second is broken: it alone is the default.
func expectBroken(t *testing.T, store embed.Store) {
	t.Helper()
	def := embedtest.Row(99, 99, rowBytes)
	table, err := embed.NewTable(store, nil, embed.TableConfig{Default: def, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 3*rowBytes)
	g := table.Gather(t.Context(), []uint64{1, 2, 3}, out)
	want := string(embedtest.Row(1, 1, rowBytes)) + string(def) + string(embedtest.Row(3, 1, rowBytes))
	if g.Err != nil || g.Fetched != 2 || g.Default != 1 || string(out) != want {
		t.Errorf("gathered %+v, rows %x; want two rows and one default", g, out)
	}
	if s := table.Stats(); s.Broken != 1 || s.Missing != 0 || s.Failures != 0 {
		t.Errorf("counted %+v, want one broken row", s)
	}
}

func putThree(t *testing.T, store embed.Store) {
	t.Helper()
	for k := range uint64(3) {
		if err := store.Put(t.Context(), []uint64{k + 1}, embedtest.Row(k+1, 1, rowBytes)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRowOfAnotherSizeInRedis(t *testing.T) {
	s := redis(t)
	for _, row := range []string{"short", strings.Repeat("x", rowBytes+1)} {
		store := emptyRedis(t, s)
		defer store.Close()
		putThree(t, store)
		if err := s.Command("SET", `"t:\x00\x00\x00\x00\x00\x00\x00\x02"`, row); err != nil {
			t.Fatal(err)
		}
		expectBroken(t, store)
	}
}

func TestRowOfAnotherSizeInPebble(t *testing.T) {
	for _, row := range [][]byte{make([]byte, 5), make([]byte, rowBytes+1)} {
		dir := t.TempDir()
		f, p := openItems(t, dir)
		putThree(t, p)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		db, err := pebble.Open(dir, &pebble.Options{FormatMajorVersion: pebble.FormatTableFormatV6})
		if err != nil {
			t.Fatal(err)
		}
		name := binary.BigEndian.AppendUint64([]byte("r\x05items"), 2)
		if err := errors.Join(db.Set(name, row, pebble.Sync), db.Close()); err != nil {
			t.Fatal(err)
		}
		f, p = openItems(t, dir)
		expectBroken(t, p)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func openItems(t *testing.T, dir string) (*embed.Folder, *embed.Pebble) {
	t.Helper()
	f, err := embed.OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Table("items", rowBytes)
	if err != nil {
		t.Fatal(err)
	}
	return f, p
}

func TestRowsThatAreNotFinite(t *testing.T) {
	for name, open := range map[string]func(*testing.T) embed.Store{
		"file":   func(t *testing.T) embed.Store { return zeroFile(t) },
		"pebble": emptyFolder,
		"redis":  func(t *testing.T) embed.Store { return emptyRedis(t, redis(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			store := open(t)
			defer store.Close()
			for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				putThree(t, store)
				row := make([]float32, rowBytes/4)
				row[len(row)-1] = float32(x)
				if err := store.Put(t.Context(), []uint64{2}, embed.Bytes(row)); err != nil {
					t.Fatal(err)
				}
				expectBroken(t, store)
			}
		})
	}
}

func zeroFile(t *testing.T) *embed.Memory {
	t.Helper()
	name := filepath.Join(t.TempDir(), "rows")
	if err := os.WriteFile(name, make([]byte, 10*rowBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := embed.OpenFile(name, rowBytes)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A file of rows cannot say that one is gone, so that it would be back after a restart.
func TestFileRefusesDelete(t *testing.T) {
	m := zeroFile(t)
	defer m.Close()
	if err := m.Delete(t.Context(), []uint64{7}); !errors.Is(err, embed.ErrKept) {
		t.Errorf("delete a row of a file: %v, want ErrKept", err)
	}
	found := make([]bool, 1)
	if err := m.Gather(t.Context(), []uint64{7}, make([]byte, rowBytes), found); err != nil || !found[0] {
		t.Errorf("row 7 after that: found %v, error %v", found[0], err)
	}
}

// A cache that comes when its store is connected already hears of changes too: one model may have used the table before
// another caches its rows.
func TestLateCacheBeforeRedis(t *testing.T) {
	server := redis(t)
	store, other := emptyRedis(t, server), emptyRedis(t, server)
	defer store.Close()
	defer other.Close()
	table, err := embed.NewTable(store, nil, embed.TableConfig{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	key, out := []uint64{7}, make([]byte, rowBytes)
	if err := other.Put(t.Context(), key, embedtest.Row(7, 1, rowBytes)); err != nil {
		t.Fatal(err)
	}
	table.Gather(t.Context(), key, out) // connects
	if err := table.SetCache(newCache(t, 64, "lru")); err != nil {
		t.Fatal(err)
	}
	if g := table.Gather(t.Context(), key, out); g.Fetched != 1 {
		t.Fatalf("before the change: %+v", g)
	}
	want := embedtest.Row(7, 2, rowBytes)
	if err := other.Put(t.Context(), key, want); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); string(out) != string(want); table.Gather(t.Context(), key, out) {
		if time.Now().After(end) {
			t.Fatal("the change is not seen")
		}
	}
}
