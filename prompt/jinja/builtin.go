package jinja

import (
	"encoding/json"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// compute applies an operator.
func (e *env) compute(op string, a, b any) any {
	e.spend(1)
	if op == "~" {
		return e.made(e.text(a) + e.text(b))
	}
	if s, ok := a.(string); ok && op == "+" {
		if t, ok := b.(string); ok {
			e.spend(len(s) + len(t))
			return s + t
		}
	}
	if s, ok := a.(string); ok && op == "*" {
		if n, ok := b.(int64); ok {
			n = max(n, 0)
			if high, low := bits.Mul64(uint64(len(s)), uint64(n)); high > 0 || low > math.MaxInt32 {
				e.stop("%w", ErrLimit)
			}
			e.spend(len(s) * int(n))
			return strings.Repeat(s, int(n))
		}
	}
	if l, ok := a.(list); ok && op == "+" {
		if m, ok := b.(list); ok && l.tuple == m.tuple {
			e.spend(len(l.items) + len(m.items))
			return list{slices.Concat(l.items, m.items), l.tuple}
		}
	}
	ai, af, aw, ok := number(a)
	bi, bf, bw, also := number(b)
	if !ok || !also {
		e.stop("%s %s %s is not supported", kind(a), op, kind(b))
	}
	if aw && bw && op != "/" {
		return e.computeInts(op, ai, bi)
	}
	switch op {
	case "+":
		return af + bf
	case "-":
		return af - bf
	case "*":
		return af * bf
	}
	if bf == 0 {
		e.stop("a division by zero")
	}
	switch op {
	case "/":
		return af / bf
	case "//":
		return math.Floor(af / bf)
	}
	return af - bf*math.Floor(af/bf)
}

func (e *env) computeInts(op string, a, b int64) any {
	switch op {
	case "+":
		if c := a + b; (c > a) == (b > 0) {
			return c
		}
	case "-":
		if c := a - b; (c < a) == (b > 0) {
			return c
		}
	case "*":
		if c := a * b; a == 0 || c/a == b && !(a == -1 && b == math.MinInt64) {
			return c
		}
	default:
		if b == 0 {
			e.stop("a division by zero")
		}
		if a == math.MinInt64 && b == -1 {
			break
		}
		q, r := a/b, a%b
		if r != 0 && (r < 0) != (b < 0) {
			q, r = q-1, r+b
		}
		if op == "//" {
			return q
		}
		return r
	}
	e.stop("a number does not fit in 64 bits")
	return nil
}

// function is what a template can call.
type function func(e *env, args arguments) any

var functions = map[string]function{
	"namespace": func(e *env, args arguments) any {
		if len(args.list) > 0 {
			e.stop("namespace takes arguments with names")
		}
		return &namespace{args.named}
	},
	"raise_exception": func(e *env, args arguments) any {
		e.stop("%s", e.text(e.argument(args, 0, "message", "")))
		return nil
	},
	"range": func(e *env, args arguments) any {
		if len(args.list) == 0 || len(args.list) > 3 || len(args.named) > 0 {
			e.stop("range takes 1 to 3 integers")
		}
		from, to, step := int64(0), e.integer(args.list[0]), int64(1)
		if len(args.list) > 1 {
			from, to = to, e.integer(args.list[1])
		}
		if len(args.list) > 2 {
			step = e.integer(args.list[2])
		}
		if step == 0 {
			e.stop("the step of range is 0")
		}
		if step > math.MaxInt32 || step < -math.MaxInt32 || max(from, to) > math.MaxInt32 || min(from,
			to) < -math.MaxInt32 {
			e.stop("%w", ErrLimit)
		}
		var out []any
		for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
			e.spend(1)
			out = append(out, i)
		}
		return list{items: out}
	},
}

// argument returns an argument by its place or its name.
func (e *env) argument(args arguments, i int, called string, absent any) any {
	if i < len(args.list) {
		return args.list[i]
	}
	if v, ok := args.named[called]; ok {
		return v
	}
	return absent
}

// only checks that a call has no more arguments than some, and no names but these.
func (e *env) only(called string, args arguments, n int, names ...string) {
	if len(args.list) > n {
		e.stop("%s takes at most %d arguments", called, n)
	}
	for k := range args.named {
		if !slices.Contains(names, k) {
			e.stop("%s does not take %s", called, k)
		}
	}
}

