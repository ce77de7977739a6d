// Package wire reads and writes the JSON form of Grebe's messages.
//
// Reading is strict: a client's mistake is reported, never guessed at: unknown fields, wrong types, numbers out of
// range, null, keys that come twice, invalid UTF-8 and trailing data are errors that name the field's path. The forms
// of other servers (score, rerank) are read leniently: unknown fields and null are passed over, and of a key that
// comes twice the last one counts. Lists are bounded while they are read, so that a body never grows far beyond its
// size in memory.
//
// The package is pure. What it returns holds no reference to the input.
package wire

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Error says what is wrong with a JSON text, and where.
type Error struct {
	Field   string // path such as candidates[3].id; empty for the whole text
	Problem string
}

func (e *Error) Error() string {
	if e.Field == "" {
		return e.Problem
	}
	return e.Field + ": " + e.Problem
}

// maxDepth bounds nesting; the deepest message has 5 levels.
const maxDepth = 32

// step is one step of a path: a key, or an index when key is empty.
type step struct {
	key   string
	index int
}

// decoder walks over a JSON text. The first error ends the walk: the methods then return zeros.
type decoder struct {
	in      []byte
	pos     int
	lenient bool
	path    []step
	err     *Error
}

// decode runs read over the whole of a text.
func decode(in []byte, lenient bool, read func(*decoder)) error {
	d := &decoder{in: in, lenient: lenient}
	read(d)
	if d.err == nil && d.peek() != 0 {
		d.fail("data after the end")
	}
	if d.err == nil && d.pos < len(d.in) {
		d.fail("data after the end") // a zero byte
	}
	if d.err != nil {
		return d.err
	}
	return nil
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = &Error{Field: d.field(), Problem: fmt.Sprintf(format, args...)}
	}
}

func (d *decoder) field() string {
	var b strings.Builder
	for i, s := range d.path {
		if s.key == "" {
			fmt.Fprintf(&b, "[%d]", s.index)
			continue
		}
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(s.key)
	}
	return b.String()
}

// peek skips white space and returns the next byte, 0 at the end.
func (d *decoder) peek() byte {
	for d.pos < len(d.in) {
		switch c := d.in[d.pos]; c {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return c
		}
	}
	return 0
}

// take consumes c if it is next.
func (d *decoder) take(c byte) bool {
	if d.err != nil || d.peek() != c {
		return false
	}
	d.pos++
	return true
}

// expect fails for a value that is not of the wanted type, naming what is there instead.
func (d *decoder) expect(want string) {
	switch c := d.peek(); {
	case c == 0 && d.pos >= len(d.in):
		d.fail("want %s, but the text ends", want)
	case c == '{':
		d.fail("want %s, not an object", want)
	case c == '[':
		d.fail("want %s, not a list", want)
	case c == '"':
		d.fail("want %s, not a string", want)
	case c == '-' || c >= '0' && c <= '9':
		d.fail("want %s, not a number", want)
	case d.literal("null"):
		d.fail("want %s, not null: leave the field out", want)
	case d.literal("true"), d.literal("false"):
		d.fail("want %s, not true or false", want)
	default:
		d.fail("not JSON: want %s at byte %d", want, d.pos)
	}
}

// literal consumes a word if it is next.
func (d *decoder) literal(word string) bool {
	d.peek()
	if d.err != nil || !strings.HasPrefix(string(d.in[d.pos:min(len(d.in), d.pos+len(word))]), word) {
		return false
	}
	d.pos += len(word)
	return true
}

// object reads an object; read is called for each key and reads its value, or calls unknown.
func (d *decoder) object(read func(key string)) {
	if !d.take('{') {
		d.expect("an object")
		return
	}
	if len(d.path) >= maxDepth {
		d.fail("nested deeper than %d levels", maxDepth)
		return
	}
	if d.take('}') {
		return
	}
	var seen keys
	for d.err == nil {
		if d.peek() != '"' {
			d.fail("not JSON: want a key in quotes at byte %d", d.pos)
			return
		}
		key := d.string()
		if !d.take(':') {
			d.fail("not JSON: want a colon at byte %d", d.pos)
			return
		}
		d.path = append(d.path, step{key: shown(key)})
		if !seen.add(key) && !d.lenient {
			d.fail("the key comes twice")
		}
		if !d.lenient || !d.literal("null") {
			read(key)
		}
		if d.err != nil {
			return
		}
		d.path = d.path[:len(d.path)-1]
		if d.take('}') {
			return
		}
		if !d.take(',') {
			d.fail("not JSON: want a comma or a closing brace at byte %d", d.pos)
		}
	}
}

// shown is a key as an error's path shows it: short, and never mistaken for an index.
func shown(key string) string {
	if key == "" || len(key) > 64 {
		return strconv.Quote(key[:min(len(key), 64)])
	}
	return key
}

// keys are the keys of an object.
type keys struct {
	few  []string
	many map[string]struct{}
	buf  [8]string
}

// add reports whether key is new.
func (k *keys) add(key string) bool {
	if k.many != nil {
		_, dup := k.many[key]
		k.many[key] = struct{}{}
		return !dup
	}
	if k.few == nil {
		k.few = k.buf[:0]
	}
	for _, s := range k.few {
		if s == key {
			return false
		}
	}
	k.few = append(k.few, key)
	if len(k.few) > len(k.buf) {
		k.many = make(map[string]struct{}, 2*len(k.few))
		for _, s := range k.few {
			k.many[s] = struct{}{}
		}
	}
	return true
}

