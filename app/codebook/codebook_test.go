package codebook

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/codes"
	"grebe/compute"
	"grebe/ingest"
	"grebe/model/safetensors"
)

func write(t *testing.T, name string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func from(path string) ingest.ItemFile { return ingest.ItemFile{Path: path} }

// npy returns a NumPy file of numbers.
func npy(kind string, rows, cols int, values []float32) []byte {
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%d, %d), }\n", kind, rows, cols)
	out := binary.LittleEndian.AppendUint16([]byte("\x93NUMPY\x01\x00"), uint16(len(text)))
	out = append(out, text...)
	for _, v := range values {
		switch kind {
		case "<f2":
			out = safetensors.Encode(out, compute.F16, v)
		case "<f4":
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
		case "<f8":
			out = binary.LittleEndian.AppendUint64(out, math.Float64bits(float64(v)))
		}
	}
	return out
}

// halves returns numbers that every format has exactly.
func halves(n int) []float32 {
	random, out := rand.New(rand.NewPCG(1, 1)), make([]float32, n)
	for i := range out {
		out[i] = float32(random.IntN(64)) / 2
	}
	return out
}

func lines(from, to int) []byte {
	var b bytes.Buffer
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "{\"id\":\"i%d\",\"text\":\"item %d\",\"attributes\":{\"a\":[\"x\"]}}\n", i, i)
	}
	return b.Bytes()
}

// coded returns the codes of a file's items, by id.
func coded(t *testing.T, path string) map[string]string {
	t.Helper()
	items, err := ReadItems(t.Context(), from(path))
	if err != nil {
		t.Fatal(err)
	}
	defer items.Close()
	out := map[string]string{}
	err = items.Each(t.Context(), func(m *grebev1.Item) error {
		if m.GetText() != "item "+m.Id[1:] || len(m.Attributes) != 1 {
			t.Errorf("%s lost its text or attributes: %v", m.Id, m)
		}
		out[m.Id] = fmt.Sprint(m.Codes)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Embeddings are the same from every format, and codes the same with any number of threads. Items that are added
// later get codes of their own, and change none.
func TestMake(t *testing.T) {
	dir := t.TempDir()
	const n, dims = 300, 33
	values := halves(n * dims)
	tensors := filepath.Join(dir, "e.safetensors")
	half := safetensors.Encode(nil, compute.BF16, values...)
	err := safetensors.Write(tensors, []safetensors.Named{
		{Name: "e", DType: compute.BF16, Shape: []int{n, dims}, Data: safetensors.Bytes(half)}})
	if err != nil {
		t.Fatal(err)
	}
	items := write(t, filepath.Join(dir, "items.ndjson"), lines(0, n))
	var first map[string]string
	for i, path := range []string{
		write(t, filepath.Join(dir, "f2.npy"), npy("<f2", n, dims, values)),
		write(t, filepath.Join(dir, "f4.npy"), npy("<f4", n, dims, values)),
		write(t, filepath.Join(dir, "f8.npy"), npy("<f8", n, dims, values)), tensors,
	} {
		m := &Make{
			Items: from(items), Out: filepath.Join(dir, "out.ndjson"), Codebook: filepath.Join(dir, "book"), Fresh: true,
			Threads: i + 1,
			Options: codes.Options{Balance: 2}, Rows: (&Embeddings{Path: path}).Rows,
		}
		r, err := m.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.Added != n || r.Kept != 0 || r.Shared != 0 || r.Paths != n || len(r.Levels) != 3 || r.Error <= 0 ||
			r.Error >= 1 {
			t.Errorf("%s: %+v", path, r)
		}
		got := coded(t, m.Out)
		if first == nil {
			first = got
		}
		for id, c := range got {
			if first[id] != c {
				t.Fatalf("%s with %d threads: %s has the codes %s, want %s", path, i+1, id, c, first[id])
			}
		}
	}

	more := halves((n + 100) * dims)
	m := &Make{
		Items: from(write(t, filepath.Join(dir, "more.ndjson"), lines(1, n+100))), Out: filepath.Join(dir, "more"),
		Threads:  2,
		Codebook: filepath.Join(dir, "book"),
		Rows:     (&Embeddings{Path: write(t, filepath.Join(dir, "m.npy"), npy("<f4", n+99, dims, more[dims:]))}).Rows,
	}
	r, err := m.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Added != 100 || r.Kept != n-1 || r.Shared != 0 || r.Items != n+100 { // the one that is gone keeps its codes
		t.Errorf("%+v", r)
	}
	all := coded(t, m.Out)
	for id, c := range first {
		if id != "i0" && all[id] != c {
			t.Errorf("%s had the codes %s and got %s", id, c, all[id])
		}
	}
	for i := n; i < n+100; i++ {
		if id := fmt.Sprintf("i%d", i); all[id] == first["i0"] {
			t.Errorf("%s got the codes of an item that is gone", id)
		}
	}
	if r, err = m.Run(t.Context()); err != nil || r.Added != 0 || r.Kept != n+99 {
		t.Errorf("again: %+v, %v", r, err)
	}
	m.Options.Sizes = []int{4, 4}
	if _, err := m.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--fresh") {
		t.Errorf("other sizes: %v", err)
	}
	write(t, m.Codebook, []byte("GREBECB1 and more"))
	if _, err := m.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged codebook: %v", err)
	}
}

func TestSharedCodesAreReported(t *testing.T) {
	dir := t.TempDir()
	m := &Make{
		Items: from(write(t, filepath.Join(dir, "items.ndjson"), lines(0, 4))), Codebook: filepath.Join(dir, "book"),
		Threads:    1,
		Collisions: true, Options: codes.Options{Sizes: []int{2}},
		Rows: (&Embeddings{Path: write(t, filepath.Join(dir, "e.npy"), npy("<f4", 4, 1, []float32{1, 1, 9, 1}))}).Rows,
	}
	r, err := m.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Shared != 3 || r.Paths != 2 || r.Most != 3 || r.Moved != 0 || r.Error > 1e-9 {
		t.Errorf("%+v", r.Report)
	}
	m.Collisions, m.Fresh = false, true
	if _, err := m.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no new codes for 4 items: 2 paths") {
		t.Errorf("too few codes: %v", err)
	}
}