// string returns a value that must be a text.
func (e *env) string(v any, of string) string {
	s, ok := v.(string)
	if !ok {
		e.stop("%s needs a text, not %s", of, kind(v))
	}
	e.spend(len(s))
	return s
}

// method is a method of texts or mappings.
type method func(e *env, v any, called string, args arguments) any

var methods = map[string]method{
	"startswith": affix(strings.HasPrefix), "endswith": affix(strings.HasSuffix),
	"strip":  strip(strings.TrimFunc),
	"lstrip": strip(strings.TrimLeftFunc), "rstrip": strip(strings.TrimRightFunc),
	"upper": plain(strings.ToUpper), "lower": plain(strings.ToLower), "capitalize": plain(capitalized),
	"split": splitMethod, "replace": replaceMethod,
	"removeprefix": cut(strings.TrimPrefix), "removesuffix": cut(strings.TrimSuffix),
	"join": func(e *env, v any, called string, args arguments) any {
		e.only(called, args, 1)
		return e.join(e.argument(args, 0, "", undefined{}), e.string(v, called))
	},
	"get": func(e *env, v any, called string, args arguments) any {
		e.only(called, args, 2)
		if x, ok := e.mapping(v, called).at[e.string(e.argument(args, 0, "", nil), called)]; ok {
			return x
		}
		return e.argument(args, 1, "", nil)
	},
	"items": func(e *env, v any, called string, args arguments) any {
		e.only(called, args, 0)
		return list{items: e.pairs(e.mapping(v, called))}
	},
	"keys": func(e *env, v any, called string, args arguments) any {
		e.only(called, args, 0)
		return list{items: e.items(e.mapping(v, called))}
	},
	"values": func(e *env, v any, called string, args arguments) any {
		e.only(called, args, 0)
		m := e.mapping(v, called)
		out := make([]any, len(m.keys))
		for i, k := range m.keys {
			out[i] = m.at[k]
		}
		return list{items: out}
	},
}

func (e *env) mapping(v any, of string) *Map {
	m, ok := v.(*Map)
	if !ok {
		e.stop("%s needs a mapping, not %s", of, kind(v))
	}
	e.spend(len(m.keys))
	return m
}

func (e *env) pairs(m *Map) []any {
	out := make([]any, len(m.keys))
	for i, k := range m.keys {
		out[i] = list{[]any{k, m.at[k]}, true}
	}
	return out
}

func affix(has func(s, part string) bool) method {
	return func(e *env, v any, called string, args arguments) any {
		e.only(called, args, 1)
		s := e.string(v, called)
		parts := []any{e.argument(args, 0, "", nil)}
		if l, ok := parts[0].(list); ok && l.tuple {
			parts = l.items
		}
		return slices.ContainsFunc(parts, func(x any) bool { return has(s, e.string(x, called)) })
	}
}

func cut(do func(s, part string) string) method {
	return func(e *env, v any, called string, args arguments) any {
		e.only(called, args, 1)
		return do(e.string(v, called), e.string(e.argument(args, 0, "", nil), called))
	}
}

func plain(do func(string) string) method {
	return func(e *env, v any, called string, args arguments) any {
		e.only(called, args, 0)
		return do(e.string(v, called))
	}
}

func strip(do func(string, func(rune) bool) string) method {
	return func(e *env, v any, called string, args arguments) any {
		e.only(called, args, 1)
		return e.strip(e.string(v, called), e.argument(args, 0, "", nil), do)
	}
}

// strip cuts characters off a text; white space if none are given.
func (e *env) strip(s string, chars any, do func(string, func(rune) bool) string) string {
	if chars == nil {
		return do(s, space)
	}
	set := e.string(chars, "strip")
	return do(s, func(r rune) bool {
		e.spend(1)
		return strings.ContainsRune(set, r)
	})
}

func splitMethod(e *env, v any, called string, args arguments) any {
	e.only(called, args, 2, "sep", "maxsplit")
	s, n := e.string(v, called), e.integer(e.argument(args, 1, "maxsplit", int64(-1)))
	var parts []string
	if by := e.argument(args, 0, "sep", nil); by == nil {
		if n >= 0 {
			e.stop("split with a number of parts needs what is between them")
		}
		parts = strings.FieldsFunc(s, space)
	} else {
		sep := e.string(by, called)
		if sep == "" {
			e.stop("split needs what is between the parts")
		}
		if n < 0 || n > int64(len(s)) {
			n = int64(len(s))
		}
		parts = strings.SplitN(s, sep, int(n)+1)
	}
	e.spend(len(parts))
	out := make([]any, len(parts))
	for i := range parts {
		out[i] = parts[i]
	}
	return list{items: out}
}

