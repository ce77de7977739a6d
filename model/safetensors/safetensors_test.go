package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/compute"
)

func f32(name string, shape []int, values ...float32) Named {
	return Named{Name: name, DType: compute.F32, Shape: shape, Data: Bytes(Encode(nil, compute.F32, values...))}
}

// writeRaw writes a file from a header's text and a number of zero bytes.
func writeRaw(t *testing.T, path, header string, data int) {
	t.Helper()
	raw := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	raw = append(append(raw, header...), make([]byte, data)...)
	writeFile(t, path, raw)
}

func writeFile(t *testing.T, path string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(path, raw, 0o666); err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	values := []float32{0, 1, -2, 0.5, 65504, -0x1p-14}
	for _, dt := range []compute.DType{compute.F32, compute.BF16, compute.F16} {
		path := filepath.Join(t.TempDir(), SingleFile)
		want := values
		if dt == compute.BF16 {
			want = []float32{0, 1, -2, 0.5, 65536, -0x1p-14}
		}
		data := Encode(nil, dt, values...)
		if err := Write(path, []Named{
			{Name: "m", DType: dt, Shape: []int{2, 3}, Data: Bytes(data)},
			{Name: "v", DType: dt, Shape: []int{6}, Data: Bytes(data)},
			{Name: "s", DType: dt, Shape: nil, Data: Bytes(data[:dt.Size()])},
		}); err != nil {
			t.Fatal(err)
		}
		s, err := Open(filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for name, shape := range map[string][2]int{"m": {2, 3}, "v": {1, 6}, "s": {1, 1}} {
			v, err := s.Tensor(name)
			if err != nil {
				t.Fatal(err)
			}
			if v.DType != dt || v.Rows != shape[0] || v.Cols != shape[1] {
				t.Errorf("%v %s: %v %dx%d", dt, name, v.DType, v.Rows, v.Cols)
			}
			s.Release(name)
			for i, got := range Floats(v) {
				if got != want[i] {
					t.Errorf("%v %s[%d] = %v, want %v", dt, name, i, got, want[i])
				}
			}
		}
		if s.Bytes() != int64(2*len(data)+dt.Size()) {
			t.Errorf("%v: %d bytes", dt, s.Bytes())
		}
	}
}

// Every F16 and BF16 value survives the way to float32 and back.
func TestHalfFormats(t *testing.T) {
	for i := range 1 << 16 {
		for _, dt := range []compute.DType{compute.F16, compute.BF16} {
			raw := []byte{byte(i), byte(i >> 8)}
			v := Floats(compute.Tensor{DType: dt, Rows: 1, Cols: 1, Data: raw})[0]
			if v != v {
				continue
			}
			if back := Encode(nil, dt, v); !bytes.Equal(back, raw) {
				t.Fatalf("%v %04x: %v became %x", dt, i, v, back)
			}
		}
	}
	for _, c := range []struct {
		v    float32
		want uint16
	}{{65519, 0x7bff}, {65520, 0x7c00}, {0x1p-25, 0}, {0x1.8p-25, 1}, {1 + 0x1p-11, 0x3c00}, {1 + 0x3p-11, 0x3c02}} {
		if got := toF16(c.v); got != c.want {
			t.Errorf("toF16(%v) = %04x, want %04x", c.v, got, c.want)
		}
	}
	if v := toBF16(math.Float32frombits(0x7f800001)); v&0x7fff <= 0x7f80 {
		t.Errorf("a NaN became %04x", v)
	}
}

func TestHostileHeaders(t *testing.T) {
	const ok = `"dtype":"F32","shape":[2],"data_offsets":[0,8]`
	for _, c := range []struct {
		name, header string
		data         int
		want         string
	}{
		{"not json", `hello`, 0, "header"},
		{"empty", ``, 0, "header"},
		{"array", `[]`, 0, "want {"},
		{"unfinished", `{"a":{` + ok + `}`, 8, "unexpected EOF"},
		{"trailing", `{"a":{` + ok + `}} x`, 8, "follows"},
		{"two objects", `{}{}`, 0, "follows"},
		{"not utf-8", "{\"a\xff\":{" + ok + "}}", 8, "UTF-8"},
		{"duplicate tensor", `{"a":{` + ok + `},"a":{` + ok + `}}`, 8, `"a" occurs twice`},
		{"duplicate field", `{"a":{` + ok + `,"shape":[2]}}`, 8, "shape occurs twice"},
		{"case", `{"a":{"DType":"F32","shape":[2],"data_offsets":[0,8]}}`, 8, "no dtype"},
		{"negative shape", `{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}`, 8, "whole number"},
		{"fraction", `{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}`, 8, "whole number"},
		{"huge number", `{"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8]}}`, 8, "whole number"},
		{"overflow", `{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}`, 8, "overflows"},
		{"overflow to the right size", `{"a":{"dtype":"F32","shape":[4611686018427387905,2],"data_offsets":[0,8]}}`, 8,
			"overflows"},
		{"rank", `{"a":{"dtype":"F32","shape":[` + strings.Repeat("1,", 40) + `2],"data_offsets":[0,8]}}`, 8, "more than"},
		{"backwards", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}`, 8, "backwards"},
		{"size", `{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, 8, "12 bytes"},
		{"dtype", `{"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}}`, 8, "F33"},
		{"three offsets", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}}`, 8, "more than 2"},
		{"one offset", `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}}`, 8, "has 1"},
		{"truncated data", `{"a":{` + ok + `}}`, 7, "truncated"},
		{"trailing data", `{"a":{` + ok + `}}`, 9, "cover 8 of 9"},
		{"overlap", `{"a":{` + ok + `},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 12,
			"inside the tensor before"},
		{"same range", `{"a":{` + ok + `},"b":{` + ok + `}}`, 8, "inside the tensor before"},
		{"hole", `{"a":{` + ok + `},"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}`, 16, "hole"},
		{"metadata", `{"__metadata__":{"a":1}}`, 0, "__metadata__"},
		{"deep", `{"a":{"x":` + strings.Repeat("[", 20000) + `}}`, 0, "x"},
		{"key of no string", `{1:{` + ok + `}}`, 8, "invalid character"},
		{"half a key", `{"a`, 0, "EOF"},
		{"long name", `{"` + strings.Repeat("x", 5000) + `":{` + ok + `}}`, 8, "at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad.safetensors")
			writeRaw(t, path, c.header, c.data)
			_, err := OpenFile(path)
			wantError(t, err, "bad.safetensors", c.want)
			if len(err.Error()) > 2000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

