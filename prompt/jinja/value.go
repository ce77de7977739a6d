package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Map is a mapping whose keys keep their order.
type Map struct {
	keys []string
	at   map[string]any
}

// Set adds a key, or changes its value.
func (m *Map) Set(key string, value any) {
	if m.at == nil {
		m.at = map[string]any{}
	}
	if _, ok := m.at[key]; !ok {
		m.keys = append(m.keys, key)
	}
	m.at[key] = value
}

type (
	undefined struct{ name string }
	list      struct {
		items []any
		tuple bool
	}
	// stream is what Python calls a generator: it can be read once, and has no length.
	stream    struct{ items []any }
	namespace struct{ vars map[string]any }
	loop      struct{ index, length int }
)

// value returns a variable of a rendering in the form that expressions use.
func (e *env) value(v any) any {
	e.spend(1)
	switch v := v.(type) {
	case nil, bool, int64, float64, string:
		return v
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = e.value(v[i])
		}
		return list{items: out}
	case *Map:
		out := &Map{}
		for _, k := range v.keys {
			out.Set(k, e.value(v.at[k]))
		}
		return out
	}
	e.stop("a variable is a %T", v)
	return nil
}

// kind names the type of a value.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case undefined:
		return "undefined: " + v.name
	case bool:
		return "a boolean"
	case int64:
		return "an integer"
	case float64:
		return "a float"
	case string:
		return "a text"
	case list:
		return "a list"
	case *Map:
		return "a mapping"
	case *namespace:
		return "a namespace"
	}
	return "no plain value"
}

func space(r rune) bool { return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f }

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case list:
		return len(v.items) > 0
	case *Map:
		return len(v.keys) > 0
	}
	return true
}

