package embed_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"grebe/embed"
)

func TestTables(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "rows.f32")
	if err := os.WriteFile(file, embed.Bytes([]float32{1, 2, 3, 4, 5, 6, 7, 8}), 0o600); err != nil {
		t.Fatal(err)
	}
	tables, err := embed.OpenTables(filepath.Join(dir, "tables"), []embed.Spec{
		{Name: "items", Store: "pebble", Dim: 4, Cache: 1 << 16, Default: []float32{9, 9, 9, 9}},
		{Name: "users", Store: "pebble", Dim: 2, Cache: 1 << 16, Policy: "lru"},
		{Name: "places", Store: "file", File: file, Dim: 4},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := tables.Names(); !slices.Equal(got, []string{"items", "places", "users"}) {
		t.Errorf("tables %v", got)
	}
	out := make([]float32, 8)
	items := tables.Table("items")
	if err := items.Put(t.Context(), []uint64{7}, embed.Bytes([]float32{1, 2, 3, 4})); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if items.Gather(t.Context(), []uint64{7, 8}, embed.Bytes(out)); !slices.Equal(out,
			[]float32{1, 2, 3, 4, 9, 9, 9, 9}) {
			t.Errorf("rows of items: %v", out)
		}
	}
	if s := items.Stats(); s.Cache.Hits != 1 || s.Lookups != 4 || s.Missing != 2 {
		t.Errorf("counted %+v", s)
	}
	if tables.Table("places").Gather(t.Context(), []uint64{1}, embed.Bytes(out[:4])); !slices.Equal(out[:4],
		[]float32{5, 6, 7, 8}) {
		t.Errorf("row of places: %v", out[:4])
	}
	if tables.Table("none") != nil {
		t.Error("a table that nobody named")
	}
	if err := errors.Join(tables.Sync(), tables.Close()); err != nil {
		t.Error(err)
	}
}

func TestSpecs(t *testing.T) {
	for _, s := range []embed.Spec{
		{Name: "", Store: "pebble", Dim: 4}, {Name: "a/b", Store: "pebble", Dim: 4}, {Name: "a", Store: "pebble"},
		{Name: "a", Store: "disk", Dim: 4},
		{Name: "a", Store: "file", Dim: 4}, {Name: "a", Store: "redis", Dim: 4},
		{Name: "a", Store: "pebble", Dim: 3, Cache: 1},
		{Name: "a", Store: "pebble", Dim: 4, Default: []float32{1}},
	} {
		if tables, err := embed.OpenTables(t.TempDir(), []embed.Spec{s}); err == nil {
			t.Errorf("%+v: no error", s)
			tables.Close()
		}
	}
	if _, err := embed.OpenTables(t.TempDir(), []embed.Spec{
		{Name: "a", Store: "pebble", Dim: 4}, {Name: "a", Store: "pebble", Dim: 4}}); err == nil {
		t.Error("two tables of one name: no error")
	}
}