func replaceMethod(e *env, v any, called string, args arguments) any {
	e.only(called, args, 3)
	s, from, to := e.string(v, called), e.string(e.argument(args, 0, "", nil), called), e.string(e.argument(args, 1,
		"", nil), called)
	n := e.integer(e.argument(args, 2, "", int64(-1)))
	found := min(uint64(n), uint64(strings.Count(s, from)))
	if high, low := bits.Mul64(found, uint64(len(to))); high > 0 || low > math.MaxInt32 {
		e.stop("%w", ErrLimit)
	} else {
		e.spend(int(low))
	}
	return strings.Replace(s, from, to, int(min(found, math.MaxInt32)))
}

func capitalized(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return string(unicode.ToTitle(r)) + strings.ToLower(s[n:])
}

// title capitalises words as Jinja's filter does.
func title(s string) string {
	begins := true
	return strings.Map(func(r rune) rune {
		first := begins
		if begins = space(r) || strings.ContainsRune("-({[<", r); first {
			return unicode.ToUpper(r)
		}
		return unicode.ToLower(r)
	}, s)
}

func (e *env) join(v any, by string) string {
	var b strings.Builder
	for i, x := range e.items(v) {
		if i > 0 {
			e.spend(len(by))
			b.WriteString(by)
		}
		b.WriteString(e.made(e.text(x)))
	}
	return b.String()
}

// filter is what follows a |.
type filter func(e *env, v any, args arguments) any

var filters map[string]filter

func init() { // filters and tests refer to each other
	filters = map[string]filter{
		"trim": func(e *env, v any, args arguments) any {
			e.only("trim", args, 1, "chars")
			return e.strip(e.text(v), e.argument(args, 0, "chars", nil), strings.TrimFunc)
		},
		"upper": onText("upper", strings.ToUpper), "lower": onText("lower", strings.ToLower),
		"capitalize": onText("capitalize", capitalized), "title": onText("title", title),
		"string": onText("string", func(s string) string { return s }), "safe": onText("safe",
			func(s string) string { return s }),
		"length": lengthFilter, "count": lengthFilter, "default": defaultFilter, "d": defaultFilter,
		"tojson": toJSON, "int": toInt, "indent": indent, "map": mapFilter,
		"select": choose(false, true), "reject": choose(false, false),
		"selectattr": choose(true, true), "rejectattr": choose(true, false),
		"join": func(e *env, v any, args arguments) any {
			e.only("join", args, 1, "d")
			return e.join(v, e.text(e.argument(args, 0, "d", "")))
		},
		"list": func(e *env, v any, args arguments) any {
			e.only("list", args, 0)
			return list{items: e.items(v)}
		},
		"items": func(e *env, v any, args arguments) any {
			e.only("items", args, 0)
			if _, ok := v.(undefined); ok {
				return &stream{}
			}
			return &stream{e.pairs(e.mapping(v, "items"))}
		},
		"first": func(e *env, v any, args arguments) any {
			e.only("first", args, 0)
			if s, ok := v.(*stream); ok && len(s.items) > 0 {
				x := s.items[0]
				s.items = s.items[1:]
				return x
			}
			for _, x := range e.items(v) {
				return x
			}
			return undefined{"the first element of nothing"}
		},
		"last": func(e *env, v any, args arguments) any {
			e.only("last", args, 0)
			if _, ok := v.(*stream); ok {
				e.stop("last needs a list: use list before it")
			}
			all := e.items(v)
			if len(all) == 0 {
				return undefined{"the last element of nothing"}
			}
			return all[len(all)-1]
		},
		"reverse": func(e *env, v any, args arguments) any {
			e.only("reverse", args, 0)
			all := slices.Clone(e.items(v))
			slices.Reverse(all)
			if _, ok := v.(string); ok {
				return e.join(list{items: all}, "")
			}
			return &stream{all}
		},
		"replace": func(e *env, v any, args arguments) any {
			e.only("replace", args, 2)
			return replaceMethod(e, e.text(v), "replace", args)
		},
	}
}

