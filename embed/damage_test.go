package embed_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"grebe/embed"
	"grebe/embed/embedtest"
)

// Rows in damaged blocks are the table's default rows, and counted; rows elsewhere are served, and the process goes on.
// Pebble's own listener ends the process.
func TestRowsInDamagedBlocks(t *testing.T) {
	dir := t.TempDir()
	const n = 4000
	keys := make([]uint64, n)
	var rows []byte
	for i := range keys {
		keys[i] = uint64(i)
		rows = append(rows, embedtest.Row(keys[i], 1, rowBytes)...)
	}
	put := func(write bool) *embed.Tables {
		tables, err := embed.OpenTables(dir, []embed.Spec{
			{Name: "items", Store: "pebble", Dim: rowBytes / 4, Timeout: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		if write {
			if err := tables.Table("items").Put(t.Context(), keys, rows); err != nil {
				t.Fatal(err)
			}
		}
		return tables
	}
	if err := put(true).Close(); err != nil {
		t.Fatal(err)
	}
	if err := put(false).Close(); err != nil { // the log becomes a table
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) != 1 {
		t.Fatal(tables, err)
	}
	data, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	data[100] ^= 1
	if err := os.WriteFile(tables[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	opened := put(false)
	table := opened.Table("items")
	got := make([]byte, len(rows))
	g := table.Gather(t.Context(), keys, got)
	if g.Err != nil || g.Broken == 0 || g.Broken == n || g.Default != g.Broken || g.Fetched != n-g.Broken {
		t.Fatalf("%+v", g)
	}
	zero := make([]byte, rowBytes)
	whole := 0
	for i := range keys {
		switch row := got[i*rowBytes:][:rowBytes]; {
		case bytes.Equal(row, rows[i*rowBytes:][:rowBytes]):
			whole++
		case !bytes.Equal(row, zero):
			t.Fatalf("row %d is neither its own nor the default", i)
		}
	}
	if whole != g.Fetched {
		t.Errorf("%d rows are whole, and %d were fetched", whole, g.Fetched)
	}
	if s := table.Stats(); s.Broken != int64(g.Broken) {
		t.Errorf("%d broken rows are counted, want %d", s.Broken, g.Broken)
	}
	if p := opened.Problems(); len(p) != 1 {
		t.Errorf("problems: %q", p)
	}
	if err := opened.Close(); err != nil {
		t.Error(err)
	}
}

// A mapped file that is cut off under the map costs the rows that are gone: they are default rows and counted, the
// others are served, and a write says that it failed. The fault used to end the process.
func TestRowsOfAFileThatWasCutOff(t *testing.T) {
	const dim, n = 1024, 64 // a page per row
	file := filepath.Join(t.TempDir(), "rows")
	rows := make([]float32, dim*n)
	for i := range rows {
		rows[i] = float32(1 + i/dim)
	}
	if err := os.WriteFile(file, embed.Bytes(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cache := range []int64{0, 1 << 20} {
		if err := os.Truncate(file, 4*dim*n); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, embed.Bytes(rows), 0o600); err != nil {
			t.Fatal(err)
		}
		tables, err := embed.OpenTables(t.TempDir(), []embed.Spec{
			{Name: "f", Store: "file", File: file, Dim: dim, Cache: cache, Timeout: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, 4*dim*10); err != nil {
			t.Fatal(err)
		}
		keys := make([]uint64, n)
		for i := range keys {
			keys[i] = uint64((i * 37) % n)
		}
		got := make([]float32, dim*n)
		g := tables.Table("f").Gather(t.Context(), keys, embed.Bytes(got))
		if g.Err != nil || g.Broken != n-10 || g.Default != n-10 || g.Fetched != 10 {
			t.Errorf("%+v", g)
		}
		for i, k := range keys {
			want := float32(0)
			if k < 10 {
				want = float32(k + 1)
			}
			if got[i*dim] != want || got[i*dim+dim-1] != want {
				t.Errorf("row %d begins with %v, want %v", k, got[i*dim], want)
			}
		}
		if err := tables.Table("f").Put(t.Context(), []uint64{40}, embed.Bytes(got[:dim])); !errors.Is(err,
			embed.ErrUnavailable) {
			t.Errorf("a row that is gone was written: %v", err)
		}
		if err := tables.Table("f").Put(t.Context(), []uint64{4}, embed.Bytes(got[:dim])); err != nil {
			t.Error(err)
		}
		if p := tables.Problems(); len(p) != 1 {
			t.Errorf("problems: %q", p)
		}
		tables.Close() // may say that the file is short
	}
}
