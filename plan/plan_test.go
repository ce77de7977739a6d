package plan

import (
	"strings"
	"testing"
)

// Two items after a user, then an instruction: the mask written out by hand.
func TestMaskOfUserFirst(t *testing.T) {
	p := &Plan{Segments: []Segment{
		{Kind: User, Tokens: []int32{1, 2}},
		{Kind: Item, Tokens: []int32{3}, Start: 2, Sees: []int32{0}},
		{Kind: Item, Tokens: []int32{4, 5}, Start: 2, Sees: []int32{0}},
		{Kind: Instruction, Tokens: []int32{6}, Start: 4, Sees: []int32{0, 1, 2}},
	}}
	want := []string{
		"x.....",
		"xx....",
		"xxx...",
		"xx.x..",
		"xx.xx.",
		"xxxxxx",
	}
	mask := p.Mask()
	if len(mask) != len(want) {
		t.Fatalf("the mask has %d rows, want %d", len(mask), len(want))
	}
	for q, row := range mask {
		var b strings.Builder
		for _, on := range row {
			b.WriteByte(".x"[map[bool]int{true: 1}[on]])
		}
		if b.String() != want[q] {
			t.Errorf("token %d sees %s, want %s", q, b.String(), want[q])
		}
	}
	got := p.Positions()
	for i, w := range []int32{0, 1, 2, 2, 3, 4} {
		if got[i] != w {
			t.Errorf("token %d is at position %d, want %d", i, got[i], w)
		}
	}
	if err := p.Validate(7, 5); err != nil {
		t.Error(err)
	}
}

func TestValidateNamesTheFault(t *testing.T) {
	one := func(s Segment) *Plan { return &Plan{Segments: []Segment{{Kind: User, Tokens: []int32{1}}, s}} }
	for _, c := range []struct {
		plan *Plan
		want string
	}{
		{one(Segment{Kind: Item, Tokens: []int32{9}}), "token 0 is 9, outside the vocabulary of 5"},
		{one(Segment{Kind: Item, Tokens: []int32{-1}}), "outside the vocabulary"},
		{one(Segment{Kind: Item, Tokens: []int32{1, 1}, Start: 7}), "takes positions 7 to 9, but the model has 8"},
		{one(Segment{Kind: Item, Start: -1}), "positions -1"},
		{one(Segment{Kind: Item, Sees: []int32{1}}), "sees segment 1, which is not before it"},
		{one(Segment{Kind: Item, Sees: []int32{0, 0}}), "sees segment 0 twice"},
		{one(Segment{Kind: 77}), "no kind 77"},
		{one(Segment{Kind: Item, Tokens: []int32{1, 2}, Extra: []int32{1}}), "has 2 tokens, but extra numbers of 1"},
	} {
		err := c.plan.Validate(5, 8)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want an error with %q", err, c.want)
		}
	}
}

// Answers name the tier where KV was found, whether it was used as it is or re-rotated. Prototypes are no one's tier.
func TestNamesOfSources(t *testing.T) {
	for s, want := range map[Source]struct {
		name    string
		rotated bool
	}{
		Computed: {"", false}, Cached: {"disk", false}, Block: {"disk", true}, Prototype: {"prototype", true},
	} {
		if s.Name(Disk) != want.name || s.Rotated() != want.rotated {
			t.Errorf("source %d: %q, re-rotated %v; want %q, %v", s, s.Name(Disk), s.Rotated(), want.name, want.rotated)
		}
	}
}