func TestHostileLengths(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bad.safetensors")
	for length, want := range map[uint64]string{
		math.MaxUint64: "at most", 1 << 63: "at most", 4 << 30: "at most", maxHeader + 1: "at most",
		maxHeader: "truncated", 3: "truncated",
	} {
		writeFile(t, path, append(binary.LittleEndian.AppendUint64(nil, length), "{}"...))
		_, err := OpenFile(path)
		wantError(t, err, path, want)
	}
	for n := range 8 {
		writeFile(t, path, make([]byte, n))
		_, err := OpenFile(path)
		wantError(t, err, path, "too few")
	}
	_, err := OpenFile(filepath.Dir(path))
	wantError(t, err, "regular")
}

// What the format's own implementation accepts is accepted.
func TestTolerated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "odd.safetensors")
	writeRaw(t, path, ` {"__metadata__":null,
		"z":{"dtype":"F32","shape":[2],"data_offsets":[4,12],"note":{"x":[1]}},
		"empty":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]},
		"a":{"dtype":"I8","shape":[1,2,2],"data_offsets":[0,4]},
		"odd":{"dtype":"F4","shape":[6],"data_offsets":[12,15]}}   `, 15)
	s, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := strings.Join(s.Names(), " "); got != "a empty odd z" {
		t.Errorf("names %q", got)
	}
	if _, err := s.Tensor("z"); err != nil {
		t.Error(err)
	}
	_, err = s.Tensor("a")
	wantError(t, err, path, `"a"`, "I8")
	_, err = s.Tensor("none")
	wantError(t, err, `"none"`)
}

func TestRankThree(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := Write(path, []Named{f32("cube", []int{1, 1, 2}, 1, 2)}); err != nil {
		t.Fatal(err)
	}
	s, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, err = s.Tensor("cube")
	wantError(t, err, path, "cube", "[1 1 2]")
}

func TestSharded(t *testing.T) {
	dir := t.TempDir()
	tensors := []Named{f32("a", []int{2}, 1, 2), f32("b", []int{1, 2}, 3, 4), f32("c", []int{4}, 5, 6, 7, 8)}
	if err := WriteSharded(dir, 16, tensors); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if len(s.Files()) != 2 || s.Bytes() != 32 {
		t.Errorf("files %v, %d bytes", s.Files(), s.Bytes())
	}
	c, err := s.Tensor("c")
	if err != nil {
		t.Fatal(err)
	}
	if v := Floats(c); v[0] != 5 || v[3] != 8 {
		t.Errorf("c = %v", v)
	}
	if info, _ := s.Lookup("c"); filepath.Base(info.File) != "model-00002-of-00002.safetensors" {
		t.Errorf("c is in %s", info.File)
	}
}

