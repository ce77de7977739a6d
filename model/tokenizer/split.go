package tokenizer

import "strings"

// The regular expressions that a file may ask for. Each is scanned by hand, which needs no backtracking.
const (
	qwenPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|` +
		` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	llamaPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|` +
		` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
)

// splitter finds the ends of the pre-tokenizer's pieces.
type splitter struct {
	gpt2   bool
	digits int // most numbers in one piece; unused for GPT-2
}

func splitterFor(pattern string) (splitter, bool) {
	switch pattern {
	case qwenPattern:
		return splitter{digits: 1}, true
	case llamaPattern:
		return splitter{digits: 3}, true
	case gpt2Pattern:
		return splitter{gpt2: true}, true
	}
	return splitter{}, false
}

// next returns the end of the piece that starts at s[i], i < len(s).
func (p splitter) next(s string, i int) int {
	if p.gpt2 {
		return nextGPT2(s, i)
	}
	c, n := classAt(s, i)
	j := i + n
	switch c {
	case letter:
		return skip(s, j, letter)
	case number:
		return skipNumbers(s, j, p.digits-1)
	case newline:
		return endOfSpaces(s, i)
	}
	// One symbol or space that is not a line end joins the letters after it. Only an
	// apostrophe can begin a contraction, which comes first.
	if s[i] == '\'' {
		if end := i + contraction(s[i:], true); end > i {
			return end
		}
	}
	if j == len(s) {
		return j
	}
	after, m := classAt(s, j)
	if after == letter {
		return skip(s, j+m, letter)
	}
	if c == symbol {
		return skipNewlines(s, skip(s, j, symbol))
	}
	if s[i] == ' ' && after == symbol {
		return skipNewlines(s, skip(s, j+m, symbol))
	}
	return endOfSpaces(s, i)
}

// nextGPT2 is next for the GPT-2 pattern.
func nextGPT2(s string, i int) int {
	if s[i] == '\'' {
		if end := i + contraction(s[i:], false); end > i {
			return end
		}
	}
	c, n := classAt(s, i)
	if s[i] == ' ' && i+1 < len(s) {
		if after, m := classAt(s, i+1); !after.isSpace() {
			return skip(s, i+1+m, after)
		}
	}
	if !c.isSpace() {
		return skip(s, i+n, c)
	}
	_, end, last := scanSpaces(s, i)
	return dropLast(s, i, end, last)
}

// skip returns the end of the run of class c from s[i] on.
func skip(s string, i int, c class) int {
	for i < len(s) {
		got, n := classAt(s, i)
		if got != c {
			break
		}
		i += n
	}
	return i
}

func skipNumbers(s string, i, most int) int {
	for ; most > 0 && i < len(s); most-- {
		c, n := classAt(s, i)
		if c != number {
			break
		}
		i += n
	}
	return i
}

func skipNewlines(s string, i int) int {
	for i < len(s) && (s[i] == '\n' || s[i] == '\r') {
		i++
	}
	return i
}

// endOfSpaces matches \s*[\r\n]+|\s+(?!\S)|\s+ at a space: up to the last line end of
// the run of spaces if it has one, else as dropLast.
func endOfSpaces(s string, i int) int {
	lineEnd, end, last := scanSpaces(s, i)
	if lineEnd > i {
		return lineEnd
	}
	return dropLast(s, i, end, last)
}

// dropLast matches \s+(?!\S)|\s+ on the run of spaces s[i:end] whose last character is
// at last: the whole run at the end of the text; otherwise all but the last space, which
// belongs to what follows, unless it is the only one.
func dropLast(s string, i, end, last int) int {
	if end == len(s) || last == i {
		return end
	}
	return last
}

// scanSpaces returns, for the run of spaces from s[i] on, the end of its last line end
// (or i), its end, and where its last character starts.
func scanSpaces(s string, i int) (lineEnd, end, last int) {
	lineEnd, end, last = i, i, i
	for end < len(s) {
		c, n := classAt(s, end)
		if !c.isSpace() {
			break
		}
		last = end
		end += n
		if c == newline {
			lineEnd = end
		}
	}
	return lineEnd, end, last
}

// contraction returns the length of the English contraction at the start of s, which
// starts with an apostrophe, or 0. Ignoring case, the long s (U+017F) is an s too.
func contraction(s string, ignoreCase bool) int {
	if len(s) < 2 {
		return 0
	}
	if ignoreCase && strings.HasPrefix(s[1:], "ſ") {
		return 1 + len("ſ")
	}
	fold := byte(0)
	if ignoreCase {
		fold = 'a' - 'A'
	}
	switch s[1] | fold {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(s) < 3 {
		return 0
	}
	switch [2]byte{s[1] | fold, s[2] | fold} {
	case [2]byte{'r', 'e'}, [2]byte{'v', 'e'}, [2]byte{'l', 'l'}:
		return 3
	}
	return 0
}
