package jinja

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

type pieceKind int

const (
	literal   pieceKind = iota // text outside of tags
	output                     // {{ … }}
	statement                  // {% … %}
)

// piece is a part of a template.
type piece struct {
	kind   pieceKind
	text   string  // of a literal
	tokens []token // of a tag; the last has the kind end
	line   int
}

type tokenKind int

const (
	end tokenKind = iota
	name
	text
	integer
	float
	operator
)

type token struct {
	kind tokenKind
	text string // of a text: without quotes and escapes
	line int
}

// is reports whether a token is an operator or a word of the language.
func (t token) is(word string) bool {
	return (t.kind == operator || t.kind == name) && t.text == word
}

var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n")

// split cuts a template into pieces and trims what stands around blocks.
func split(source string) []piece {
	s := &splitter{in: strings.TrimSuffix(lineEnds.Replace(source), "\n")}
	for s.pos < len(s.in) {
		i := strings.IndexByte(s.in[s.pos:], '{')
		for i >= 0 && (s.pos+i+1 >= len(s.in) || !strings.ContainsRune("{%#", rune(s.in[s.pos+i+1]))) {
			j := strings.IndexByte(s.in[s.pos+i+1:], '{')
			if j < 0 {
				i = -1
				break
			}
			i += 1 + j
		}
		if i < 0 {
			s.literal(s.in[s.pos:])
			break
		}
		s.tag(s.pos + i)
	}
	return s.out
}

type splitter struct {
	in   string
	pos  int
	out  []piece
	line int // at lineOf
	read int // how far lines are counted
}

// lineAt returns the line of a position. Positions must not go back.
func (s *splitter) lineAt(pos int) int {
	s.line += strings.Count(s.in[s.read:pos], "\n")
	s.read = pos
	return s.line + 1
}

func (s *splitter) literal(t string) {
	if t != "" {
		s.out = append(s.out, piece{kind: literal, text: t, line: s.lineAt(s.pos)})
	}
}

// tag reads the text before a tag, and the tag.
func (s *splitter) tag(at int) {
	before, kind, body := s.in[s.pos:at], s.in[at+1], at+2
	sign := byte(0)
	if body < len(s.in) && (s.in[body] == '-' || s.in[body] == '+') && !(kind == '{' && s.in[body] == '+') {
		sign = s.in[body]
		body++
	}
	switch {
	case sign == '-':
		before = strings.TrimRightFunc(before, space)
	case sign == 0 && kind != '{':
		if from := strings.LastIndexByte(before, '\n') + 1; from > 0 || s.pos == 0 || s.in[s.pos-1] == '\n' {
			if strings.TrimFunc(before[from:], space) == "" {
				before = before[:from]
			}
		}
	}
	s.literal(before)
	if kind == '#' {
		n := strings.Index(s.in[body:], "#}")
		if n < 0 {
			stop(s.lineAt(at), "a comment has no end")
		}
		s.close(body+n+2, s.in[body+n-1], true)
		return
	}
	p := piece{kind: output, line: s.lineAt(at)}
	if kind == '%' {
		p.kind = statement
	}
	p.tokens = s.tokens(body, p)
	if len(p.tokens) == 1 {
		stop(p.line, "an empty tag")
	}
	s.out = append(s.out, p)
}

// close goes behind a tag that ends at a position, and passes over white space.
func (s *splitter) close(pos int, sign byte, block bool) {
	s.pos = pos
	rest := s.in[pos:]
	switch {
	case sign == '-':
		s.pos = len(s.in) - len(strings.TrimLeftFunc(rest, space))
	case block && sign != '+' && strings.HasPrefix(rest, "\n"):
		s.pos++
	}
}

var tokenKinds = []struct {
	kind tokenKind
	re   *regexp.Regexp
}{
	{name, regexp.MustCompile(`^[A-Za-z_][A-Za-z_0-9]*`)},
	{float, regexp.MustCompile(`^[0-9]+(\.[0-9]+([eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)`)},
	{integer, regexp.MustCompile(`^[0-9]+`)},
	{text, regexp.MustCompile(`^("([^"\\]|\\[\s\S])*"|'([^'\\]|\\[\s\S])*')`)},
	{operator, regexp.MustCompile(`^(//|==|!=|>=|<=|[-+*/~%><=.:|,()\[\]{}])`)},
}

// tokens reads a tag up to its end, and goes behind it.
func (s *splitter) tokens(pos int, p piece) (out []token) {
	mark := "}}"
	if p.kind == statement {
		mark = "%}"
	}
	for depth := 0; ; {
		pos = len(s.in) - len(strings.TrimLeftFunc(s.in[pos:], space))
		rest := s.in[pos:]
		if depth == 0 {
			sign := byte(0)
			if rest != "" && (rest[0] == '-' || rest[0] == '+' && p.kind == statement) && strings.HasPrefix(rest[1:],
				mark) {
				sign, rest, pos = rest[0], rest[1:], pos+1
			}
			if strings.HasPrefix(rest, mark) {
				s.close(pos+2, sign, p.kind == statement)
				return append(out, token{kind: end, line: s.lineAt(pos)})
			}
		}
		line := s.lineAt(pos)
		if rest == "" {
			stop(p.line, "a tag has no end")
		}
		t, n := scan(rest, line)
		if t.kind == operator {
			switch t.text {
			case "(", "[", "{":
				depth++
			case ")", "]", "}":
				depth--
			}
		}
		out = append(out, t)
		pos += n
	}
}

// scan reads one token and returns its length.
func scan(in string, line int) (token, int) {
	for _, k := range tokenKinds {
		found := k.re.FindString(in)
		if found == "" {
			continue
		}
		t := token{k.kind, found, line}
		if k.kind == text {
			t.text = unescape(found[1:len(found)-1], line)
		}
		return t, len(found)
	}
	r, _ := utf8.DecodeRuneInString(in)
	stop(line, "%q is not expected", r)
	return token{}, 0
}

var escapes = map[byte]string{'n': "\n", 't': "\t", 'r': "\r", '\\': "\\", '\'': "'", '"': `"`, '\n': "",
	'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v"}

// unescape resolves the escapes of a text as Python does.
func unescape(s string, line int) string {
	var out strings.Builder
	for {
		i := strings.IndexByte(s, '\\')
		if i < 0 {
			return out.String() + s
		}
		out.WriteString(s[:i])
		c := s[i+1]
		if e, ok := escapes[c]; ok {
			out.WriteString(e)
			s = s[i+2:]
			continue
		}
		size := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		if size == 0 || len(s) < i+2+size {
			stop(line, `the escape \%c is not supported`, c)
		}
		r, err := strconv.ParseUint(s[i+2:i+2+size], 16, 32)
		if err != nil || !utf8.ValidRune(rune(r)) {
			stop(line, `\%s is not a character`, s[i+1:i+2+size])
		}
		out.WriteRune(rune(r))
		s = s[i+2+size:]
	}
}