func TestHostileIndex(t *testing.T) {
	dir := t.TempDir()
	for file, names := range map[string][]string{"one": {"a"}, "two": {"b"}, "both": {"a", "c"}} {
		var tensors []Named
		for _, name := range names {
			tensors = append(tensors, f32(name, []int{1}, 1))
		}
		if err := Write(filepath.Join(dir, file+".safetensors"), tensors); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ index, want string }{
		{`{"weight_map":{"a":"none.safetensors"}}`, "none.safetensors"},
		{`{"weight_map":{"a":"../one.safetensors"}}`, "not the name"},
		{`{"weight_map":{"a":"x/../../one.safetensors"}}`, "not the name"},
		{`{"weight_map":{"a":"` + dir + `/one.safetensors"}}`, "not the name"},
		{`{"weight_map":{"a":"` + IndexFile + `"}}`, "not the name"},
		{`{"weight_map":{"a":""}}`, "not the name"},
		{`{"weight_map":{"a":"two.safetensors"}}`, `"a" is not in`},
		{`{"weight_map":{"a":"one.safetensors","c":"both.safetensors"}}`, `"a" is in both`},
		{`{"weight_map":{"a":"one.safetensors","a":"two.safetensors"}}`, "occurs twice"},
		{`{"weight_map":{"a":1}}`, "want a string"},
		{`{"weight_map":{"a":"both.safetensors","b":"two.safetensors","d":"two.safetensors"}}`, `"d" is not in`},
		{`{"weight_map":{"b":"both.safetensors","a":"both.safetensors","c":"two.safetensors"}}`, "is not in"},
		{`{"weight_map":{1:"one.safetensors"}}`, "invalid character"},
		{`{1:2}`, "invalid character"},
		{`{"weight_map":{}}`, "empty"},
		{`{}`, "empty"},
		{`{"weight_map":{"a":"one.safetensors"}} {}`, "follows"},
		{`[`, "want {"},
		{``, "EOF"},
	} {
		writeFile(t, filepath.Join(dir, IndexFile), []byte(c.index))
		_, err := Open(dir)
		wantError(t, err, c.want)
	}
	_, err := Open(t.TempDir())
	wantError(t, err, SingleFile, IndexFile)
}

// Headers and indexes that name more tensors than any model has are refused before they take much memory.
func TestTooManyTensors(t *testing.T) {
	var header, index strings.Builder
	for i := range maxTensors + 1 {
		fmt.Fprintf(&header, `,"t%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i)
		fmt.Fprintf(&index, `,"t%d":"one.safetensors"`, i)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "many.safetensors")
	writeRaw(t, path, "{"+header.String()[1:]+"}", 0)
	_, err := OpenFile(path)
	wantError(t, err, path, "more than 131072 tensors")
	writeFile(t, filepath.Join(dir, IndexFile), []byte(`{"weight_map":{`+index.String()[1:]+"}}"))
	_, err = Open(dir)
	wantError(t, err, IndexFile, "more than 131072 tensors")
}

// An index that is no regular file, or too large, is refused without being read.
func TestIndexThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, IndexFile)
	if err := os.Symlink("/dev/zero", path); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir)
	wantError(t, err, path, "regular file")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, nil)
	if err := os.Truncate(path, maxHeader+1); err != nil {
		t.Fatal(err)
	}
	_, err = Open(dir)
	wantError(t, err, path, "at most")
}

func TestWriteErrors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, SingleFile)
	broken := errors.New("broken")
	wantError(t, Write(path, []Named{f32("a", []int{3}, 1)}), `"a"`, "4 bytes", "want 12")
	wantError(t, Write(path, []Named{f32("a", []int{1}, 1), f32("a", []int{1}, 1)}), "twice")
	wantError(t, Write(path, []Named{f32("a", []int{-1}, 1)}), "negative")
	err := Write(path, []Named{{Name: "a", Shape: []int{1}, Data: func(io.Writer) error { return broken }}})
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Add([]byte(`{}`), int64(0))
	f.Add([]byte(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`), int64(8))
	f.Add([]byte(`{"__metadata__":{"a":"b"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},`+
		`"b":{"dtype":"F16","shape":[],"data_offsets":[12,14]}}`), int64(14))
	f.Fuzz(func(t *testing.T, header []byte, size int64) {
		size &= math.MaxInt64
		tensors, err := parseHeader(header, size)
		if err != nil {
			return
		}
		var at int64
		for _, info := range tensors {
			n, err := dataSize(info.DType, info.Shape)
			if err != nil || info.begin != at || info.end != at+n {
				t.Fatalf("accepted %+v at %d: %v", info, at, err)
			}
			at = info.end
		}
		if at != size {
			t.Fatalf("accepted tensors of %d bytes in %d", at, size)
		}
	})
}

func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":1},"weight_map":{"a":"model-1.safetensors"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		files, err := parseIndex(raw)
		if err != nil {
			return
		}
		for _, file := range files {
			if !filepath.IsLocal(file) || strings.Contains(file, "..") && strings.HasPrefix(filepath.Clean(file), "..") {
				t.Fatalf("accepted %q", file)
			}
		}
	})
}
