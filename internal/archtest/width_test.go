package archtest

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns is the most that a line of Go or of a document may have. A tab counts as one.
const maxColumns = 120

// A reader sees a file beside its tests, or a page on half a screen. Only addresses may be longer, and rows of tables in
// documents.
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

// address is a URL that takes most of a line, target the same of a link in a document.
var (
	address = regexp.MustCompile(`[a-z]+://\S{60,}`)
	target  = regexp.MustCompile(`[a-z]+://\S{60,}|\]\([^)]{60,}\)`)
)

// wideGo returns the numbers of lines that are too long.
func wideGo(src string) (out []int) {
	for i, line := range strings.Split(src, "\n") {
		if wide(line) && !address.MatchString(line) {
			out = append(out, i+1)
		}
	}
	return out
}

// wideMarkdown returns the numbers of lines that are too long and are no row of a table.
func wideMarkdown(page string) (out []int) {
	for i, line := range strings.Split(page, "\n") {
		if wide(line) && !strings.HasPrefix(strings.TrimSpace(line), "|") && !target.MatchString(line) {
			out = append(out, i+1)
		}
	}
	return out
}

func TestWideLinesAreSeen(t *testing.T) {
	long := strings.Repeat("word ", 30)
	src := "package p\n\n// " + long + "\n//   " + long + "\nvar a = \"" + long + "\"\nvar b = `" + long + "\n`\n" +
		"type t struct {\n\tA int `help:\"" + long + "\"`\n}\n// https://" + strings.Repeat("x", 130) + "\n"
	if got, want := wideGo(src), []int{3, 4, 5, 6, 9}; !slices.Equal(got, want) {
		t.Errorf("wide lines of Go: %v, want %v", got, want)
	}
	page := strings.Join([]string{
		long, "| " + long, "```", long, "```", "    " + long, "- " + long, "`" + long + "`", "x [a](" + long + ")", "",
	}, "\n")
	if got, want := wideMarkdown(page), []int{1, 4, 6, 7, 8}; !slices.Equal(got, want) {
		t.Errorf("wide lines of a page: %v, want %v", got, want)
	}
}