func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, data []byte) string { return write(t, filepath.Join(dir, name), data) }
	good := file("items.ndjson", lines(0, 2))
	rows := file("e.npy", npy("<f4", 2, 2, []float32{1, 2, 3, 4}))
	whole := npy("<f4", 2, 2, []float32{1, 2, 3, 4})
	fortran := bytes.Replace(whole, []byte("False"), []byte(" True"), 1)
	two := filepath.Join(dir, "two.safetensors")
	one := safetensors.Encode(nil, compute.F32, 1, 2)
	if err := safetensors.Write(two, []safetensors.Named{
		{Name: "a", DType: compute.F32, Shape: []int{2, 1}, Data: safetensors.Bytes(one)},
		{Name: "b", DType: compute.F32, Shape: []int{2}, Data: safetensors.Bytes(one)},
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		items, want string
		rows        Embeddings
	}{
		{file("empty", nil), "empty has no items", Embeddings{Path: rows}},
		{file("noid", []byte("{\"text\":\"a\"}\n")), "noid:1: id: is missing", Embeddings{Path: rows}},
		{file("twice", append(lines(0, 2), lines(1, 2)...)), `twice:3: the id "i1" is that of line 2 too`,
			Embeddings{Path: rows}},
		{file("json", []byte("{\"id\":\"a\"}\n\n{\"id\":")), "json:3: ", Embeddings{Path: rows}},
		{filepath.Join(dir, "no"), "no such file", Embeddings{Path: rows}},
		{file("three", lines(0, 3)), "has 2 rows and", Embeddings{Path: rows}},
		{good, "want a file that ends in .npy or .safetensors", Embeddings{Path: good}},
		{good, "no such file", Embeddings{Path: "no.npy"}},
		{good, "not a .npy file", Embeddings{Path: file("not.npy", []byte("hello, world"))}},
		{good, "the header is cut off", Embeddings{Path: file("cut.npy", whole[:30])}},
		{good, "cut off or damaged", Embeddings{Path: file("short.npy", whole[:len(whole)-1])}},
		{good, "cut off or damaged", Embeddings{Path: file("long.npy", append(slices.Clone(whole), 1))}},
		{good, "not <i4", Embeddings{Path: file("int.npy", npy("<i4", 2, 2, nil))}},
		{good, "not >f4", Embeddings{Path: file("big.npy", npy(">f4", 2, 2, nil))}},
		{good, "rows of 0 numbers", Embeddings{Path: file("zero.npy", npy("<f4", 2, 0, nil))}},
		{good, "two dimensions in the order of C", Embeddings{Path: file("f.npy", fortran)}},
		{good, `the embedding of item "i1" (row 1) has a value that is not finite: NaN in column 1`,
			Embeddings{Path: file("nan.npy", npy("<f4", 2, 2, []float32{1, 2, 3, float32(math.NaN())}))}},
		{good, "it has 2 tensors (a, b): name one", Embeddings{Path: two}},
		{good, `no tensor "c"`, Embeddings{Path: two, Tensor: "c"}},
		{good, "the shape [2], want two dimensions", Embeddings{Path: two, Tensor: "b"}},
		{good, "has no named tensors", Embeddings{Path: rows, Tensor: "b"}},
	} {
		m := &Make{Items: from(c.items), Codebook: filepath.Join(dir, "book"), Threads: 1, Rows: c.rows.Rows}
		if _, err := m.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: %v, want %q", c.items, c.rows.Path, err, c.want)
		}
		if _, err := os.Stat(m.Codebook); !os.IsNotExist(err) {
			t.Errorf("%s: a codebook was written (%v)", c.want, err)
		}
	}
}

