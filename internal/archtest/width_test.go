package archtest

import (
	"go/scanner"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns is the most that a line of Go or of a document may have. A tab counts as one.
const maxColumns = 120

// A reader sees a file beside its tests, or a page on half a screen. What has no place for a newline may be longer: struct
// tags, raw strings, tables, examples, and words such as addresses.
func TestLinesAreNarrow(t *testing.T) {
	eachFile(t, ".go", func(name string, data []byte) {
		if !strings.Contains(string(data[:min(len(data), 4096)]), "// Code generated ") {
			for _, n := range wideGo(string(data)) {
				t.Errorf("%s:%d: more than %d columns: break the line", name, n, maxColumns)
			}
		}
	})
	eachFile(t, ".md", func(name string, data []byte) {
		for _, n := range wideMarkdown(string(data)) {
			t.Errorf("%s:%d: more than %d columns: break the line", name, n, maxColumns)
		}
	})
}

func wide(line string) bool { return utf8.RuneCountInString(line) > maxColumns }

// unbreakable is a word that takes most of a line.
var unbreakable = regexp.MustCompile(`\S{80,}`)

// example is a comment that go doc shows as it is.
var example = regexp.MustCompile(`^\s*//(\t| {2,})`)

// wideGo returns the numbers of lines that are too long and could be broken.
func wideGo(src string) (out []int) {
	lines := strings.Split(src, "\n")
	if !slices.ContainsFunc(lines, wide) {
		return nil
	}
	raw := rawLines(src)
	for i, line := range lines {
		if wide(line) && !raw[i+1] && !example.MatchString(line) && !unbreakable.MatchString(line) {
			out = append(out, i+1)
		}
	}
	return out
}

// rawLines has the lines on which a raw string stands. Tags of structs are such strings.
func rawLines(src string) map[int]bool {
	out := map[int]bool{}
	set := token.NewFileSet()
	f := set.AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(f, []byte(src), nil, 0)
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return out
		}
		if tok == token.STRING && lit[0] == '`' {
			for i := range 1 + strings.Count(lit, "\n") {
				out[f.Line(pos)+i] = true
			}
		}
	}
}

// span is a code span, which may have to stand on one line, or the target of a link.
var span = regexp.MustCompile("`[^`]*`|\\]\\([^)]*\\)")

// wideMarkdown returns the numbers of lines that are too long and are no table, no code and no long command.
func wideMarkdown(page string) (out []int) {
	fenced := false
	for i, line := range strings.Split(page, "\n") {
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "```") {
			fenced = !fenced
		}
		if wide(line) && !fenced && !strings.HasPrefix(text, "|") && !strings.HasPrefix(line, "    ") &&
			wide(span.ReplaceAllStringFunc(line, shortened)) {
			out = append(out, i+1)
		}
	}
	return out
}

// shortened leaves out what is too long to stand on a line with other words.
func shortened(s string) string {
	if utf8.RuneCountInString(s) > maxColumns/2 {
		return ""
	}
	return s
}

func TestWideLinesAreSeen(t *testing.T) {
	long := strings.Repeat("word ", 30)
	src := "package p\n\n// " + long + "\n//   " + long + "\nvar a = \"" + long + "\"\nvar b = `" + long + "\n" + long + "`\n" +
		"type t struct {\n\tA int `help:\"" + long + "\"`\n}\n// " + strings.Repeat("x", 130) + "\n"
	if got, want := wideGo(src), []int{3, 5}; !slices.Equal(got, want) {
		t.Errorf("wide lines of Go: %v, want %v", got, want)
	}
	page := long + "\n| " + long + "\n```\n" + long + "\n```\n    " + long + "\n- " + long + "\n`" + long + "`\nx [a](" + long + ")\n" +
		long[:80] + " `short` " + long[:40] + "\n"
	if got, want := wideMarkdown(page), []int{1, 7, 10}; !slices.Equal(got, want) {
		t.Errorf("wide lines of a page: %v, want %v", got, want)
	}
}
