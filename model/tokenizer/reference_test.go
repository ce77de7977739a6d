package tokenizer

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A plain version to compare with: the patterns as a backtracking matcher that follows
// the regular expressions literally, and merging by searching the lowest rank each time.

// matcher tries to match r from i on and calls k with each end, best first, until k
// accepts one.
type matcher func(r []rune, i int, k func(int) bool) bool

func one(in func(rune) bool) matcher {
	return func(r []rune, i int, k func(int) bool) bool { return i < len(r) && in(r[i]) && k(i+1) }
}

func empty(_ []rune, i int, k func(int) bool) bool { return k(i) }

func seq(ms ...matcher) matcher {
	if len(ms) == 0 {
		return empty
	}
	return func(r []rune, i int, k func(int) bool) bool {
		return ms[0](r, i, func(j int) bool { return seq(ms[1:]...)(r, j, k) })
	}
}

func alt(ms ...matcher) matcher {
	return func(r []rune, i int, k func(int) bool) bool {
		for _, m := range ms {
			if m(r, i, k) {
				return true
			}
		}
		return false
	}
}

// upTo is m{least,most}, greedy.
func upTo(m matcher, least, most int) matcher {
	var rep func(n int) matcher
	rep = func(n int) matcher {
		return func(r []rune, i int, k func(int) bool) bool {
			if n < most && m(r, i, func(j int) bool { return rep(n+1)(r, j, k) }) {
				return true
			}
			return n >= least && k(i)
		}
	}
	return rep(0)
}

const many = 1 << 30

func plus(m matcher) matcher { return upTo(m, 1, many) }
func star(m matcher) matcher { return upTo(m, 0, many) }
func opt(m matcher) matcher  { return upTo(m, 0, 1) }

func notAhead(m matcher) matcher {
	return func(r []rune, i int, k func(int) bool) bool {
		return !m(r, i, func(int) bool { return true }) && k(i)
	}
}

func word(s string, fold bool) matcher {
	var ms []matcher
	for _, want := range s {
		ms = append(ms, one(func(c rune) bool {
			if c == want {
				return true
			}
			for f := unicode.SimpleFold(want); fold && f != want; f = unicode.SimpleFold(f) {
				if c == f {
					return true
				}
			}
			return false
		}))
	}
	return seq(ms...)
}

func inRanges(c rune, ranges [][2]rune) bool {
	return slices.ContainsFunc(ranges, func(r [2]rune) bool { return c >= r[0] && c <= r[1] })
}

func isL(c rune) bool  { return unicode.IsLetter(c) || inRanges(c, letters16) }
func isN(c rune) bool  { return unicode.IsNumber(c) || inRanges(c, numbers16) }
func isS(c rune) bool  { return unicode.IsSpace(c) }
func isNL(c rune) bool { return c == '\r' || c == '\n' }

func contractions(fold bool) matcher {
	var ms []matcher
	for _, s := range []string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"} {
		ms = append(ms, word(s, fold))
	}
	return alt(ms...)
}

// referencePattern is the pattern with the given digits per piece, or GPT-2's.
func referencePattern(p splitter) matcher {
	l, s, nl, sp := one(isL), one(isS), one(isNL), word(" ", false)
	sym := one(func(c rune) bool { return !isS(c) && !isL(c) && !isN(c) })
	notS := one(func(c rune) bool { return !isS(c) })
	tail := alt(seq(plus(s), notAhead(notS)), plus(s))
	if p.gpt2 {
		return alt(contractions(false), seq(opt(sp), plus(l)), seq(opt(sp), plus(one(isN))), seq(opt(sp), plus(sym)), tail)
	}
	lead := one(func(c rune) bool { return !isNL(c) && !isL(c) && !isN(c) })
	return alt(contractions(true), seq(opt(lead), plus(l)), upTo(one(isN), 1, p.digits),
		seq(opt(sp), plus(sym), star(nl)), seq(star(s), plus(nl)), tail)
}

func referenceSplit(p splitter, text string) []string {
	m := referencePattern(p)
	r := []rune(text)
	var out []string
	for i := 0; i < len(r); {
		end := i
		m(r, i, func(j int) bool { end = j; return true })
		if end == i {
			panic("the pattern matches nothing at " + string(r[i:]))
		}
		out = append(out, string(r[i:end]))
		i = end
	}
	return out
}

// reference encodes text without added tokens.
type reference struct {
	split  splitter
	nfc    bool
	whole  bool // ignore_merges
	vocab  map[string]int32
	ranks  map[[2]string]int
	cached map[string][]int32
}

func newReference(t testing.TB, data []byte) *reference {
	t.Helper()
	var f struct {
		Normalizer *struct{} `json:"normalizer"`
		Model      struct {
			IgnoreMerges bool             `json:"ignore_merges"`
			Vocab        map[string]int32 `json:"vocab"`
			Merges       []any            `json:"merges"`
		} `json:"model"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	ref := &reference{
		nfc: f.Normalizer != nil, whole: f.Model.IgnoreMerges, vocab: f.Model.Vocab,
		ranks: map[[2]string]int{}, cached: map[string][]int32{},
	}
	for i, m := range f.Model.Merges {
		switch m := m.(type) {
		case string:
			ref.ranks[[2]string(strings.Split(m, " "))] = i
		case []any:
			ref.ranks[[2]string{m[0].(string), m[1].(string)}] = i
		}
	}
	return ref
}

func (r *reference) encode(text string) []int32 {
	if r.nfc {
		text = norm.NFC.String(text)
	}
	var ids []int32
	for _, piece := range referenceSplit(r.split, text) {
		got, ok := r.cached[piece]
		if !ok {
			got = r.encodeWord(piece)
			r.cached[piece] = got
		}
		ids = append(ids, got...)
	}
	return ids
}

func byteLevel(s string) string {
	var b []byte
	for i := range len(s) {
		b = utf8.AppendRune(b, byteToRune[s[i]])
	}
	return string(b)
}

func (r *reference) encodeWord(piece string) []int32 {
	spelled := byteLevel(piece)
	if id, ok := r.vocab[spelled]; ok && r.whole {
		return []int32{id}
	}
	parts := strings.Split(spelled, "")
	for {
		at, best := -1, many
		for i := range len(parts) - 1 {
			if rank, ok := r.ranks[[2]string{parts[i], parts[i+1]}]; ok && rank < best {
				at, best = i, rank
			}
		}
		if at < 0 {
			break
		}
		parts[at] += parts[at+1]
		parts = slices.Delete(parts, at+1, at+2)
	}
	var ids []int32
	for _, p := range parts {
		ids = append(ids, r.vocab[p])
	}
	return ids
}
