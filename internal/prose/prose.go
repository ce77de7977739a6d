// Package prose reads pages and comments as text: it finds sentences, counts their words, and lists links.
package prose

import (
	"regexp"
	"strings"
)

// Sentence is one sentence of a page.
type Sentence struct {
	Line  int // of the page, where its paragraph begins
	Words int
	Text  string
}

var (
	code  = regexp.MustCompile("`[^`]*`")
	image = regexp.MustCompile(`!\[[^\]]*\]\([^)]*\)`)
	link  = regexp.MustCompile(`\[([^\]]*)\]\(([^)]*)\)`)
	web   = regexp.MustCompile(`<?https?://\S+`)
	item  = regexp.MustCompile(`^\s*([-*]|\d+\.)\s+`)
	stop  = regexp.MustCompile(`[.!?:]["')*]*(\s+|$)`)
	word  = regexp.MustCompile(`[\p{L}\p{N}]`)
)

// Sentences returns the sentences of a page in Markdown. Blocks of code, tables and headings are left out. An item of a
// list is a paragraph of its own. A code span counts as one word; a colon ends a sentence.
func Sentences(page string) []Sentence {
	var out []Sentence
	var paragraph []string
	first, fenced := 0, false
	flush := func() {
		text := strings.Join(paragraph, " ")
		paragraph = nil
		text = web.ReplaceAllString(link.ReplaceAllString(image.ReplaceAllString(code.ReplaceAllString(text, "code"), ""),
			"$1"), "address")
		for _, s := range split(text) {
			n := 0
			for _, w := range strings.Fields(s) {
				if word.MatchString(w) {
					n++
				}
			}
			if n > 0 {
				out = append(out, Sentence{Line: first, Words: n, Text: s})
			}
		}
	}
	for i, line := range strings.Split(page, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			flush()
			fenced = !fenced
		case fenced:
		case trimmed == "", strings.HasPrefix(trimmed, "|"), strings.HasPrefix(trimmed, "#"):
			flush()
		case strings.HasPrefix(line, "    ") && len(paragraph) == 0: // a block of code
		default:
			if item.MatchString(line) {
				flush()
				trimmed = strings.TrimSpace(item.ReplaceAllString(line, ""))
			}
			if len(paragraph) == 0 {
				first = i + 1
			}
			paragraph = append(paragraph, trimmed)
		}
	}
	flush()
	return out
}

func split(text string) []string {
	var out []string
	from := 0
	for _, at := range stop.FindAllStringIndex(text, -1) {
		out = append(out, strings.TrimSpace(text[from:at[1]]))
		from = at[1]
	}
	return append(out, strings.TrimSpace(text[from:]))
}

// Links returns the targets of a page's links and images, those on the web left out. A link's text may go on in the
// next line.
func Links(page string) []string {
	var text strings.Builder
	fenced := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if !fenced {
			text.WriteString(code.ReplaceAllStringFunc(line, keepLength))
		}
	}
	var out []string
	for _, m := range link.FindAllStringSubmatch(text.String(), -1) {
		if !strings.Contains(m[2], "://") {
			out = append(out, m[2])
		}
	}
	return out
}

// keepLength blanks a code span, so that what looks like a link in it is none.
func keepLength(s string) string { return strings.Repeat("x", len(s)) }
