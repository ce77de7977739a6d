package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// class says which of the pre-tokenizers' character classes a character is in. The
// classes exclude each other, except that newline is also a kind of space.
type class uint8

const (
	symbol  class = iota // none of the others
	letter               // \p{L}
	number               // \p{N}
	space                // \s without \r and \n
	newline              // \r and \n
)

func (c class) isSpace() bool { return c >= space }

// Letters and numbers of Unicode 16, which the reference library's regular expressions
// use, that the Unicode 15 tables of this Go release lack.
var (
	letters16 = [][2]rune{
		{0x1C89, 0x1C8A}, {0xA7CB, 0xA7CD}, {0xA7DA, 0xA7DC}, {0x105C0, 0x105F3},
		{0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
		{0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
		{0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
		{0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
		{0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D},
	}
	numbers16 = [][2]rune{
		{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x16130, 0x16139},
		{0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1E5F1, 0x1E5FA},
	}
)

const (
	blockBits = 7
	blockSize = 1 << blockBits
	blocks    = (unicode.MaxRune + 1) / blockSize
)

// classes is a two-stage table: equal blocks of characters are stored once.
var classes struct {
	ascii [utf8.RuneSelf]class
	block [blocks]uint16
	data  [][blockSize]class
}

func init() {
	flat := flatClasses()
	seen := map[[blockSize]class]uint16{}
	for i := range blocks {
		b := [blockSize]class(flat[i*blockSize:])
		n, ok := seen[b]
		if !ok {
			n = uint16(len(classes.data))
			seen[b] = n
			classes.data = append(classes.data, b)
		}
		classes.block[i] = n
	}
	copy(classes.ascii[:], flat)
}

// flatClasses returns the class of every code point.
func flatClasses() []class {
	flat := make([]class, unicode.MaxRune+1)
	fillTable(flat, unicode.L, letter)
	fillTable(flat, unicode.N, number)
	fillTable(flat, unicode.White_Space, space)
	for _, r := range letters16 {
		fill(flat, r[0], r[1], 1, letter)
	}
	for _, r := range numbers16 {
		fill(flat, r[0], r[1], 1, number)
	}
	flat['\r'], flat['\n'] = newline, newline
	return flat
}

func fillTable(flat []class, t *unicode.RangeTable, c class) {
	for _, r := range t.R16 {
		fill(flat, rune(r.Lo), rune(r.Hi), rune(r.Stride), c)
	}
	for _, r := range t.R32 {
		fill(flat, rune(r.Lo), rune(r.Hi), rune(r.Stride), c)
	}
}

func fill(flat []class, lo, hi, stride rune, c class) {
	for r := lo; r <= hi; r += stride {
		flat[r] = c
	}
}

// classAt returns the class and the length in bytes of the character at s[i], i < len(s).
func classAt(s string, i int) (class, int) {
	if b := s[i]; b < utf8.RuneSelf {
		return classes.ascii[b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return classOf(r), n
}

// classOf returns the class of a valid code point.
func classOf(r rune) class {
	return classes.data[classes.block[r>>blockBits]][r&(blockSize-1)]
}

// isWord reports whether r is in \w of the reference library: letters and what behaves
// like them, marks, decimal digits, connecting punctuation and the two joiners.
func isWord(r rune) bool {
	if r == '\u200c' || r == '\u200d' || classOf(r) == letter {
		return true
	}
	// All of numbers16 are decimal digits.
	for _, n := range numbers16 {
		if r >= n[0] && r <= n[1] {
			return true
		}
	}
	return unicode.In(r, unicode.Nl, unicode.Other_Alphabetic, unicode.M, unicode.Nd, unicode.Pc)
}
