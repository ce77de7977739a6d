package tokenizer

import (
	"slices"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/text/unicode/norm"
)

// normalizeNFC returns text in Unicode normal form C. The result may lie in s and is
// valid until s is used again.
func (s *scratch) normalizeNFC(text string) string {
	if norm.NFC.QuickSpanString(text) == len(text) {
		return text
	}
	if hasLongMarkRun(text) {
		return composeNFC(text)
	}
	s.norm = norm.NFC.AppendString(s.norm[:0], text)
	return unsafe.String(unsafe.SliceData(s.norm), len(s.norm))
}

// markRun is the number of characters in a row that may attach to the one before from
// which on normalisation is done here. The norm package breaks sequences of more than 30
// combining characters by inserting U+034F; one character here is at most a few there.
const markRun = 8

// hasLongMarkRun reports whether text has markRun characters in a row that do not start
// a new composition.
func hasLongMarkRun(text string) bool {
	run := 0
	for i := 0; i < len(text); {
		p := norm.NFC.PropertiesString(text[i:])
		if p.BoundaryBefore() {
			run = 0
		} else if run++; run >= markRun {
			return true
		}
		i += max(p.Size(), 1)
	}
	return false
}

// composeNFC is the canonical composition algorithm of the Unicode standard, for texts
// that the norm package would alter: decompose, sort each run of marks, compose.
func composeNFC(text string) string {
	chars := decompose(text)
	for i := 0; i < len(chars); {
		end := i + 1
		for end < len(chars) && chars[end].order != 0 {
			end++
		}
		if chars[i].order == 0 {
			i++
		}
		slices.SortStableFunc(chars[i:end], func(a, b char) int { return int(a.order) - int(b.order) })
		i = end
	}
	out := make([]byte, 0, len(text))
	for _, c := range compose(chars) {
		out = c.append(out)
	}
	return string(out)
}

// char is a character, or a byte that is part of none, with its combining class.
type char struct {
	r     rune
	order uint8
	bad   bool // r is a byte of invalid UTF-8
}

func (c char) append(dst []byte) []byte {
	if c.bad {
		return append(dst, byte(c.r))
	}
	return utf8.AppendRune(dst, c.r)
}

// decompose returns the full canonical decomposition of text, not yet sorted.
func decompose(text string) []char {
	chars := make([]char, 0, len(text))
	var buf, one [64]byte
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		if r == utf8.RuneError && n == 1 {
			chars = append(chars, char{r: rune(text[i]), bad: true})
			i++
			continue
		}
		for d := norm.NFD.AppendString(buf[:0], text[i:i+n]); len(d) > 0; {
			r, m := utf8.DecodeRune(d)
			order := norm.NFD.Properties(utf8.AppendRune(one[:0], r)).CCC()
			chars = append(chars, char{r: r, order: order})
			d = d[m:]
		}
		i += n
	}
	return chars
}

// compose joins, in place, each character with the last starter before it if the two
// have a composite and nothing between them blocks it.
func compose(chars []char) []char {
	out := chars[:0]
	starter, last := -1, -1
	for _, c := range chars {
		if starter >= 0 && last < int(c.order) {
			if r, ok := composite(out[starter], c); ok {
				out[starter].r = r
				continue
			}
		}
		last = int(c.order)
		if c.order == 0 {
			starter, last = len(out), -1
		}
		out = append(out, c)
	}
	return out
}

// composite returns the one character that a followed by b is equivalent to.
func composite(a, b char) (rune, bool) {
	if a.bad || b.bad {
		return 0, false
	}
	var in, buf [16]byte
	pair := utf8.AppendRune(utf8.AppendRune(in[:0], a.r), b.r)
	joined := norm.NFC.Append(buf[:0], pair...)
	r, n := utf8.DecodeRune(joined)
	return r, n == len(joined)
}
