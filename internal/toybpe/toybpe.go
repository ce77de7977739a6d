// Package toybpe trains a small byte-level BPE vocabulary and writes it as a tokenizer.json: for the
// demo and for benchmarks, which need a tokenizer where no trained model is at hand. The result
// depends on the texts alone.
package toybpe

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
)

// Vocabulary is a byte-level BPE: the 256 bytes, then one token per merge.
type Vocabulary struct {
	tokens []string // as tokenizer.json spells them
	merges [][2]string
}

// Size returns the number of tokens, special ones not counted.
func (v *Vocabulary) Size() int { return len(v.tokens) }

type pair [2]string

// Train joins the n most frequent pairs, one after the other; ties go to the smaller pair.
func Train(texts []string, n int) *Vocabulary {
	v := &Vocabulary{tokens: byteAlphabet()}
	words := countWords(texts, v.tokens)
	for range n {
		counts := map[pair]int{}
		for w := range words {
			parts := words[w].parts
			for i := 1; i < len(parts); i++ {
				counts[pair{parts[i-1], parts[i]}] += words[w].count
			}
		}
		if len(counts) == 0 {
			break
		}
		best := slices.MinFunc(slices.Collect(maps.Keys(counts)), func(a, b pair) int {
			return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
		})
		if counts[best] < 2 {
			break
		}
		v.tokens = append(v.tokens, best[0]+best[1])
		v.merges = append(v.merges, best)
		for w := range words {
			words[w].join(best)
		}
	}
	return v
}

type word struct {
	parts []string
	count int
}

// join replaces a pair of neighbours by one part.
func (w *word) join(p pair) {
	out := w.parts[:0]
	for i := 0; i < len(w.parts); i++ {
		if i+1 < len(w.parts) && w.parts[i] == p[0] && w.parts[i+1] == p[1] {
			out = append(out, p[0]+p[1])
			i++
			continue
		}
		out = append(out, w.parts[i])
	}
	w.parts = out
}

// countWords cuts texts into letters with the space before them, which is close enough to how the
// pre-tokenizer cuts: a merge that never applies costs nothing.
func countWords(texts, alphabet []string) []word {
	counts := map[string]int{}
	for _, text := range texts {
		var current strings.Builder
		flush := func() {
			if current.Len() > 1 {
				counts[current.String()]++
			}
			current.Reset()
		}
		for _, r := range text {
			if !unicode.IsLetter(r) {
				flush()
			}
			if unicode.IsLetter(r) || r == ' ' {
				current.WriteRune(r)
			}
		}
		flush()
	}
	var words []word
	for _, text := range slices.Sorted(maps.Keys(counts)) {
		w := word{count: counts[text]}
		for _, b := range []byte(text) {
			w.parts = append(w.parts, alphabet[b])
		}
		words = append(words, w)
	}
	return words
}

// byteAlphabet spells each byte as tokenizer.json does: printable ones as themselves, the others as
// letters from U+0100 on.
func byteAlphabet() []string {
	out := make([]string, 256)
	next := rune(0x100)
	for b := range out {
		r := rune(b)
		if b < '!' || b > '~' && b < 0xa1 || b == 0xad {
			r = next
			next++
		}
		out[b] = string(r)
	}
	return out
}

// qwenSplit is the pattern by which Qwen's tokenizers cut text.
const qwenSplit = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|` +
	` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// TokenizerJSON writes the vocabulary as a tokenizer.json, with special tokens after it.
func (v *Vocabulary) TokenizerJSON(special []string) ([]byte, error) {
	type object = map[string]any
	ids := map[string]int{}
	for i, t := range v.tokens {
		ids[t] = i
	}
	added := []object{}
	for i, t := range special {
		added = append(added, object{
			"id": v.Size() + i, "content": t, "special": true,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
		})
	}
	byteLevel := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
	out, err := json.Marshal(object{
		"version": "1.0", "truncation": nil, "padding": nil,
		"added_tokens": added,
		"normalizer":   object{"type": "NFC"},
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": []object{
			{"type": "Split", "pattern": object{"Regex": qwenSplit}, "behavior": "Isolated", "invert": false},
			byteLevel,
		}},
		"post_processor": byteLevel,
		"decoder":        byteLevel,
		"model": object{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": "", "end_of_word_suffix": "",
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": ids, "merges": v.merges,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("toybpe: tokenizer.json: %w", err)
	}
	return out, nil
}
