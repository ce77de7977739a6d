package llama2ctest

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"

	"grebe/internal/readfile"
)

// The special tokens of every llama2.c vocabulary.
const (
	BOS = 1
	EOS = 2
)

// maxTokenizer bounds the size of a vocabulary file in bytes.
const maxTokenizer = 64 << 20

// Tokenizer decodes tokens. It is immutable.
type Tokenizer struct{ pieces []string }

// ReadTokenizer reads a tokenizer file: int32 length of the longest piece, then a float32 score, an
// int32 length and the bytes of each piece.
func ReadTokenizer(path string) (*Tokenizer, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("llama2c: %w", err)
	}
	if !st.Mode().IsRegular() || st.Size() > maxTokenizer {
		return nil, fmt.Errorf("llama2c: %s is not a file of at most %d bytes", path, maxTokenizer)
	}
	raw, err := readfile.Regular(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("llama2c: %w", err)
	}
	t, err := parseTokenizer(raw)
	if err != nil {
		return nil, fmt.Errorf("llama2c: %s: %w", path, err)
	}
	return t, nil
}

func parseTokenizer(raw []byte) (*Tokenizer, error) {
	if len(raw) < 4 {
		return nil, fmt.Errorf("%d bytes are no vocabulary", len(raw))
	}
	longest := binary.LittleEndian.Uint32(raw)
	raw = raw[4:]
	t := &Tokenizer{}
	for len(raw) > 0 {
		if len(raw) < 8 {
			return nil, fmt.Errorf("piece %d is truncated", len(t.pieces))
		}
		n := binary.LittleEndian.Uint32(raw[4:])
		raw = raw[8:]
		if n > longest || uint64(n) > uint64(len(raw)) {
			return nil, fmt.Errorf("piece %d has %d bytes: truncated, or above the longest of %d", len(t.pieces), n, longest)
		}
		t.pieces = append(t.pieces, string(raw[:n]))
		raw = raw[n:]
	}
	return t, nil
}

// Vocab returns the number of tokens.
func (t *Tokenizer) Vocab() int { return len(t.pieces) }

// Decode returns the text that token adds after prev, by llama2.c's rules: no space right after BOS,
// and pieces like <0x0A> are that one byte. A token outside the vocabulary adds nothing.
func (t *Tokenizer) Decode(prev, token int32) string {
	if token < 0 || int(token) >= len(t.pieces) {
		return ""
	}
	piece := t.pieces[token]
	if prev == BOS && piece != "" && piece[0] == ' ' {
		piece = piece[1:]
	}
	if len(piece) == 6 && piece[:3] == "<0x" && piece[5] == '>' {
		if b, err := strconv.ParseUint(piece[3:5], 16, 8); err == nil {
			return string([]byte{byte(b)})
		}
	}
	return piece
}
