package prompt

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"grebe/plan"
)

// letters tokenises a text to one token per byte, and knows the codes <a_0> … <b_9>.
type letters struct{}

func (letters) AppendEncode(dst []int32, text string) []int32 {
	for i := range len(text) {
		dst = append(dst, int32(text[i]))
	}
	return dst
}

func (letters) TokenID(text string) (int32, bool) {
	var level byte
	var code int32
	if n, _ := fmt.Sscanf(text, "<%c_%d>", &level, &code); n != 2 || code > 9 {
		return 0, false
	}
	return 300 + int32(level-'a')*10 + code, true
}

func build(t *testing.T, cfg Config) *Builder {
	t.Helper()
	b, err := New(cfg, letters{}, 400)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// describe writes a plan as one line per segment: kind start..end ← sees.
func describe(l Layout) string {
	var b strings.Builder
	for _, s := range l.Plan.Segments {
		fmt.Fprintf(&b, "%s %d..%d %v\n", s.Kind, s.Start, s.Start+len(s.Tokens), s.Sees)
	}
	fmt.Fprintf(&b, "user %d items %d answers %d", l.User, l.Items, l.Answers)
	return b.String()
}

// The positions contract, written out: BAT-1 and BAT-2 in docs/explain/papers.md.
func TestLayouts(t *testing.T) {
	cfg := Config{Preamble: Text{Tokens: []int32{1, 2}}, LeadIn: Text{Tokens: []int32{3}},
		Instruction: Text{Tokens: []int32{4, 5}}}
	full, bare := build(t, cfg), build(t, Config{Instruction: Text{Tokens: []int32{4, 5}}})
	user, items := []int32{10, 11, 12}, [][]int32{{20}, {30, 31, 32, 33}}
	events, candidates := build(t, Config{}), [][]int32{{20}, {21}}
	rank := func(b *Builder, o plan.Order) Layout { return must(t)(b.Rank(o, user, items)) }
	point := func(b *Builder, o plan.Order) Layout { return must(t)(b.Pointwise(o, user, items)) }
	for name, c := range map[string]struct {
		got  Layout
		want string
	}{
		"user-first": {rank(full, plan.UserFirst), `
preamble 0..2 []
user 2..5 [0]
item 5..6 [0 1]
item 5..9 [0 1]
instruction 9..11 [0 1 2 3]
user 1 items 2 answers 4`},
		"user-first, bare": {rank(bare, plan.UserFirst), `
user 0..3 []
item 3..4 [0]
item 3..7 [0]
instruction 7..9 [0 1 2]
user 0 items 1 answers 3`},
		"item-first": {rank(full, plan.ItemFirst), `
preamble 0..2 []
preamble 2..3 [0]
item 3..4 [0 1]
item 3..7 [0 1]
user 7..10 [0 1 2 3]
instruction 10..12 [0 1 2 3 4]
user 4 items 2 answers 5`},
		"item-first, bare": {rank(bare, plan.ItemFirst), `
item 0..1 []
item 0..4 []
user 4..7 [0 1]
instruction 7..9 [0 1 2]
user 2 items 0 answers 3`},
		"pointwise user-first": {point(full, plan.UserFirst), `
preamble 0..2 []
user 2..5 [0]
item 5..6 [0 1]
item 5..9 [0 1]
discriminant 6..8 [0 1 2]
discriminant 9..11 [0 1 3]
user 1 items 2 answers 4`},
		"pointwise item-first": {point(full, plan.ItemFirst), `
preamble 0..2 []
preamble 2..3 [0]
item 3..4 [0 1]
item 3..7 [0 1]
user 7..10 [0 1 2 3]
discriminant 10..12 [0 1 2 4]
discriminant 10..12 [0 1 3 4]
user 4 items 2 answers 5`},
		"score, item first": {full.Score(user, items, true), `
preamble 0..2 []
item 2..3 [0]
item 2..6 [0]
discriminant 3..8 [0 1]
discriminant 6..11 [0 2]
user -1 items 1 answers 3`},
		"events, user-first": {must(t)(events.Targets(plan.UserFirst, user, candidates)), `
user 0..3 []
item 3..4 [0]
item 3..4 [0]
user 0 items 1 answers 1`},
		"events, item-first": {must(t)(events.Targets(plan.ItemFirst, user, candidates)), `
item 0..1 []
item 0..1 []
user 1..4 [0 1]
discriminant 4..5 [0 2]
discriminant 4..5 [1 2]
user 2 items 0 answers 3`},
		"score without an instruction": {build(t, Config{}).Score(user, items, false), `
user 0..3 []
item 3..4 [0]
item 3..7 [0]
user 0 items 1 answers 1`},
	} {
		if got, want := describe(c.got), strings.TrimPrefix(c.want, "\n"); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
		if err := c.got.Plan.Validate(400, 100); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func must(t *testing.T) func(Layout, error) Layout {
	return func(l Layout, err error) Layout {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
}

func TestRankNeedsAnInstruction(t *testing.T) {
	b := build(t, Config{})
	if _, err := b.Rank(plan.UserFirst, nil, nil); err != ErrNoInstruction {
		t.Errorf("Rank: got %v", err)
	}
	if _, err := b.Pointwise(plan.ItemFirst, nil, nil); err != ErrNoInstruction {
		t.Errorf("Pointwise: got %v", err)
	}
}

func TestTemplates(t *testing.T) {
	toy := &Item{ID: "i1", Text: "a toy", Identifier: 7, Codes: []int32{3, 9},
		Attributes: map[string][]string{"category": {"toys", "kids"}}}
	raw := &Item{ID: "i2", Tokens: []int32{42, 43}, Identifier: 8, Codes: []int32{0, 1}}
	text := func(s string) []int32 { return letters{}.AppendEncode(nil, s) }
	join := func(parts ...[]int32) (out []int32) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	ranges := Codes{FirstToken: []int32{100, 200}, Size: []int32{10, 10}}
	for name, c := range map[string]struct {
		cfg  Config
		user *User
		want []int32
	}{
		"text":         {Config{}, &User{Text: "hi"}, text("hi")},
		"tokens win":   {Config{}, &User{Text: "hi", Tokens: []int32{5}}, []int32{5}},
		"empty tokens": {Config{}, &User{Text: "hi", Tokens: []int32{}}, nil},
		"past items": {Config{User: "Bought: {history}.", Item: "Would they buy {text}?", Separator: "; "},
			&User{History: []*Item{toy, toy}}, text("Bought: a toy; a toy.")},
		"history": {Config{User: "{text}: {history}.",
			Item: "{text}!", HistoryItem: "[{text}/{id}/{attributes.category}]", Separator: "; "},
			&User{Text: "u", History: []*Item{toy, toy}}, text("u: [a toy/i1/toys, kids]; [a toy/i1/toys, kids].")},
		"raw item": {Config{User: "<{history}>", Separator: ","}, &User{History: []*Item{toy, raw}},
			join(text("<a toy,"), []int32{42, 43}, text(">"))},
		"codes": {Config{User: "{history}", History: "codes", Codes: ranges}, &User{History: []*Item{toy, raw}},
			[]int32{103, 209, 100, 201}},
		"codes by text": {Config{User: "{history}", History: "codes", Codes: Codes{Pattern: []string{"<a_%d>", "<b_%d>"}}},
			&User{History: []*Item{toy}}, []int32{303, 319}},
		"identifiers": {Config{User: "{history}", History: "identifier", Separator: " "},
			&User{History: []*Item{toy, raw}}, []int32{7, 32, 8}},
		"literal braces": {Config{User: "{{{text}}}"}, &User{Text: "x"}, text("{x}")},
	} {
		got, err := build(t, c.cfg).UserTokens(c.user)
		if err != nil || len(got)+len(c.want) > 0 && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, c.want)
		}
	}
}

func TestErrorsNameTheField(t *testing.T) {
	for want, cfg := range map[string]Config{
		`prompt.user: template "{name}": no field {name}: want one of {text}, {history}`: {User: "{name}"},
		`prompt.item: template "{attributes.}": no field {attributes.}`:                  {Item: "{attributes.}"},
		`never closed`: {User: "{text"},
		`prompt.instruction: tokens[1]: 400 is outside the vocabulary of 400`: {Instruction: Text{Tokens: []int32{1, 400}}},
		`prompt.history_item: template "{when}"`:                              {HistoryItem: "{when}"},
		`prompt.history: "names"`:                                             {History: "names"},
		`codes: level 1 takes tokens 395 to 405`: {
			Codes: Codes{FirstToken: []int32{0, 395}, Size: []int32{5, 10}}},
		`codes.pattern[0]: "<a>" needs exactly one`: {Codes: Codes{Pattern: []string{"<a>"}}},
		`codes: give either pattern or first_token`: {
			Codes: Codes{Pattern: []string{"%d"}, Size: []int32{1}}},
		`codes: 1 first tokens but 0 sizes`: {Codes: Codes{FirstToken: []int32{1}}},
	} {
		if _, err := New(cfg, letters{}, 400); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	if _, err := New(Config{Preamble: Text{Text: "x"}}, nil, 400); err == nil ||
		!strings.Contains(err.Error(), "tokenizer.json") {
		t.Errorf("a text without a tokenizer: got %v", err)
	}
	b := build(t, Config{})
	if _, err := b.ItemTokens(&Item{Tokens: []int32{-3}}); err == nil || !strings.Contains(err.Error(), "tokens[0]: -3") {
		t.Errorf("a negative token: got %v", err)
	}
}

// Items that {history} cannot show are left out, with their separators, and counted.
func TestHistoryOfItemsWithoutCodes(t *testing.T) {
	item := func(identifier int32, codes ...int32) *Item {
		return &Item{ID: "i", Text: "t", Identifier: identifier, Codes: codes}
	}
	history := []*Item{item(-1), item(7, 3), item(400, 1, 2), item(-1, 10), item(8, 4), item(-1)}
	by := Codes{FirstToken: []int32{100}, Size: []int32{10}}
	for _, c := range []struct {
		history string
		tokens  []int32
		n       int
		lack    string
	}{
		{"codes", []int32{103, ',', 104}, 4, "codes of this model"},
		{"identifier", []int32{7, ',', 8}, 4, "identifiers of this model"},
		{"text", []int32{'t', ',', 't', ',', 't', ',', 't', ',', 't', ',', 't'}, 0, ""},
	} {
		b := build(t, Config{User: "{history}", History: c.history, Separator: ",", Codes: by})
		got, err := b.UserTokens(&User{History: history})
		if err != nil || !slices.Equal(got, c.tokens) {
			t.Errorf("%s: tokens %v, %v; want %v", c.history, got, err, c.tokens)
		}
		if n, lack := b.Unlisted(&User{History: history}); n != c.n || lack != c.lack {
			t.Errorf("%s: %d items lack %q, want %d lack %q", c.history, n, lack, c.n, c.lack)
		}
		if n, _ := b.Unlisted(&User{History: history, Tokens: []int32{1}}); n != 0 {
			t.Errorf("%s: %d items of a user with tokens are left out", c.history, n)
		}
	}
}

// counting tokenises a text to one token, and counts the bytes of all texts.
type counting struct {
	letters
	bytes *int
}

func (c counting) AppendEncode(dst []int32, text string) []int32 {
	*c.bytes += len(text)
	return append(dst, 1)
}

// A short history that names a long item many times is refused before it fills the memory.
func TestSegmentsAreBounded(t *testing.T) {
	bytes := 0
	b, err := New(Config{User: "{history}", Item: "{text}{attributes.a}", HistoryItem: "{text}{attributes.a}"},
		counting{bytes: &bytes}, 400)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1<<20)
	for name, it := range map[string]*Item{
		"text":       {Text: long},
		"attributes": {Attributes: map[string][]string{"a": {long}}},
		"tokens":     {Tokens: make([]int32, 1<<20)},
	} {
		history := make([]*Item, 100_000)
		for i := range history {
			history[i] = it
		}
		if got, err := b.UserTokens(&User{History: history[:16]}); err != nil || len(got) == 0 {
			t.Errorf("%s: 16 MiB are %d tokens, %v", name, len(got), err)
		}
		bytes = 0
		if _, err := b.UserTokens(&User{History: history}); !errors.Is(err, ErrTooLarge) || bytes > 0 {
			t.Errorf("%s: a history of %d items of 1 MiB: got %v and %d bytes tokenised", name, len(history), err, bytes)
		}
	}
	if _, err := b.ItemTokens(&Item{Text: long, Attributes: map[string][]string{"a": make([]string, 10<<20)}}); !errors.Is(
		err, ErrTooLarge) {
		t.Errorf("an item with far too many values: got %v", err)
	}
}
