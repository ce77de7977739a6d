package prompt

import (
	"slices"
	"strconv"
	"strings"

	"grebe/plan"
)

// CompletionTokens returns the tokens of a prompt that a client gives as a text. If the text already ends with what the
// template has behind {text}, that is not added again.
func (b *Builder) CompletionTokens(text string) ([]int32, error) {
	if end := b.completion[len(b.completion)-1]; end.field == "" {
		text = strings.TrimSuffix(text, end.literal)
	}
	return b.segment(b.completion, &User{Text: text})
}

// Complete lays out a generation whose whole prompt is given. If it begins with the model's preamble or ends with its
// generate_instruction, these are segments of their own, so that their KV is that of other prompts. shared is false if
// the prompt does not begin with the preamble: then its KV is not that of any other prompt.
func (b *Builder) Complete(tokens []int32) (l Layout, shared bool) {
	rest, shared := cutPrefix(tokens, b.preamble)
	if shared && len(b.generate) > 0 {
		if user, ok := cutSuffix(rest, b.generate); ok {
			return b.Generate(user), true
		}
	}
	var sees []int32
	pos := 0
	if shared = shared && len(rest) > 0; shared {
		l, sees, pos = b.begin(1)
	} else {
		l, rest = Layout{Plan: &plan.Plan{}, User: -1, Items: -1}, tokens
	}
	l.User, l.End = l.add(plan.User, rest, pos, sees)
	l.Answers = l.User
	return l, shared
}

func cutPrefix(s, prefix []int32) ([]int32, bool) {
	if len(s) < len(prefix) || !slices.Equal(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}

func cutSuffix(s, suffix []int32) ([]int32, bool) {
	n := len(s) - len(suffix)
	if n < 0 || !slices.Equal(s[n:], suffix) {
		return s, false
	}
	return s[:n], true
}

// CodeText returns the text of a path: that of its tokens, or the codes separated by spaces if the model has no
// tokenizer.
func (b *Builder) CodeText(codes []int32) string {
	parts := make([]string, len(codes))
	for l, c := range codes {
		parts[l] = strconv.Itoa(int(c))
		if l < len(b.codes.Pattern) {
			parts[l] = b.codeText(l, c)
		}
	}
	if len(b.codes.Pattern) > 0 {
		return strings.Join(parts, "")
	}
	if tok, ok := b.tok.(interface{ Decode([]int32) string }); ok {
		if ids, err := b.CodeTokens(codes); err == nil {
			return tok.Decode(ids)
		}
	}
	return strings.Join(parts, " ")
}
