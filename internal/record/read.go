package record

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"
)

// Line is one of a log.
type Line struct {
	Number int    // in the log, from 1
	Log    int    // which it is of the logs that were written to a file one after the other, from 1
	Room   string // such as kv0
	Did    bool   // a decision; otherwise an input
	Op     string
	Values Values
}

func (l *Line) String() string {
	mark := ""
	if l.Did {
		mark = ". "
	}
	return strings.TrimSpace(l.Room + " " + mark + l.Op + " " + strings.Join(l.Values.text, " "))
}

// Read returns the lines of a log, up to the first that makes no sense, which comes as an error.
func Read(r io.Reader) iter.Seq2[*Line, error] {
	return func(yield func(*Line, error) bool) {
		in := bufio.NewScanner(r)
		in.Buffer(nil, 1<<26)
		keys := map[string][32]byte{}
		logs := 0
		for n := 1; in.Scan(); n++ {
			text := in.Text()
			if strings.HasPrefix(text, "# ") && text != strings.TrimSpace(header) {
				continue // a remark
			}
			if text == strings.TrimSpace(header) {
				keys = map[string][32]byte{} // lines that were read keep theirs
				logs++
				continue
			}
			fields := strings.Fields(text)
			l := &Line{Number: n, Log: logs}
			if len(fields) > 2 && fields[1] == "." {
				l.Did = true
				fields = append(fields[:1], fields[2:]...)
			}
			if len(fields) < 2 {
				yield(nil, fmt.Errorf("record: line %d has no room and operation: %q", n, text))
				return
			}
			l.Room, l.Op = fields[0], fields[1]
			l.Values = Values{text: fields[2:], keys: keys}
			if err := l.Values.name(); err != nil {
				yield(nil, fmt.Errorf("record: line %d: %w", n, err))
				return
			}
			if !yield(l, nil) {
				return
			}
		}
		if err := in.Err(); err != nil {
			yield(nil, fmt.Errorf("record: %w", err))
		}
	}
}

// Values are those of a line, read from left to right. The first that is not what is asked for is the error of Err.
type Values struct {
	text []string
	next int
	keys map[string][32]byte
	err  error
}

// name learns the keys that are new, and leaves their names alone.
func (v *Values) name() error {
	for i, text := range v.text {
		if !strings.Contains(text, ":") {
			continue
		}
		list := strings.HasPrefix(text, "[")
		parts := strings.Split(strings.Trim(text, "[]"), ",")
		for k, p := range parts {
			name, digest, isNew := strings.Cut(p, ":")
			if !isNew {
				continue
			}
			b, err := hex.DecodeString(digest)
			if err != nil || len(b) != 8 {
				return fmt.Errorf("%q names no key", p)
			}
			var key [32]byte
			binary.LittleEndian.PutUint64(key[:], binary.BigEndian.Uint64(b))
			copy(key[8:], name) // two keys with the same first bytes stay two
			v.keys[name] = key
			parts[k] = name
		}
		v.text[i] = strings.Join(parts, ",")
		if list {
			v.text[i] = "[" + v.text[i] + "]"
		}
	}
	return nil
}

// Err returns the first error.
func (v *Values) Err() error {
	if v.err == nil && v.next < len(v.text) {
		return fmt.Errorf("record: %d values are left", len(v.text)-v.next)
	}
	return v.err
}

// Left returns how many values were not read.
func (v *Values) Left() int { return len(v.text) - v.next }

// Failed returns the first error, and none when values are left.
func (v *Values) Failed() error { return v.err }

// Fail says that a value makes no sense.
func (v *Values) Fail(err error) { v.fail("%w", err) }

// Text returns the next value as it is written.
func (v *Values) Text() string {
	if v.next >= len(v.text) {
		v.fail("a value is missing")
		return ""
	}
	v.next++
	return v.text[v.next-1]
}

func (v *Values) fail(format string, args ...any) {
	if v.err == nil {
		v.err = fmt.Errorf("record: "+format, args...)
	}
}

func parse[T any](v *Values, text string, f func(string) (T, error)) T {
	x, err := f(text)
	if err != nil {
		v.fail("value %d: %w", v.next, err)
	}
	return x
}

// Int returns the next value, a whole number.
func (v *Values) Int() int { return int(v.Int64()) }

// Int64 returns the next value, a whole number.
func (v *Values) Int64() int64 { return parse(v, v.Text(), parseInt) }

func parseInt(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }

// Uint64 returns the next value, a whole number from 0.
func (v *Values) Uint64() uint64 {
	return parse(v, v.Text(), func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) })
}

// Time returns the next value, a duration.
func (v *Values) Time() time.Duration { return time.Duration(v.Int64()) }

// Float returns the next value, a number.
func (v *Values) Float() float64 { return parse(v, v.Text(), parseFloat) }

func parseFloat(s string) (float64, error) { return strconv.ParseFloat(s, 64) }

// Bool returns the next value, + or -.
func (v *Values) Bool() bool {
	switch s := v.Text(); s {
	case "+":
		return true
	case "-":
	default:
		v.fail("%q is not + or -", s)
	}
	return false
}

// None skips the next value and returns true if it is a -, which stands for no key.
func (v *Values) None() bool {
	if v.next < len(v.text) && v.text[v.next] == "-" {
		v.next++
		return true
	}
	return false
}

// Key returns the next value, a key: the first eight bytes of the digest and the key's name.
func (v *Values) Key() [32]byte { return v.key(v.Text()) }

func (v *Values) key(name string) [32]byte {
	k, ok := v.keys[name]
	if !ok {
		v.fail("no key %s is known", name)
	}
	return k
}

// list returns the parts of the next value.
func (v *Values) list() []string {
	s := v.Text()
	if len(s) < 2 || s[0] != '[' || s[len(s)-1] != ']' {
		v.fail("%q is no list", s)
		return nil
	}
	if s == "[]" {
		return nil
	}
	return strings.Split(s[1:len(s)-1], ",")
}

// Keys returns the next value, a list of keys.
func (v *Values) Keys() (out [][32]byte) {
	for _, s := range v.list() {
		out = append(out, v.key(s))
	}
	return out
}

// Floats returns the next value, a list of numbers.
func (v *Values) Floats() (out []float64) {
	for _, s := range v.list() {
		out = append(out, parse(v, s, parseFloat))
	}
	return out
}

// Ints returns the next value, a list of whole numbers.
func (v *Values) Ints() (out []int64) {
	for _, s := range v.list() {
		out = append(out, parse(v, s, parseInt))
	}
	return out
}

// Texts returns the next value, a list.
func (v *Values) Texts() []string { return v.list() }