// list reads a list of at most most elements; read is called for each.
func (d *decoder) list(most int, read func()) {
	if !d.take('[') {
		d.expect("a list")
		return
	}
	if len(d.path) >= maxDepth {
		d.fail("nested deeper than %d levels", maxDepth)
		return
	}
	if d.take(']') {
		return
	}
	for i := 0; d.err == nil; i++ {
		if i == most {
			d.fail("more than %d elements", most)
			return
		}
		d.path = append(d.path, step{index: i})
		read()
		if d.err != nil {
			return
		}
		d.path = d.path[:len(d.path)-1]
		if d.take(']') {
			return
		}
		if !d.take(',') {
			d.fail("not JSON: want a comma or a closing bracket at byte %d", d.pos)
		}
	}
}

// unknown refuses the field just named, or passes over its value when lenient.
func (d *decoder) unknown() {
	if !d.lenient {
		d.fail("unknown field")
		return
	}
	d.skip()
}

// skip passes over a value of any type.
func (d *decoder) skip() {
	switch c := d.peek(); {
	case c == '{':
		d.object(func(string) { d.skip() })
	case c == '[':
		d.list(len(d.in), d.skip)
	case c == '"':
		d.string()
	case c == '-' || c >= '0' && c <= '9':
		d.number()
	case d.literal("null"), d.literal("true"), d.literal("false"):
	default:
		d.expect("a value")
	}
}

func (d *decoder) bool() bool {
	switch {
	case d.literal("true"):
		return true
	case d.literal("false"):
		return false
	}
	d.expect("true or false")
	return false
}

// number returns the text of a number as JSON writes it.
func (d *decoder) number() string {
	c := d.peek()
	if d.err != nil || c != '-' && (c < '0' || c > '9') {
		d.expect("a number")
		return ""
	}
	start := d.pos
	digits := func() bool {
		from := d.pos
		for d.pos < len(d.in) && d.in[d.pos] >= '0' && d.in[d.pos] <= '9' {
			d.pos++
		}
		return d.pos > from
	}
	next := func(set string) bool {
		if d.pos < len(d.in) && strings.IndexByte(set, d.in[d.pos]) >= 0 {
			d.pos++
			return true
		}
		return false
	}
	next("-")
	ok := next("0") || digits()
	if ok && next(".") {
		ok = digits()
	}
	if ok && next("eE") {
		next("+-")
		ok = digits()
	}
	if !ok {
		d.fail("not JSON: a malformed number at byte %d", start)
		return ""
	}
	return string(d.in[start:d.pos])
}

// integer reads an integer between low and high.
func (d *decoder) integer(low, high int64) int64 {
	s := d.number()
	if d.err != nil {
		return 0
	}
	if strings.ContainsAny(s, ".eE") {
		d.fail("want an integer, not %s", s[:min(len(s), 32)])
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < low || n > high {
		d.fail("%s is not between %d and %d", s[:min(len(s), 32)], low, high)
		return 0
	}
	return n
}

// float reads a finite number.
func (d *decoder) float() float64 {
	s := d.number()
	if d.err != nil {
		return 0
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		d.fail("%s is out of range", s[:min(len(s), 32)])
		return 0
	}
	return f
}

// string reads a string.
func (d *decoder) string() string {
	if !d.take('"') {
		d.expect("a string")
		return ""
	}
	start := d.pos
	for d.pos < len(d.in) {
		switch c := d.in[d.pos]; {
		case c == '"':
			s := string(d.in[start:d.pos])
			if !utf8.ValidString(s) {
				d.fail("invalid UTF-8 in a string")
				return ""
			}
			d.pos++
			return s
		case c == '\\':
			return d.escaped(start)
		case c < ' ':
			d.fail("not JSON: a control character in a string at byte %d", d.pos)
			return ""
		}
		d.pos++
	}
	d.fail("not JSON: a string is never closed")
	return ""
}

// escaped reads a string that has escapes; d.pos is at the first.
func (d *decoder) escaped(start int) string {
	buf := append([]byte(nil), d.in[start:d.pos]...)
	for d.err == nil && d.pos < len(d.in) {
		switch c := d.in[d.pos]; {
		case c == '"':
			d.pos++
			if !utf8.Valid(buf) {
				d.fail("invalid UTF-8 in a string")
				return ""
			}
			return string(buf)
		case c == '\\':
			buf = d.escape(buf)
		case c < ' ':
			d.fail("not JSON: a control character in a string at byte %d", d.pos)
		default:
			buf = append(buf, c)
			d.pos++
		}
	}
	d.fail("not JSON: a string is never closed")
	return ""
}

// escape appends what the escape at d.pos means.
func (d *decoder) escape(buf []byte) []byte {
	if d.pos+1 < len(d.in) {
		c := d.in[d.pos+1]
		if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
			d.pos += 2
			return append(buf, "\"\\/\b\f\n\r\t"[i])
		}
		if c == 'u' {
			return utf8.AppendRune(buf, d.unicode())
		}
	}
	d.fail("not JSON: a malformed escape at byte %d", d.pos)
	return buf
}

// unicode reads a \u escape, or a pair of them.
func (d *decoder) unicode() rune {
	r := d.hex4()
	if !utf16.IsSurrogate(r) {
		return r
	}
	if d.pos+1 < len(d.in) && d.in[d.pos] == '\\' && d.in[d.pos+1] == 'u' {
		if r = utf16.DecodeRune(r, d.hex4()); r != utf8.RuneError {
			return r
		}
	}
	d.fail("half of a surrogate pair in a string")
	return 0
}

func (d *decoder) hex4() rune {
	if d.pos+6 > len(d.in) {
		d.fail("not JSON: a malformed escape at byte %d", d.pos)
		return 0
	}
	n, err := strconv.ParseUint(string(d.in[d.pos+2:d.pos+6]), 16, 16)
	if err != nil {
		d.fail("not JSON: a malformed escape at byte %d", d.pos)
		return 0
	}
	d.pos += 6
	return rune(n)
}
