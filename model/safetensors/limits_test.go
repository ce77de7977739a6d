package safetensors

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"grebe/compute"
)

// NotFinite finds the first value that is infinite or no number, in every format.
func TestNotFinite(t *testing.T) {
	bad := func(v float32) bool { return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) }
	for i := range 1 << 16 {
		for _, dt := range []compute.DType{compute.F32, compute.F16, compute.BF16} {
			raw := []byte{byte(i), byte(i >> 8)}
			if dt == compute.F32 {
				raw = append([]byte{byte(i), 0}, raw...)
			}
			one := compute.Tensor{DType: dt, Rows: 1, Cols: 1, Data: raw}
			want := -1
			if bad(Floats(one)[0]) {
				want = 0
			}
			if got := NotFinite(one); got != want {
				t.Fatalf("%v %x: %d, want %d", dt, raw, got, want)
			}
		}
	}
	inf := float32(math.Inf(1))
	for _, dt := range []compute.DType{compute.F32, compute.F16, compute.BF16} {
		data := Encode(nil, dt, 1, 2, 3, 4, 5, inf, 7, inf)
		if got := NotFinite(compute.Tensor{DType: dt, Rows: 2, Cols: 4, Data: data}); got != 5 {
			t.Errorf("%v: the first is at %d, want 5", dt, got)
		}
	}
}

// Rounding is to nearest, ties to even, on both sides of every border.
func TestRounding(t *testing.T) {
	for _, c := range []struct {
		v    float32
		f16  uint16
		bf16 uint16
	}{
		{1, 0x3c00, 0x3f80}, {-1, 0xbc00, 0xbf80},
		{1 + 0x1p-8, 0x3c04, 0x3f80}, {1 + 0x3p-8, 0x3c0c, 0x3f82}, {1 + 0x1.1p-8, 0x3c04, 0x3f81},
		{0x1p-14, 0x0400, 0x3880}, {0x1.ff8p-15, 0x03ff, 0x3880}, {-0x1p-24, 0x8001, 0xb380},
		{math.MaxFloat32, 0x7c00, 0x7f80}, {float32(math.Inf(-1)), 0xfc00, 0xff80},
	} {
		if got := toF16(c.v); got != c.f16 {
			t.Errorf("toF16(%v) = %04x, want %04x", c.v, got, c.f16)
		}
		if got := toBF16(c.v); got != c.bf16 {
			t.Errorf("toBF16(%v) = %04x, want %04x", c.v, got, c.bf16)
		}
	}
	for _, raw := range []uint32{0x7f800001, 0xff800001, 0x7fc00000, 0x7fffffff} {
		v := math.Float32frombits(raw)
		if h := toF16(v); h&0x7c00 != 0x7c00 || h&0x3ff == 0 || h>>15 != uint16(raw>>31) {
			t.Errorf("the NaN %08x became %04x in F16", raw, h)
		}
		if h := toBF16(v); h&0x7f80 != 0x7f80 || h&0x7f == 0 || h>>15 != uint16(raw>>31) {
			t.Errorf("the NaN %08x became %04x in BF16", raw, h)
		}
	}
	if v := fromF16(0x7e01); v == v {
		t.Errorf("an F16 NaN became %v", v)
	}
}

