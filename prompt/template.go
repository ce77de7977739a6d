package prompt

import (
	"fmt"
	"slices"
	"strings"

	"grebe/internal/human"
)

// part is a literal, or a field to be filled in when field is not empty.
type part struct{ literal, field string }

type template []part

// has reports whether a template shows a field.
func (t template) has(field string) bool {
	return slices.ContainsFunc(t, func(p part) bool { return p.field == field })
}

// parse reads a template with fields in braces; "{{" and "}}" stand for braces themselves. A known
// name that ends in a dot allows any name behind it.
func parse(s string, known ...string) (template, error) {
	var t template
	var lit strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], "{{"), strings.HasPrefix(s[i:], "}}"):
			lit.WriteByte(s[i])
			i++
		case s[i] == '{':
			end := strings.IndexByte(s[i:], '}')
			if end < 0 {
				return nil, fmt.Errorf("template %q: the brace at %d is never closed", s, i)
			}
			name := s[i+1 : i+end]
			if !isKnown(name, known) {
				return nil, fmt.Errorf("template %q: no field {%s}: want one of %s", s, name, fieldList(known))
			}
			t = append(t, part{literal: lit.String()}, part{field: name})
			lit.Reset()
			i += end
		default:
			lit.WriteByte(s[i])
		}
	}
	t = append(t, part{literal: lit.String()})
	return slices.DeleteFunc(t, func(p part) bool { return p == part{} }), nil
}

func isKnown(name string, known []string) bool {
	return slices.ContainsFunc(known, func(k string) bool {
		if strings.HasSuffix(k, ".") {
			return strings.HasPrefix(name, k) && len(name) > len(k)
		}
		return name == k
	})
}

func fieldList(known []string) string {
	out := make([]string, len(known))
	for i, k := range known {
		if strings.HasSuffix(k, ".") {
			k += "NAME"
		}
		out[i] = "{" + k + "}"
	}
	return strings.Join(out, ", ")
}

type historyKind uint8

const (
	historyText historyKind = iota
	historyCodes
	historyIdentifier
)

func parseHistory(s string) (historyKind, error) {
	switch s {
	case "text":
		return historyText, nil
	case "codes":
		return historyCodes, nil
	case "identifier":
		return historyIdentifier, nil
	}
	return 0, fmt.Errorf("prompt.history: %q: want text, codes or identifier", s)
}

func (c *Codes) validate(tok Tokenizer, vocab int) error {
	if len(c.Pattern) > 0 && len(c.FirstToken)+len(c.Size) > 0 {
		return fmt.Errorf("codes: give either pattern or first_token and size")
	}
	for i, p := range c.Pattern {
		if strings.Count(p, "%d") != 1 || strings.Count(p, "%") != 1 {
			return fmt.Errorf("codes.pattern[%d]: %q needs exactly one %%d", i, p)
		}
		if tok == nil {
			return fmt.Errorf("codes.pattern: %w", errNoTokenizer)
		}
	}
	if len(c.FirstToken) != len(c.Size) {
		return fmt.Errorf("codes: %d first tokens but %d sizes", len(c.FirstToken), len(c.Size))
	}
	for i, f := range c.FirstToken {
		if f < 0 || c.Size[i] <= 0 || int64(f)+int64(c.Size[i]) > int64(vocab) {
			return fmt.Errorf("codes: level %d takes tokens %d to %d, outside the vocabulary of %d", i, f,
				int64(f)+int64(c.Size[i]), vocab)
		}
	}
	return nil
}

// CodeTokens returns the tokens of an item's codes.
func (b *Builder) CodeTokens(codes []int32) ([]int32, error) {
	depth := b.Depth()
	if len(codes) == 0 || len(codes) != depth {
		return nil, fmt.Errorf("%s, but the model has %s", human.Count(len(codes), "code"), human.Count(depth, "level"))
	}
	ids := make([]int32, depth)
	for i, c := range codes {
		if len(b.codes.Pattern) > 0 {
			id, ok := b.patternToken(i, c)
			if !ok {
				return nil, fmt.Errorf("codes[%d]: the vocabulary has no token %q", i, b.codeText(i, c))
			}
			ids[i] = id
			continue
		}
		if c < 0 || c >= b.codes.Size[i] {
			return nil, fmt.Errorf("codes[%d]: %d is outside [0, %d)", i, c, b.codes.Size[i])
		}
		ids[i] = b.codes.FirstToken[i] + c
	}
	return ids, nil
}

// Depth returns the number of levels of semantic IDs, 0 when the model has none.
func (b *Builder) Depth() int { return max(len(b.codes.Pattern), len(b.codes.FirstToken)) }

// CodeSizes returns the number of codes of each level: as configured, or, where codes are found by
// text, as many as the largest code of used, which has the codes of items one after the other, asks for.
func (b *Builder) CodeSizes(used []int32) []int {
	sizes := make([]int, b.Depth())
	if len(b.codes.Pattern) == 0 {
		for l, n := range b.codes.Size {
			sizes[l] = int(n)
		}
		return sizes
	}
	for l := range sizes {
		sizes[l] = 1
	}
	for i, c := range used {
		sizes[i%len(sizes)] = max(sizes[i%len(sizes)], int(c)+1)
	}
	return sizes
}

// LevelSize returns how many codes a level has, from code 0 on.
func (b *Builder) LevelSize(level int) int {
	if len(b.codes.Pattern) == 0 {
		return int(b.codes.Size[level])
	}
	for c := int32(0); ; c++ {
		if _, ok := b.patternToken(level, c); !ok {
			return int(c)
		}
	}
}

// LevelTokens returns the tokens of the codes 0 … size−1 of a level; a code that the vocabulary does
// not have, and that no item has either, stands as token 0.
func (b *Builder) LevelTokens(level, size int) []int32 {
	ids := make([]int32, size)
	for c := range ids {
		if len(b.codes.Pattern) == 0 {
			ids[c] = b.codes.FirstToken[level] + int32(c)
			continue
		}
		if id, ok := b.patternToken(level, int32(c)); ok {
			ids[c] = id
		}
	}
	return ids
}

// MatchesNoToken reports whether the pattern of a level matches none of the vocabulary's size tokens.
func (b *Builder) MatchesNoToken(level, size int) bool {
	for c := range size {
		if _, ok := b.patternToken(level, int32(c)); ok {
			return false
		}
	}
	return true
}

// patternToken returns the token of a code by the level's pattern.
func (b *Builder) patternToken(level int, code int32) (int32, bool) {
	return b.tok.TokenID(b.codeText(level, code))
}

func (b *Builder) codeText(level int, code int32) string {
	return strings.Replace(b.codes.Pattern[level], "%d", fmt.Sprint(code), 1)
}
