package tokenizer

import "unicode/utf8"

// The byte-level alphabet writes every byte as one printable character: bytes that are
// printable in Latin-1 as themselves, the others from U+0100 on, in order.
const alphabetSize = 0x100 + 68

var (
	byteToRune [256]rune
	runeToByte [alphabetSize]int16 // -1: not in the alphabet
)

func init() {
	for i := range runeToByte {
		runeToByte[i] = -1
	}
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		printable := r >= '!' && r <= '~' || r >= 0xA1 && r <= 0xAC || r >= 0xAE
		if !printable {
			r = next
			next++
		}
		byteToRune[b] = r
		runeToByte[r] = int16(b)
	}
}

// fromByteLevel appends the bytes that a byte-level spelling stands for, or reports
// false when text has a character outside the alphabet.
func fromByteLevel(dst []byte, text string) ([]byte, bool) {
	for _, r := range text {
		if r >= alphabetSize || runeToByte[r] < 0 {
			return dst, false
		}
		dst = append(dst, byte(runeToByte[r]))
	}
	return dst, true
}

// appendLossy appends b with each maximal part of an ill-formed sequence replaced by
// one U+FFFD, which is what Unicode recommends and Rust's from_utf8_lossy does; Go's own
// conversions replace byte by byte or whole runs.
func appendLossy(dst, b []byte) []byte {
	for len(b) > 0 {
		if b[0] < utf8.RuneSelf {
			dst = append(dst, b[0])
			b = b[1:]
			continue
		}
		r, n := utf8.DecodeRune(b)
		if r != utf8.RuneError || n > 1 {
			dst = append(dst, b[:n]...)
			b = b[n:]
			continue
		}
		dst = utf8.AppendRune(dst, utf8.RuneError)
		b = b[brokenLen(b):]
	}
	return dst
}

// brokenLen is how many bytes of the ill-formed sequence at the start of b could still
// have begun a character.
func brokenLen(b []byte) int {
	lo, hi, size := byte(0x80), byte(0xBF), 0
	switch c := b[0]; {
	case c >= 0xC2 && c <= 0xDF:
		size = 2
	case c >= 0xE0 && c <= 0xEF:
		size = 3
	case c >= 0xF0 && c <= 0xF4:
		size = 4
	default:
		return 1
	}
	switch b[0] {
	case 0xE0:
		lo = 0xA0
	case 0xED:
		hi = 0x9F
	case 0xF0:
		lo = 0x90
	case 0xF4:
		hi = 0x8F
	}
	n := 1
	for n < size && n < len(b) && b[n] >= lo && b[n] <= hi {
		lo, hi = 0x80, 0xBF
		n++
	}
	return n
}
