package prompt

import (
	"slices"
	"testing"

	"grebe/plan"
)

// An ordinary prompt is one text: its tokens stand one after the other, and each sees all before it. Items are found in
// it.
func TestOrdinaryPromptsSeeAllBefore(t *testing.T) {
	user, items := []int32{10, 11, 12}, [][]int32{{20}, {30, 31, 32, 33}, {40, 41}}
	full := build(t, Config{Preamble: Text{Tokens: []int32{1, 2}}, LeadIn: Text{Tokens: []int32{3}},
		Instruction: Text{Tokens: []int32{4, 5}}})
	bare := build(t, Config{Instruction: Text{Text: "?"}})
	for name, c := range map[string]struct {
		b     *Builder
		order plan.Order
		want  []int32
	}{
		"user first":        {full, plan.Causal, []int32{1, 2, 10, 11, 12, 20, 30, 31, 32, 33, 40, 41, 4, 5}},
		"items first":       {full, plan.CausalItems, []int32{1, 2, 3, 20, 30, 31, 32, 33, 40, 41, 10, 11, 12, 4, 5}},
		"user first, bare":  {bare, plan.Causal, []int32{10, 11, 12, 20, 30, 31, 32, 33, 40, 41, '?'}},
		"items first, bare": {bare, plan.CausalItems, []int32{20, 30, 31, 32, 33, 40, 41, 10, 11, 12, '?'}},
	} {
		l, err := c.b.Rank(c.order, user, items)
		if err != nil {
			t.Fatal(err)
		}
		var tokens []int32
		for _, s := range l.Plan.Segments {
			tokens = append(tokens, s.Tokens...)
		}
		if !slices.Equal(tokens, c.want) {
			t.Errorf("%s: tokens %v, want %v", name, tokens, c.want)
		}
		for i, p := range l.Plan.Positions() {
			if p != int32(i) {
				t.Errorf("%s: token %d stands at %d", name, i, p)
			}
		}
		for i, row := range l.Plan.Mask() {
			for k, sees := range row {
				if sees != (k <= i) {
					t.Errorf("%s: token %d sees token %d: %v", name, i, k, sees)
				}
			}
		}
		line := l.Plan.Segments[l.Items]
		for i, it := range items {
			if at := l.ItemAt[i]; line.Kind != plan.Item || !slices.Equal(line.Tokens[at:at+len(it)], it) {
				t.Errorf("%s: item %d is not at %d of %v", name, i, at, line)
			}
		}
		if last := len(l.Plan.Segments) - 1; l.Answers != last || !slices.Equal(l.Plan.Segments[l.User].Tokens, user) {
			t.Errorf("%s: segment %d answers, segment %d is the user", name, l.Answers, l.User)
		}
	}
}

// Tokens at the edges of the vocabulary are tokens as others are: identifier 0, and the last code.
func TestEdgesOfTheVocabulary(t *testing.T) {
	first := &Item{ID: "a", Identifier: 0, Codes: []int32{0}}
	b := build(t, Config{User: "{history}", History: "identifier"})
	if got, err := b.UserTokens(&User{History: []*Item{first}}); err != nil || !slices.Equal(got, []int32{0}) {
		t.Errorf("identifier 0: %v, %v", got, err)
	}
	if got, err := b.UserTokens(&User{History: []*Item{{ID: "b", Identifier: 400}}}); err != nil || len(got) > 0 {
		t.Errorf("an identifier behind the vocabulary became %v, %v", got, err)
	}
	b = build(t, Config{Codes: Codes{FirstToken: []int32{390}, Size: []int32{10}}}) // up to the last of 400
	if got, err := b.CodeTokens([]int32{9}); err != nil || !slices.Equal(got, []int32{399}) {
		t.Errorf("the last code: %v, %v", got, err)
	}
	if _, err := New(Config{Codes: Codes{FirstToken: []int32{391}, Size: []int32{10}}}, letters{}, 400); err == nil {
		t.Error("codes behind the vocabulary were taken")
	}
	b = build(t, Config{Codes: Codes{Pattern: []string{"<a_%d>", "<b_%d>"}}})
	if got := b.CodeSizes([]int32{3, 0, 1, 5}); !slices.Equal(got, []int{4, 6}) {
		t.Errorf("codes up to 3 and 5 take %v", got)
	}
	if got := []int{b.LevelSize(0), b.LevelSize(1)}; !slices.Equal(got, []int{10, 10}) {
		t.Errorf("LevelSize = %v", got)
	}
	if got := b.LevelTokens(1, 12); !slices.Equal(got, []int32{310, 311, 312, 313, 314, 315, 316, 317, 318, 319, 0, 0}) {
		t.Errorf("the tokens of level 1: %v", got)
	}
}

// zeros has one token for codes, 0.
type zeros struct{ letters }

func (zeros) TokenID(text string) (int32, bool) { return 0, text == "<z_3>" }

// Token 0 matches a pattern as others do.
func TestPatternOfTokenZero(t *testing.T) {
	b, err := New(Config{Codes: Codes{Pattern: []string{"<z_%d>", "<y_%d>"}}}, zeros{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	if b.MatchesNoToken(0, 10) || !b.MatchesNoToken(1, 10) {
		t.Errorf("level 0 matches none: %v, level 1: %v", b.MatchesNoToken(0, 10), b.MatchesNoToken(1, 10))
	}
}

// A generation answers at its instruction, or at the user where there is none.
func TestGenerate(t *testing.T) {
	for _, c := range []struct {
		cfg          Config
		answers, end int
	}{
		{Config{}, 0, 3},
		{Config{Preamble: Text{Tokens: []int32{1}}}, 1, 4},
		{Config{Preamble: Text{Tokens: []int32{1}}, GenerateInstruction: Text{Tokens: []int32{5, 6}}}, 2, 6},
	} {
		l := build(t, c.cfg).Generate([]int32{10, 11, 12})
		if l.Answers != c.answers || l.End != c.end || len(l.Plan.Segments) != c.answers+1 {
			t.Errorf("%+v: segment %d of %d answers, codes follow at %d, want %d and %d", c.cfg, l.Answers, len(l.Plan.Segments),
				l.End, c.answers, c.end)
		}
	}
}