// Items of every format that an import reads get the same codes.
func TestFormats(t *testing.T) {
	dir := t.TempDir()
	values := halves(40 * 2)
	rows := write(t, filepath.Join(dir, "e.npy"), npy("<f4", 40, 2, values))
	csv := []byte("sku;title;tag\n")
	for i := range 40 {
		csv = fmt.Appendf(csv, "i%d;item %d;x\n", i, i)
	}
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	if _, err := zip.Write(csv); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	fields := "id=sku,text=title,attributes.a=tag"
	var first map[string]string
	for name, f := range map[string]ingest.ItemFile{
		"lines": from(write(t, filepath.Join(dir, "items.ndjson"), lines(0, 40))),
		"csv":   {Path: write(t, filepath.Join(dir, "p.csv"), csv), Map: fields, Separator: ";"},
		"gz":    {Path: write(t, filepath.Join(dir, "p.csv.gz"), packed.Bytes()), Map: fields, Separator: ";"},
		"stdin": {Path: "-", Stdin: bytes.NewReader(csv), Format: "csv", Map: fields, Separator: ";"},
	} {
		m := &Make{
			Items: f, Out: filepath.Join(dir, "out.ndjson"), Codebook: filepath.Join(dir, "book"), Fresh: true, Threads: 1,
			Rows: (&Embeddings{Path: rows}).Rows,
		}
		if r, err := m.Run(t.Context()); err != nil || r.Added != 40 {
			t.Fatalf("%s: %+v, %v", name, r, err)
		}
		got := coded(t, m.Out)
		if first == nil {
			first = got
		}
		if !maps.Equal(got, first) || len(got) != 40 {
			t.Errorf("%s: got the codes %v, want %v", name, got, first)
		}
	}
	m := &Make{
		Items: ingest.ItemFile{Path: filepath.Join(dir, "p.csv"), Separator: ";"}, Codebook: filepath.Join(dir, "book"),
		Threads: 1, Rows: (&Embeddings{Path: rows}).Rows,
	}
	if _, err := m.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--map FIELD=COLUMN") {
		t.Errorf("columns with other names: %v", err)
	}
}

// A new codebook has the levels of the model, and one that does not fit the model is reported.
func TestModelSizes(t *testing.T) {
	dir := t.TempDir()
	values := halves(100 * 2)
	rows := write(t, filepath.Join(dir, "e.npy"), npy("<f4", 100, 2, values))
	items := from(write(t, filepath.Join(dir, "items.ndjson"), lines(0, 100)))
	for _, c := range []struct {
		model, sizes, want []int
		levels             int
		misfit             bool
	}{
		{want: []int{16, 16, 16}},
		{model: []int{8, 8, 8}, want: []int{8, 8, 8}},
		{model: []int{64, 8}, levels: 2, want: []int{64, 8}},
		{model: []int{8192, 8}, want: []int{64, 8}}, // more codes than items: the default number
		{model: []int{64, 64}, sizes: []int{32, 32}, want: []int{32, 32}},
		{model: []int{8, 8, 8}, sizes: []int{32, 8, 8}, want: []int{32, 8, 8}, misfit: true},
		{model: []int{8, 8, 8}, levels: 2, want: []int{64, 64}, misfit: true},
	} {
		var misfit []int
		m := &Make{
			Items: items, Codebook: filepath.Join(dir, "book"), Fresh: true, Threads: 1, Levels: c.levels, Model: c.model,
			Misfit: func(sizes []int) { misfit = sizes }, Options: codes.Options{Sizes: c.sizes},
			Rows: (&Embeddings{Path: rows}).Rows,
		}
		for range 2 { // the second time there is a codebook
			r, err := m.Run(t.Context())
			if err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
			var got []int
			for _, l := range r.Levels {
				got = append(got, l.Size)
			}
			if !slices.Equal(got, c.want) || c.misfit != slices.Equal(misfit, c.want) {
				t.Errorf("%+v: got %v, misfit %v", c, got, misfit)
			}
			m.Fresh, misfit = false, nil
		}
	}
}
