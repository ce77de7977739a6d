package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/embed"
	"grebe/internal/cli"
)

// Rows come from all kinds of files into a table in Pebble; a bad file is refused with its place.
func TestTableImport(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cfg := write("grebe.yaml", []byte("models: [{path: m}]\ndata_dir: data\ntables: [{name: items, dim: 2}]\n"))
	header := "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }\n"
	npy := append([]byte("\x93NUMPY\x01\x00"), byte(len(header)), 0)
	npy = append(append(npy, header...), embed.Bytes([]float32{1, 2, 3, 4})...)
	run1 := func(args ...string) (int, string) {
		var out bytes.Buffer
		code := run(append([]string{"table", "import", "items"}, args...),
			&cli.World{Ctx: t.Context(), Stdout: &out, Stderr: &out})
		return code, out.String()
	}
	for _, args := range [][]string{
		{write("a.npy", npy), "-c", cfg},
		{write("b.f32", embed.Bytes([]float32{5, 6, 7, 8})), "-c", cfg, "--first-key", "10"},
		{write("c.ndjson", []byte("{\"key\": 1, \"row\": [9, 9]}\n\n{\"key\": 20, \"row\": [1, 1]}")), "-c", cfg},
	} {
		if code, out := run1(args...); code != cli.Done || !strings.Contains(out, "2 rows") {
			t.Fatalf("%v: exit code %d: %s", args, code, out)
		}
	}
	for file, want := range map[string]string{
		write("d.npy", npy[:20]): "EOF", write("e.f32", []byte("12345")): "whole number", write("f.txt", nil): ".npy, .f32",
		write("cut.npy", npy[:len(npy)-8]):                                   "cut.npy: the header says 2 rows",
		write("more.npy", append(slices.Clone(npy), 1, 2, 3, 4, 5, 6, 7, 8)): "2 rows",
		write("null.ndjson", []byte("{\"key\": 0, \"row\": [7, null]}\n")):   "line 1: the row has null",
		write("g.ndjson", []byte("{\"key\": 1, \"row\": [9]}\n")):            "line 1",
		write("h.ndjson", []byte("\n{\"row\": [9, 9]}\n")):                   "line 2",
	} {
		if code, out := run1(file, "-c", cfg); code == cli.Done || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d, want %q: %s", file, code, want, out)
		}
	}
	tables, err := embed.OpenTables(filepath.Join(dir, "data", "tables"),
		[]embed.Spec{{Name: "items", Store: "pebble", Dim: 2}})
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	out := make([]float32, 10)
	tables.Table("items").Gather(t.Context(), []uint64{0, 1, 10, 11, 20}, embed.Bytes(out))
	if want := []float32{1, 2, 9, 9, 5, 6, 7, 8, 1, 1}; !slices.Equal(out, want) {
		t.Errorf("rows %v, want %v", out, want)
	}
}
