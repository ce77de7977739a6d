// Package tokenizer turns text into token ids and back for models that ship a
// Hugging Face tokenizer.json with byte-level BPE: the Qwen2/2.5/3, Llama-3 and
// GPT-2 families.
//
// The ids are those of the `tokenizers` library called without its special-token
// template: nothing is put before or after the text, and the text of an added or
// special token inside it becomes that token's id. A file that asks for anything
// this package does not implement is refused by Parse with an error that names it;
// it is never read approximately.
//
// A Tokenizer is immutable after Parse and safe for concurrent use. Encoding takes
// time O(n log n) in the text, whatever the text.
//
// Text should be valid UTF-8. Bytes that are not are treated as symbols and encoded
// as they are, so that DecodeBytes gives them back.
package tokenizer

import (
	"sync"
	"unicode/utf8"
)

// Tokenizer encodes and decodes with one vocabulary.
type Tokenizer struct {
	split  splitter
	nfc    bool
	bpe    bpe
	vocab  wordTable
	tokens tokenBytes // what each id decodes to

	// opaque holds the vocabulary entries whose text is not in the byte-level
	// alphabet: no text encodes to them, but they can be named and decoded.
	opaque map[string]int32

	added     map[string]int32
	rawAdded  *addedMatcher // looked for in the text as given
	normAdded *addedMatcher // looked for after normalisation

	scratch sync.Pool
}

// scratch is the memory one AppendEncode borrows.
type scratch struct {
	merge mergeBuffers
	norm  []byte
}

// Encode returns the ids of text.
func (t *Tokenizer) Encode(text string) []int32 {
	return t.AppendEncode(make([]int32, 0, len(text)/4+1), text)
}

// AppendEncode appends the ids of text to dst. It allocates only to grow dst, and a
// little where text is not in the normal form that the file asks for.
func (t *Tokenizer) AppendEncode(dst []int32, text string) []int32 {
	s := t.scratch.Get().(*scratch)
	defer t.scratch.Put(s)
	if t.rawAdded == nil {
		return t.appendNormalized(dst, text, s)
	}
	it := addedIter{m: t.rawAdded, text: text}
	for it.next() {
		if it.plain != "" {
			dst = t.appendNormalized(dst, it.plain, s)
		}
		if it.id >= 0 {
			dst = append(dst, it.id)
		}
	}
	return dst
}

// appendNormalized encodes text that holds none of the added tokens that are looked
// for before normalisation.
func (t *Tokenizer) appendNormalized(dst []int32, text string, s *scratch) []int32 {
	if t.nfc {
		text = s.normalizeNFC(text)
	}
	if t.normAdded == nil {
		return t.appendPlain(dst, text, s)
	}
	it := addedIter{m: t.normAdded, text: text}
	for it.next() {
		if it.plain != "" {
			dst = t.appendPlain(dst, it.plain, s)
		}
		if it.id >= 0 {
			dst = append(dst, it.id)
		}
	}
	return dst
}

// appendPlain encodes normalised text without added tokens.
func (t *Tokenizer) appendPlain(dst []int32, text string, s *scratch) []int32 {
	for i := 0; i < len(text); {
		end := t.split.next(text, i)
		dst = t.appendWord(dst, text[i:end], s)
		i = end
	}
	return dst
}

// appendWord encodes one piece of the pre-tokenizer.
func (t *Tokenizer) appendWord(dst []int32, word string, s *scratch) []int32 {
	if len(word) == 1 {
		return append(dst, int32(t.bpe.bytes[word[0]]))
	}
	if id, whole, ok := t.vocab.find(word, &t.tokens); ok && whole {
		return append(dst, id)
	}
	return t.bpe.append(dst, word, &s.merge)
}

// DecodeBytes returns the bytes the ids stand for. Ids outside the vocabulary stand
// for nothing.
func (t *Tokenizer) DecodeBytes(ids []int32) []byte {
	size := 0
	for _, id := range ids {
		size += len(t.tokens.at(id))
	}
	out := make([]byte, 0, size)
	for _, id := range ids {
		out = append(out, t.tokens.at(id)...)
	}
	return out
}

// Decode returns the text the ids stand for, special tokens included. Where the bytes
// are not valid UTF-8, each maximal broken sequence becomes one U+FFFD.
func (t *Tokenizer) Decode(ids []int32) string {
	b := t.DecodeBytes(ids)
	if utf8.Valid(b) {
		return string(b)
	}
	return string(appendLossy(make([]byte, 0, len(b)+16), b))
}

// TokenID returns the id of the one token with this text. The text may be an added
// token's ("<|im_end|>"), a vocabulary entry as the file spells it ("Ġyes") or what the
// entry stands for (" yes"), tried in this order; but spellings of broken characters
// come last ("é" is taken for the letter, not for the byte that is spelled so).
func (t *Tokenizer) TokenID(text string) (int32, bool) {
	if id, ok := t.added[text]; ok {
		return id, true
	}
	if id, ok := t.opaque[text]; ok {
		return id, true
	}
	forms := [2]string{text, text}
	if raw, ok := fromByteLevel(nil, text); ok {
		forms[1] = string(raw)
	}
	if utf8.ValidString(forms[1]) {
		forms[0], forms[1] = forms[1], forms[0]
	}
	for _, form := range forms {
		if id, _, ok := t.vocab.find(form, &t.tokens); ok {
			return id, true
		}
	}
	return 0, false
}

// TokenText returns what a token stands for; a token that is part of a character is
// not valid UTF-8. It reports false for an id that no token has.
func (t *Tokenizer) TokenText(id int32) (string, bool) {
	text := t.tokens.at(id)
	return text, text != ""
}

// VocabSize is one more than the highest id, added tokens included.
func (t *Tokenizer) VocabSize() int { return t.tokens.len() }