// number returns the value of a number. Booleans are numbers, as in Python.
func number(v any) (i int64, f float64, whole, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

// equal compares two values.
func (e *env) equal(a, b any) bool {
	e.spend(1)
	e.enter()
	defer func() { e.depth-- }()
	if ai, af, aw, ok := number(a); ok {
		bi, bf, bw, ok := number(b)
		return ok && (aw && bw && ai == bi || !(aw && bw) && af == bf)
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case undefined:
		_, ok := b.(undefined)
		return ok
	case string:
		b, ok := b.(string)
		if !ok || len(a) != len(b) {
			return false
		}
		e.spend(len(a))
		return a == b
	case list:
		b, ok := b.(list)
		return ok && a.tuple == b.tuple && slices.EqualFunc(a.items, b.items, e.equal)
	case *Map:
		b, ok := b.(*Map)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for _, k := range a.keys {
			if v, has := b.at[k]; !has || !e.equal(a.at[k], v) {
				return false
			}
		}
		return true
	}
	return a == b
}

// less compares two numbers or two texts.
func (e *env) less(a, b any) bool {
	if s, ok := a.(string); ok {
		if t, ok := b.(string); ok {
			e.spend(min(len(s), len(t)))
			return s < t
		}
	}
	ai, af, aw, ok := number(a)
	bi, bf, bw, also := number(b)
	if !ok || !also {
		e.stop("%s and %s cannot be ordered", kind(a), kind(b))
	}
	if aw && bw {
		return ai < bi
	}
	return af < bf
}

// in reports whether a value is in a list, a mapping or a text.
func (e *env) in(v, all any) bool {
	switch all := all.(type) {
	case string:
		s, ok := v.(string)
		if !ok {
			e.stop("%s cannot be in a text", kind(v))
		}
		e.spend(len(all))
		return strings.Contains(all, s)
	case *Map:
		s, ok := v.(string)
		if isKind[list](v) || isKind[*Map](v) {
			e.stop("%s cannot be in a mapping", kind(v))
		}
		_, has := all.at[s]
		return ok && has
	}
	return slices.ContainsFunc(e.items(all), func(x any) bool { return e.equal(x, v) })
}

// items returns what a loop over a value goes through.
func (e *env) items(v any) []any {
	switch v := v.(type) {
	case undefined:
		return nil
	case list:
		e.spend(len(v.items))
		return v.items
	case *stream:
		out := v.items
		v.items = nil
		return out
	case *Map:
		e.spend(len(v.keys))
		out := make([]any, len(v.keys))
		for i, k := range v.keys {
			out[i] = k
		}
		return out
	case string:
		e.spend(len(v))
		var out []any
		for _, r := range v {
			out = append(out, string(r))
		}
		return out
	}
	e.stop("%s has no elements", kind(v))
	return nil
}

// length returns the number of elements of a value.
func (e *env) length(v any) int {
	switch v := v.(type) {
	case undefined:
		return 0
	case string:
		e.spend(len(v))
		return utf8.RuneCountInString(v)
	case list:
		return len(v.items)
	case *Map:
		return len(v.keys)
	}
	e.stop("%s has no length", kind(v))
	return 0
}

// attribute returns an attribute or an element with a name.
func (e *env) attribute(v any, of string) any {
	switch v := v.(type) {
	case undefined:
		e.stop("%s is undefined, it has no %s", v.name, of)
	case *Map:
		if x, ok := v.at[of]; ok {
			return x
		}
	case *namespace:
		if x, ok := v.vars[of]; ok {
			return x
		}
	case *loop:
		return e.loopAttribute(v, of)
	}
	return undefined{of}
}

func (e *env) loopAttribute(l *loop, of string) any {
	switch of {
	case "index":
		return int64(l.index + 1)
	case "index0":
		return int64(l.index)
	case "revindex":
		return int64(l.length - l.index)
	case "revindex0":
		return int64(l.length - l.index - 1)
	case "first":
		return l.index == 0
	case "last":
		return l.index == l.length-1
	case "length":
		return int64(l.length)
	}
	e.stop("loop.%s is not supported", of)
	return nil
}

// element returns v[key].
func (e *env) element(v, key any) any {
	if s, ok := key.(string); ok {
		return e.attribute(v, s)
	}
	if u, ok := v.(undefined); ok {
		e.stop("%s is undefined, it has no elements", u.name)
	}
	i, _, whole, ok := number(key)
	_, text := v.(string)
	l, isList := v.(list)
	if !ok || !whole || !text && !isList {
		return undefined{"an element"}
	}
	if text {
		l.items = e.items(v)
	}
	if i < 0 {
		i += int64(len(l.items))
	}
	if i < 0 || i >= int64(len(l.items)) {
		return undefined{"an element"}
	}
	return l.items[i]
}

// slice returns v[from:to:step]; absent bounds are nil.
func (e *env) slice(v, from, to, step any) any {
	_, text := v.(string)
	l, isList := v.(list)
	if !text && !isList {
		e.stop("%s has no slices", kind(v))
	}
	all := e.items(v)
	n := int64(len(all))
	by := int64(1)
	if step != nil {
		by = e.integer(step)
	}
	if by == 0 {
		e.stop("the step of a slice is 0")
	}
	low, high := int64(0), n // where a slice may begin and end
	if by < 0 {
		low, high = -1, n-1
	}
	bound := func(v any, absent int64) int64 {
		if v == nil {
			return absent
		}
		i := e.integer(v)
		if i < 0 {
			i = max(i, -n-1) + n
		}
		return min(max(i, low), high)
	}
	begin, stop := bound(from, low), bound(to, high)
	if by < 0 {
		begin, stop = bound(from, high), bound(to, low)
	}
	by = min(max(by, -n-1), n+1)
	var out []any
	for i := begin; by > 0 && i < stop || by < 0 && i > stop; i += by {
		out = append(out, all[i])
	}
	e.spend(len(out))
	if !text {
		return list{out, l.tuple}
	}
	var b strings.Builder
	for _, c := range out {
		b.WriteString(c.(string))
	}
	return e.made(b.String())
}

func (e *env) integer(v any) int64 {
	i, _, whole, ok := number(v)
	if !ok || !whole {
		e.stop("%s is not an integer", kind(v))
	}
	return i
}

// text returns a value as a template prints it.
func (e *env) text(v any) string {
	switch v := v.(type) {
	case undefined:
		return ""
	case string:
		return v
	}
	var b strings.Builder
	e.print(&b, v, 0)
	return e.made(b.String())
}

// print writes a value as Python's repr does.
func (e *env) print(b *strings.Builder, v any, depth int) {
	if e.spend(1); depth > maxDepth {
		e.stop("values are nested more than %d deep", maxDepth)
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		b.WriteString(map[bool]string{false: "False", true: "True"}[v])
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(floatText(v))
	case string:
		e.spend(len(v))
		b.WriteString(quoted(v))
	case undefined:
		b.WriteString("Undefined")
	case list:
		marks := "[]"
		if v.tuple {
			marks = "()"
		}
		b.WriteByte(marks[0])
		for i, x := range v.items {
			if i > 0 {
				b.WriteString(", ")
			}
			e.print(b, x, depth+1)
		}
		if v.tuple && len(v.items) == 1 {
			b.WriteByte(',')
		}
		b.WriteByte(marks[1])
	case *Map:
		b.WriteByte('{')
		for i, k := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(quoted(k) + ": ")
			e.print(b, v.at[k], depth+1)
		}
		b.WriteByte('}')
	default:
		e.stop("%s cannot be printed", kind(v))
	}
}

// floatText returns a float as Python prints it.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 0):
		return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(f, 'f', -1, 64), "+"))
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// quoted returns a text as Python's repr does.
func quoted(s string) string {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	var b strings.Builder
	b.WriteByte(quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			b.WriteString(`\` + string(r))
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			b.WriteString(`\x` + hex(r, 2))
		case r < 0x10000:
			b.WriteString(`\u` + hex(r, 4))
		default:
			b.WriteString(`\U` + hex(r, 8))
		}
	}
	b.WriteByte(quote)
	return b.String()
}

func hex(r rune, digits int) string {
	s := strconv.FormatInt(int64(r), 16)
	return strings.Repeat("0", max(0, digits-len(s))) + s
}