func onText(called string, do func(string) string) filter {
	return func(e *env, v any, args arguments) any {
		e.only(called, args, 0)
		return e.made(do(e.made(e.text(v))))
	}
}

func lengthFilter(e *env, v any, args arguments) any {
	e.only("length", args, 0)
	return int64(e.length(v))
}

func defaultFilter(e *env, v any, args arguments) any {
	e.only("default", args, 2, "default_value", "boolean")
	if _, none := v.(undefined); none || truth(e.argument(args, 1, "boolean", false)) && !truth(v) {
		return e.argument(args, 0, "default_value", "")
	}
	return v
}

func toInt(e *env, v any, args arguments) any {
	e.only("int", args, 1, "default")
	if s, ok := v.(string); ok {
		if n, err := strconv.ParseInt(strings.TrimFunc(s, space), 10, 64); err == nil {
			return n
		}
		return e.argument(args, 0, "default", int64(0))
	}
	n, f, whole, ok := number(v)
	switch {
	case !ok || math.IsNaN(f):
		return e.argument(args, 0, "default", int64(0))
	case !whole && math.Abs(f) >= 1<<63:
		e.stop("a number does not fit in 64 bits")
	case !whole:
		return int64(f)
	}
	return n
}

// indent puts spaces before lines, but the first one and empty ones.
func indent(e *env, v any, args arguments) any {
	e.only("indent", args, 3, "width", "first", "blank")
	width, ok := e.argument(args, 0, "width", int64(4)).(int64)
	if !ok || width < 0 || width > 100 {
		e.stop("the width of indent is not 0 to 100")
	}
	by := strings.Repeat(" ", int(width))
	lines := strings.Split(e.string(v, "indent"), "\n")
	for i := range lines {
		first := i == 0 && !truth(e.argument(args, 1, "first", false))
		if first || lines[i] == "" && i > 0 && !truth(e.argument(args, 2, "blank", false)) {
			continue
		}
		e.spend(len(by) + len(lines[i]))
		lines[i] = by + lines[i]
	}
	return strings.Join(lines, "\n")
}

// mapFilter replaces elements by one of their attributes, or by what a filter makes of them.
func mapFilter(e *env, v any, args arguments) any {
	e.only("map", args, math.MaxInt, "attribute", "default")
	var out []any
	by, named := args.named["attribute"]
	for _, x := range e.items(v) {
		if named {
			x = e.path(x, by)
			if _, none := x.(undefined); none {
				x = e.argument(args, math.MaxInt, "default", x)
			}
		} else {
			called := e.string(e.argument(args, 0, "", nil), "map")
			f, ok := filters[called]
			if !ok {
				e.stop("the filter %s is not supported", called)
			}
			x = f(e, x, arguments{list: args.list[1:]})
		}
		out = append(out, x)
	}
	return &stream{out}
}

// path returns the attribute of an attribute …, by names between dots or a number.
func (e *env) path(v, names any) any {
	if _, ok := names.(int64); ok {
		return e.element(v, names)
	}
	for _, part := range strings.Split(e.string(names, "attribute"), ".") {
		if n, err := strconv.ParseInt(part, 10, 64); err == nil {
			v = e.element(v, n)
		} else {
			v = e.attribute(v, part)
		}
	}
	return v
}

// choose keeps the elements that pass a test, or those that do not.
func choose(attribute, keep bool) filter {
	return func(e *env, v any, args arguments) any {
		e.only("select", args, math.MaxInt)
		rest := args.list
		var of any
		if attribute {
			of = e.argument(args, 0, "", nil)
			rest = rest[min(1, len(rest)):]
		}
		var out []any
		for _, x := range e.items(v) {
			e.spend(1)
			at := x
			if attribute {
				at = e.path(x, of)
			}
			passes := truth(at)
			if len(rest) > 0 {
				called := e.string(rest[0], "select")
				t, ok := tests[called]
				if !ok {
					e.stop("the test %q is not supported", called)
				}
				passes = t.check(e, at, arguments{list: rest[1:]})
			}
			if passes == keep {
				out = append(out, x)
			}
		}
		return &stream{out}
	}
}

