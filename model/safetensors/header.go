package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf8"
)

const (
	// maxHeader is the limit of the format's own implementation.
	maxHeader = 100_000_000
	// maxTensors bounds the tensors of a file, and of a checkpoint. The largest that are known have under 100,000; a
	// header of 100 MB can name 800,000, which take a gigabyte of memory and seconds to read.
	maxTensors = 1 << 17
	// maxRank keeps a hostile shape from taking more memory than its text.
	maxRank = 32
	// maxName keeps error messages readable.
	maxName = 1000
)

// Info is what a header says about one tensor.
type Info struct {
	Name  string
	DType string // as in the header: "BF16"
	Shape []int
	File  string // the file that holds it

	begin, end int64 // within the file's data
}

// dtypeBits holds the bits per value of every format the header may name.
var dtypeBits = map[string]uint64{
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"BOOL": 8, "U8": 8, "I8": 8,
	"F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32,
	"I64": 64, "U64": 64, "F64": 64, "C64": 64,
}

// parseHeader reads a header's JSON and checks it against the size of the data behind it. It accepts
// what the format's own implementation accepts, less what the format forbids: duplicate names. The
// tensors come in the order of their data and cover it exactly.
func parseHeader(header []byte, dataSize int64) ([]Info, error) {
	if !utf8.Valid(header) {
		return nil, errors.New("header is not UTF-8")
	}
	p := headerParser{dec: json.NewDecoder(bytes.NewReader(header))}
	p.dec.UseNumber()
	tensors, err := p.header()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(tensors, func(a, b Info) int {
		if a.begin != b.begin {
			return int(min(max(a.begin-b.begin, -1), 1))
		}
		return int(min(max(a.end-b.end, -1), 1))
	})
	return tensors, checkCover(tensors, dataSize)
}

// checkCover checks that the tensors, sorted, follow each other without overlap or hole to the end.
func checkCover(tensors []Info, dataSize int64) error {
	var at int64
	for i := range tensors {
		t := &tensors[i]
		switch {
		case t.end > dataSize:
			return fmt.Errorf("tensor %q: data ends at %d of %d bytes: the file is truncated or the header is wrong",
				t.Name, t.end, dataSize)
		case t.begin < at:
			return fmt.Errorf("tensor %q: data starts at %d, inside the tensor before it, which ends at %d",
				t.Name, t.begin, at)
		case t.begin > at:
			return fmt.Errorf("tensor %q: data starts at %d, leaving a hole after %d", t.Name, t.begin, at)
		}
		at = t.end
	}
	if at != dataSize {
		return fmt.Errorf("tensors cover %d of %d bytes of data", at, dataSize)
	}
	return nil
}

// headerParser walks a header token by token: encoding/json alone would let duplicate keys,
// misspelt fields and fractions pass.
type headerParser struct{ dec *json.Decoder }