// Every format that a header may name has its size.
func TestSizesOfFormats(t *testing.T) {
	sizes := map[int]string{
		4: "F4", 6: "F6_E2M3 F6_E3M2", 8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
		16: "I16 U16 F16 BF16", 32: "I32 U32 F32", 64: "I64 U64 F64 C64",
	}
	for bits, names := range sizes {
		for name := range strings.FieldsSeq(names) {
			path := filepath.Join(t.TempDir(), SingleFile)
			writeRaw(t, path, fmt.Sprintf(`{"a":{"dtype":%q,"shape":[3,8],"data_offsets":[0,%d]}}`, name, 3*bits), 3*bits)
			s, err := OpenFile(path)
			if err != nil {
				t.Errorf("%s of %d bits: %v", name, bits, err)
				continue
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// The longest name, the most dimensions and the largest sizes are accepted; one more is not.
func TestLimitsAreExact(t *testing.T) {
	tensor := func(name, shape string) string {
		return fmt.Sprintf(`{%q:{"dtype":"U8","shape":%s,"data_offsets":[0,1]}}`, name, shape)
	}
	ones := func(n int) string { return "[" + strings.Repeat("1,", n-1) + "1]" }
	path := filepath.Join(t.TempDir(), SingleFile)
	for _, c := range []struct{ header, want string }{
		{tensor(strings.Repeat("x", 1000), "[1]"), ""},
		{tensor(strings.Repeat("x", 1001), "[1]"), "has 1001 bytes, at most 1000"},
		{tensor("a", ones(32)), ""},
		{tensor("a", ones(33)), "more than 32 numbers"},
		{tensor("a", `"x"`), "want ["},
		{tensor("a", `{}`), "want ["},
		{tensor("a", `["x"]`), "want a number"},
		{tensor("a", `[[1]]`), "want a number"},
		{tensor("a", `[1`), "shape"},
		{tensor("a", `[9223372036854775807]`), "overflows"},
		{tensor("a", `[9223372036854775808]`), "whole number"},
		{tensor("a", `[1152921504606846975]`), "takes 1152921504606846975 bytes"},
		{tensor("a", `[1152921504606846976]`), "overflows"},
		{`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, "whole bytes"},
		{`{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}`, ""},
		{`{"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}}`, "want a string"},
		{`{"a":{"dtype":"U8","data_offsets":[0,1]}}`, "no shape"},
		{`{"a":{"dtype":"U8","shape":[1]}}`, "no data_offsets"},
		{`{"a":{"dtype":"U8","shape":[1],"data_offsets":[]}}`, "has 0 numbers"},
		{`{"a":1}`, "want {"},
		{`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":}}`, "x"},
	} {
		writeRaw(t, path, c.header, 1)
		s, err := OpenFile(path)
		if c.want != "" {
			wantError(t, err, path, c.want)
			continue
		}
		if err != nil {
			t.Errorf("%.60s: %v", c.header, err)
			continue
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The tensors of all shards together are bounded too.
func TestTooManyTensorsInShards(t *testing.T) {
	dir := t.TempDir()
	s := &Set{tensors: map[string]entry{}}
	for i := range 131071 {
		s.tensors[fmt.Sprint(i)] = entry{}
	}
	for _, name := range []string{"last", "more"} {
		if err := Write(filepath.Join(dir, name), []Named{f32(name, []int{1}, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.add(filepath.Join(dir, "last")); err != nil {
		t.Errorf("as many tensors as are allowed: %v", err)
	}
	wantError(t, s.add(filepath.Join(dir, "more")), dir, "more than 131072 tensors")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A file that another process shortens while it is opened gets an error.
func TestFileThatShrinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), SingleFile)
	for n, want := range map[int]string{4: "read header length", 8: "read header", 20: "read header"} {
		raw := append(binary.LittleEndian.AppendUint64(nil, 64), make([]byte, 64)...)
		writeFile(t, path, raw[:n])
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = readHeader(f, int64(len(raw)))
		wantError(t, err, want, "EOF")
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Shards may hold a model's tensors in any mixture. Each is opened once, in the order of its name.
func TestShardsOfMixedTensors(t *testing.T) {
	dir := t.TempDir()
	shards := make([][]Named, 3)
	var index strings.Builder
	for i := range 30 {
		name := fmt.Sprintf("t%02d", i)
		shards[i%3] = append(shards[i%3], f32(name, []int{1}, float32(i)))
		fmt.Fprintf(&index, `,%q:"%d.safetensors"`, name, i%3)
	}
	for i, tensors := range shards {
		if err := Write(filepath.Join(dir, fmt.Sprintf("%d.safetensors", i)), tensors); err != nil {
			t.Fatal(err)
		}
	}
	meta := `"metadata":{"total_size":120},`
	writeFile(t, filepath.Join(dir, IndexFile), []byte(`{`+meta+`"weight_map":{`+index.String()[1:]+`}}`))
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var files []string
	for _, f := range s.Files() {
		files = append(files, filepath.Base(f))
	}
	if got := strings.Join(files, " "); got != "0.safetensors 1.safetensors 2.safetensors" {
		t.Errorf("files %s", got)
	}
	for i, name := range s.Names() {
		v, err := s.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := Floats(v)[0]; got != float32(i) {
			t.Errorf("%s is %v, want %d", name, got, i)
		}
	}
	twice := `{"weight_map":{"t00":"0.safetensors"},"weight_map":{"t00":"0.safetensors"}}`
	writeFile(t, filepath.Join(dir, IndexFile), []byte(twice))
	_, err = Open(dir)
	wantError(t, err, "weight_map occurs twice")
}

// A folder or a file that cannot be read is an error that names it.
func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	writeFile(t, file, nil)
	_, err := Open(file)
	wantError(t, err, file, "not a directory")
	missing := filepath.Join(dir, "missing.safetensors")
	_, err = OpenFile(missing)
	wantError(t, err, missing)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v does not say that the file is missing", err)
	}
}

// A file that is there but cannot be opened is an error.
func TestNoFilesLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), SingleFile)
	if err := Write(path, []Named{f32("a", []int{1}, 1)}); err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, err := OpenFile(path)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	wantError(t, err, path, "too many open files")
}

// Tensors of any rank can be read as one row of values.
func TestFlat(t *testing.T) {
	path := filepath.Join(t.TempDir(), SingleFile)
	values := []float32{1, 2, 3, 4, 5, 6}
	data := Bytes(Encode(nil, compute.F16, values...))
	half := Named{Name: "half", DType: compute.F16, Shape: []int{3, 1, 2}, Data: data}
	if err := Write(path, []Named{f32("cube", []int{1, 3, 2}, values...), half}); err != nil {
		t.Fatal(err)
	}
	s, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, name := range []string{"cube", "half"} {
		v, err := s.Flat(name)
		if err != nil {
			t.Fatal(err)
		}
		if v.Rows != 1 || v.Cols != 6 || fmt.Sprint(Floats(v)) != fmt.Sprint(values) {
			t.Errorf("%s: %d x %d, %v", name, v.Rows, v.Cols, Floats(v))
		}
	}
	_, err = s.Flat("none")
	wantError(t, err, `"none"`)

	odd := filepath.Join(t.TempDir(), SingleFile)
	writeRaw(t, odd, `{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}`, 8)
	s, err = OpenFile(odd)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = s.Flat("a")
	wantError(t, err, odd, `"a"`, "I64")
}

// Data of a written file starts at a multiple of 64 bytes, where the kernels' wide loads want it.
func TestDataIsAligned(t *testing.T) {
	for n := range 70 {
		path := filepath.Join(t.TempDir(), SingleFile)
		if err := Write(path, []Named{f32(strings.Repeat("x", n+1), []int{1}, 1)}); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		start := 8 + int(binary.LittleEndian.Uint64(raw))
		if start%64 != 0 || len(raw) != start+4 {
			t.Errorf("a name of %d bytes: data at %d of %d", n+1, start, len(raw))
		}
		if pad := len(raw[:start]) - len(strings.TrimRight(string(raw[:start]), " ")); pad > 63 {
			t.Errorf("a name of %d bytes: %d bytes of padding", n+1, pad)
		}
	}
}

// A shard is filled to its limit, and holds a larger tensor alone.
func TestShardsAreFilled(t *testing.T) {
	dir := t.TempDir()
	tensors := []Named{
		f32("a", []int{1}, 1), f32("b", []int{1}, 2), f32("c", []int{3}, 3, 4, 5),
		f32("d", []int{1}, 6), f32("e", []int{2}, 7, 8),
	}
	if err := WriteSharded(dir, 8, tensors); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, want := range map[string]int{"a": 1, "b": 1, "c": 2, "d": 3, "e": 4} {
		info, _ := s.Lookup(name)
		if got := filepath.Base(info.File); got != fmt.Sprintf("model-%05d-of-00004.safetensors", want) {
			t.Errorf("%s is in %s, want shard %d", name, got, want)
		}
	}
	index, err := os.ReadFile(filepath.Join(dir, IndexFile))
	if err != nil || !strings.Contains(string(index), `"total_size": 32`) {
		t.Errorf("index %s, %v", index, err)
	}
}

// Nothing is left of a checkpoint that could not be written.
func TestWriteShardedErrors(t *testing.T) {
	dir := t.TempDir()
	wantError(t, WriteSharded(dir, 8, []Named{f32("a", []int{1}, 1), f32("b", []int{-1})}), dir, `"b"`, "negative")
	wantError(t, WriteSharded(dir, 8, []Named{f32("a", []int{2}, 1)}), `"a"`, "4 bytes")
	for _, dt := range []compute.DType{compute.DType(len(writtenNames)), 100} { // the first after those with a name
		wantError(t, WriteSharded(dir, 8, []Named{{Name: "q", DType: dt, Shape: []int{1}}}), `"q"`, "cannot be written")
	}
	if left, err := os.ReadDir(dir); len(left) != 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
	wantError(t, Write(filepath.Join(dir, "none", SingleFile), nil), "none")
	full := filepath.Join(dir, "full.part") // where every write fails
	if err := os.Symlink("/dev/full", full); err != nil {
		t.Fatal(err)
	}
	wantError(t, Write(filepath.Join(dir, "full"), []Named{f32("a", []int{1}, 1)}), "full")
	if _, err := os.Lstat(full); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// A digest reads all of a large tensor, and stops when its context ends.
func TestDigestOfLargeTensors(t *testing.T) {
	digest := func(at int) [32]byte {
		t.Helper()
		data := make([]byte, digestPiece+4)
		if at >= 0 {
			data[at] = 1
		}
		path := filepath.Join(t.TempDir(), SingleFile)
		big := Named{Name: "big", DType: compute.F32, Shape: []int{len(data) / 4}, Data: Bytes(data)}
		if err := Write(path, []Named{big}); err != nil {
			t.Fatal(err)
		}
		s, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		d, err := s.DigestWithin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ended, stop := context.WithCancel(t.Context())
		stop()
		if _, err := s.DigestWithin(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("after the end of its context: %v", err)
		}
		return d
	}
	zero := digest(-1)
	for _, at := range []int{0, digestPiece - 1, digestPiece, digestPiece + 3} {
		if digest(at) == zero {
			t.Errorf("byte %d does not change the digest", at)
		}
	}
}

// Closing gives the mappings back; a second Close has nothing to do.
func TestClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), SingleFile)
	if err := Write(path, []Named{f32("a", []int{1}, 1)}); err != nil {
		t.Fatal(err)
	}
	s, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if len(s.Names()) != 0 || len(s.Files()) != 0 || s.Bytes() != 0 {
			t.Error("a closed set has tensors")
		}
	}
	s = &Set{shards: []*shard{{path: path, mapped: make([]byte, 1)}}}
	wantError(t, s.Close(), "unmap", path)
}