// test is what follows an is.
type test struct {
	takes int // arguments
	check func(e *env, v any, args arguments) bool
}

// simple is a test without arguments.
func simple(check func(v any) bool) test {
	return test{0, func(e *env, v any, args arguments) bool {
		e.only("a test", args, 0)
		return check(v)
	}}
}

// against is a test with one argument.
func against(check func(e *env, a, b any) bool) test {
	return test{1, func(e *env, v any, args arguments) bool {
		if len(args.list) != 1 || len(args.named) > 0 {
			e.stop("a test needs one argument")
		}
		return check(e, v, args.list[0])
	}}
}

func isKind[T any](v any) bool {
	_, ok := v.(T)
	return ok
}

var tests = map[string]test{
	"defined":   simple(func(v any) bool { return !isKind[undefined](v) }),
	"undefined": simple(isKind[undefined]),
	"none":      simple(func(v any) bool { return v == nil }),
	"string":    simple(isKind[string]), "mapping": simple(isKind[*Map]),
	"boolean": simple(isKind[bool]), "integer": simple(isKind[int64]), "float": simple(isKind[float64]),
	"true":  simple(func(v any) bool { return v == true }),
	"false": simple(func(v any) bool { return v == false }),
	"number": simple(func(v any) bool {
		_, _, _, ok := number(v)
		return ok
	}),
	"iterable": simple(func(v any) bool {
		return isKind[string](v) || isKind[list](v) || isKind[*Map](v) || isKind[*stream](v) || isKind[undefined](v)
	}),
	"sequence": simple(func(v any) bool {
		return isKind[string](v) || isKind[list](v) || isKind[*Map](v) || isKind[undefined](v)
	}),
	"odd":         {0, func(e *env, v any, args arguments) bool { return e.integer(v)&1 == 1 }},
	"even":        {0, func(e *env, v any, args arguments) bool { return e.integer(v)&1 == 0 }},
	"divisibleby": against(func(e *env, a, b any) bool { return e.equal(e.compute("%", a, b), int64(0)) }),
	"equalto":     against((*env).equal), "eq": against((*env).equal), "==": against((*env).equal),
	"ne": against(func(e *env, a, b any) bool { return !e.equal(a, b) }),
	"in": against((*env).in),
}

// toJSON writes a value as json.dumps does with ensure_ascii=False.
func toJSON(e *env, v any, args arguments) any {
	e.only("tojson", args, 1, "indent")
	width := -1
	if n := e.argument(args, 0, "indent", nil); n != nil {
		if width = int(e.integer(n)); width < 0 || width > 100 {
			e.stop("the indent of tojson is not 0 to 100")
		}
	}
	var b strings.Builder
	e.json(&b, v, width, 0)
	return e.made(b.String())
}

func (e *env) json(b *strings.Builder, v any, width, depth int) {
	if e.spend(1); depth > maxDepth {
		e.stop("values are nested more than %d deep", maxDepth)
	}
	newLine := func(depth int) {
		if width >= 0 {
			e.spend(width * depth)
			b.WriteString("\n" + strings.Repeat(" ", width*depth))
		}
	}
	group := func(marks string, n int, element func(i int)) {
		b.WriteByte(marks[0])
		for i := range n {
			if i > 0 && width >= 0 {
				b.WriteString(",")
			} else if i > 0 {
				b.WriteString(", ")
			}
			newLine(depth + 1)
			element(i)
		}
		if n > 0 {
			newLine(depth)
		}
		b.WriteByte(marks[1])
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			e.stop("%v has no JSON", v)
		}
		b.WriteString(floatText(v))
	case string:
		e.spend(len(v))
		b.WriteString(jsonText(v))
	case list:
		group("[]", len(v.items), func(i int) { e.json(b, v.items[i], width, depth+1) })
	case *Map:
		group("{}", len(v.keys), func(i int) {
			b.WriteString(jsonText(v.keys[i]) + ": ")
			e.json(b, v.at[v.keys[i]], width, depth+1)
		})
	default:
		e.stop("%s has no JSON", kind(v))
	}
}

// jsonText returns a text in JSON. Only what must be escaped is.
func jsonText(s string) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // texts can be encoded
	out := strings.TrimSuffix(b.String(), "\n")
	return strings.NewReplacer(`\u2028`, "\u2028", `\u2029`, "\u2029").Replace(out)
}