func (p *headerParser) header() ([]Info, error) {
	var tensors []Info
	seen := map[string]bool{}
	err := p.object(func(name string) error {
		if seen[name] {
			return fmt.Errorf("%q occurs twice", name)
		}
		seen[name] = true
		if name == "__metadata__" {
			return p.metadata()
		}
		t, err := p.tensor(name)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		if len(tensors) == maxTensors {
			return fmt.Errorf("more than %d tensors", maxTensors)
		}
		tensors = append(tensors, t)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if _, err := p.dec.Token(); err != io.EOF {
		return nil, errors.New("header: something follows its JSON object")
	}
	return tensors, nil
}

func (p *headerParser) tensor(name string) (Info, error) {
	t := Info{Name: name}
	var offsets []int
	seen := map[string]bool{}
	err := p.object(func(field string) (err error) {
		if seen[field] {
			return fmt.Errorf("%s occurs twice", field)
		}
		seen[field] = true
		switch field {
		case "dtype":
			t.DType, err = p.text()
		case "shape":
			t.Shape, err = p.numbers(maxRank)
		case "data_offsets":
			offsets, err = p.numbers(2)
		default:
			var skip json.RawMessage
			err = p.dec.Decode(&skip)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		return nil
	})
	if err != nil {
		return t, err
	}
	for _, field := range []string{"dtype", "shape", "data_offsets"} {
		if !seen[field] {
			return t, fmt.Errorf("no %s", field)
		}
	}
	if len(offsets) != 2 {
		return t, fmt.Errorf("data_offsets has %d numbers, want 2", len(offsets))
	}
	t.begin, t.end = int64(offsets[0]), int64(offsets[1])
	return t, t.check()
}

// check compares the length of the data with dtype and shape.
func (t *Info) check() error {
	if t.begin > t.end {
		return fmt.Errorf("data_offsets [%d, %d] run backwards", t.begin, t.end)
	}
	size, err := dataSize(t.DType, t.Shape)
	if err != nil {
		return err
	}
	if size != t.end-t.begin {
		return fmt.Errorf("%s %v takes %d bytes, but data_offsets [%d, %d] hold %d",
			t.DType, t.Shape, size, t.begin, t.end, t.end-t.begin)
	}
	return nil
}

// dataSize returns the bytes of a tensor.
func dataSize(dtype string, shape []int) (int64, error) {
	width, ok := dtypeBits[dtype]
	if !ok {
		return 0, fmt.Errorf("unknown dtype %.40q", dtype)
	}
	n := uint64(1)
	for _, d := range append([]int{int(width)}, shape...) {
		if d < 0 {
			return 0, fmt.Errorf("shape %v has a negative size", shape)
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo>>63 != 0 {
			return 0, fmt.Errorf("shape %v overflows", shape)
		}
		n = lo
	}
	if n%8 != 0 {
		return 0, fmt.Errorf("%s %v does not fill whole bytes", dtype, shape)
	}
	return int64(n / 8), nil
}

// metadata skips the free-form strings, which may be null.
func (p *headerParser) metadata() error {
	var m map[string]string
	if err := p.dec.Decode(&m); err != nil {
		return fmt.Errorf("__metadata__: %w", err)
	}
	return nil
}

// object calls value for each key of an object; value consumes the key's value.
func (p *headerParser) object(value func(key string) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	for p.dec.More() {
		key, err := p.text()
		if err != nil {
			return err
		}
		if len(key) > maxName {
			return fmt.Errorf("the key %.40q… has %d bytes, at most %d are allowed", key, len(key), maxName)
		}
		if err := value(key); err != nil {
			return err
		}
	}
	return p.delim('}')
}

func (p *headerParser) numbers(most int) ([]int, error) {
	if err := p.delim('['); err != nil {
		return nil, err
	}
	list := []int{}
	for p.dec.More() {
		if len(list) == most {
			return nil, fmt.Errorf("more than %d numbers", most)
		}
		tok, err := p.token()
		if err != nil {
			return nil, err
		}
		text, ok := tok.(json.Number)
		if !ok {
			return nil, fmt.Errorf("want a number, got %.40v", tok)
		}
		n, err := strconv.ParseUint(text.String(), 10, strconv.IntSize-1)
		if err != nil {
			return nil, fmt.Errorf("want a whole number from 0 to 2^63-1, got %.40s", text)
		}
		list = append(list, int(n))
	}
	return list, p.delim(']')
}

func (p *headerParser) text() (string, error) {
	tok, err := p.token()
	if err != nil {
		return "", err
	}
	s, ok := tok.(string)
	if !ok {
		return "", fmt.Errorf("want a string, got %.40v", tok)
	}
	return s, nil
}

func (p *headerParser) delim(want json.Delim) error {
	tok, err := p.token()
	if err != nil {
		return err
	}
	if tok != want {
		return fmt.Errorf("want %v, got %.40v", want, tok)
	}
	return nil
}

func (p *headerParser) token() (json.Token, error) {
	tok, err := p.dec.Token()
	if err == io.EOF {
		return nil, io.ErrUnexpectedEOF
	}
	return tok, err
}
