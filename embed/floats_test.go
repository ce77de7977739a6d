package embed_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"grebe/embed"
)

// nearest returns the bf16 number nearest to v, found by looking at both neighbours.
func nearest(v float32) float32 {
	below := math.Float32bits(v) &^ 0xFFFF
	a, b := math.Float32frombits(below), math.Float32frombits(below+0x10000)
	da, db := math.Abs(float64(v)-float64(a)), math.Abs(float64(v)-float64(b))
	if da < db || da == db && below>>16&1 == 0 {
		return a
	}
	return b
}

// Rows in bf16 take half the bytes of a store, a cache and a file, and are read as the nearest numbers.
func TestBF16(t *testing.T) {
	const dim, rows = 8, 200
	dir, r := t.TempDir(), rand.New(rand.NewPCG(1, 2))
	values := make([]float32, rows*dim)
	var file []byte
	for i := range values {
		values[i] = float32(r.NormFloat64() * math.Exp(4*r.NormFloat64()))
		file = binary.LittleEndian.AppendUint16(file, uint16(math.Float32bits(nearest(values[i]))>>16))
	}
	const broken = 7
	binary.LittleEndian.PutUint16(file[2*(broken*dim+2):], 0x7F80) // infinite, in a place that is even
	path := filepath.Join(dir, "rows.bf16")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	def := []float32{9, 9, 9, 9, 1, 1, 1, 1}
	tables, err := embed.OpenTables(filepath.Join(dir, "tables"), []embed.Spec{
		{Name: "kept", Store: "pebble", Dim: dim, Format: embed.BF16, Cache: 1 << 16, Default: def},
		{Name: "mapped", Store: "file", File: path, Dim: dim, Format: embed.BF16, Default: def},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	keys := make([]uint64, rows)
	for i := range keys {
		keys[i] = uint64(i)
	}
	kept := tables.Table("kept")
	if kept.RowBytes() != 2*dim || kept.Dim() != dim {
		t.Errorf("rows of %d numbers in %d bytes", kept.Dim(), kept.RowBytes())
	}
	if err := kept.PutFloats(t.Context(), keys, values); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kept", "kept", "mapped"} { // the second time from the cache
		out, known := make([]float32, (rows+1)*dim), make([]bool, rows+1)
		g := tables.Table(name).GatherFloats(t.Context(), append(keys[:rows:rows], 5000), out, known)
		for i, v := range out {
			row, want := i/dim, float32(0)
			own := row < rows && (name != "mapped" || row != broken)
			if want = def[i%dim]; own {
				want = nearest(values[i])
			}
			if v != want || known[row] != own {
				t.Fatalf("%s: number %d of row %d is %v, known %v; want %v", name, i%dim, row, v, known[row], want)
			}
		}
		if name == "mapped" && (g.Broken != 1 || g.Default != 2 || tables.Table(name).Stats().Broken != 1) {
			t.Errorf("%s: %+v", name, g)
		}
	}
	for _, bad := range []float32{float32(math.Inf(1)), float32(math.NaN()), math.MaxFloat32} {
		row := make([]float32, dim)
		row[3] = bad
		if err := kept.PutFloats(t.Context(), []uint64{1}, row); !errors.Is(err, embed.ErrRow) || kept.Fits(row) {
			t.Errorf("%v is written: %v", bad, err)
		}
	}
	for _, s := range []embed.Spec{{Name: "a", Store: "pebble", Dim: 4, Format: "f16"},
		{Name: "a", Store: "pebble", Dim: 6, Format: embed.BF16, Cache: 1}} {
		if s.Validate() == nil {
			t.Errorf("%+v is accepted", s)
		}
	}
}

// TestGatherRows: rows as they are stored are what GatherFloats widens, default rows and rows that are not finite
// included.
func TestGatherRows(t *testing.T) {
	const dim = 12
	r := rand.New(rand.NewPCG(1, 1))
	for _, bf16 := range []bool{false, true} {
		store := embed.NewMemory(300, map[bool]int{false: 4, true: 2}[bf16]*dim)
		def := make([]byte, store.RowBytes())
		def[1] = 0x3F
		table, err := embed.NewTable(store, nil, embed.TableConfig{BF16: bf16, Default: def})
		if err != nil {
			t.Fatal(err)
		}
		var keys []uint64
		for key := range uint64(300) {
			if keys = append(keys, key); key%7 == 0 {
				continue // there is none
			}
			row := make([]float32, dim)
			for i := range row {
				row[i] = float32(r.NormFloat64())
			}
			raw := embed.Bytes(row)
			if bf16 {
				raw = nil
				for _, v := range row {
					raw = binary.LittleEndian.AppendUint16(raw, uint16(math.Float32bits(v)>>16))
				}
				if key%5 == 0 {
					binary.LittleEndian.PutUint16(raw[2*r.IntN(dim):], []uint16{0x7F80, 0xFF80, 0x7FC1}[key%3])
				}
			}
			if err := store.Put(context.Background(), []uint64{key}, raw); err != nil {
				t.Fatal(err)
			}
		}
		floats, known := make([]float32, len(keys)*dim), make([]bool, len(keys))
		want := table.GatherFloats(context.Background(), keys, floats, known)
		raw, got := make([]byte, len(keys)*table.RowBytes()), make([]bool, len(keys))
		if g := table.GatherRows(context.Background(), keys, raw, got); g != want || !slices.Equal(got, known) {
			t.Errorf("bf16 %v: %+v, %v, want %+v, %v", bf16, g, got, want, known)
		}
		for i := range floats {
			bits := math.Float32bits(floats[i])
			if bf16 {
				bits >>= 16
			}
			stored := uint32(0)
			for b := range len(raw) / len(floats) {
				stored |= uint32(raw[i*(len(raw)/len(floats))+b]) << (8 * b)
			}
			if stored != bits {
				t.Fatalf("bf16 %v: row %d, number %d: %x, want %x", bf16, i/dim, i%dim, stored, bits)
			}
		}
	}
}
