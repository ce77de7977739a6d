package evict

import "testing"

// A prompt is the next turn of another if it continues from its end, not if both only have a common beginning.
func TestPromptsTakeTurns(t *testing.T) {
	const block = 512
	var last Last
	first := NextPrompt(4*block, 0, block, Last{}, 10)
	last = first.Last()
	if want := (Last{Prompt: 4 * block, Turn: 1, At: 10}); last != want {
		t.Fatalf("the first prompt is remembered as %+v, want %+v", last, want)
	}
	for _, c := range []struct {
		what          string
		tokens, known int
		turn          int32
		behind, more  float32
	}{
		{"it shares the first block only", 4 * block, block, 1, 3 * block, 0},
		{"the last block was not full", 5 * block, 3 * block, 2, block, block},
		{"one token more than a block was behind", 5 * block, 3*block - 1, 1, block + 1, block},
		{"it goes on from the end", 6 * block, 4 * block, 2, 0, 2 * block},
		{"it is shorter", 2 * block, 2 * block, 1, 2 * block, -2 * block},
	} {
		p := NextPrompt(c.tokens, c.known, block, last, 17)
		x := p.Context(0, block, 3, 4)
		if got := p.Last(); got.Turn != c.turn || got.At != 17 || int(got.Prompt) != c.tokens || p.Tokens() != c.tokens {
			t.Errorf("%s: remembered as %+v, want turn %d", c.what, got, c.turn)
		}
		if x.Turn != float32(c.turn) || x.Behind != c.behind || x.New != c.more || x.Since != 3 {
			t.Errorf("%s: described as %+v", c.what, x)
		}
	}
	p := NextPrompt(2*block, block, block, last, 11)
	if got := NextPrompt(3*block, 2*block, block, p.Last(), 12); got.turn != 2 {
		t.Errorf("the turn after a new session's first is %d, want 2", got.turn)
	}
}

// A prompt without a known predecessor is a first turn.
func TestUnknownPrompts(t *testing.T) {
	for _, p := range []Prompt{
		NextPrompt(100, 0, 16, Last{Prompt: 80, Turn: 3, At: 1}, 5), // nothing is cached
		NextPrompt(100, 50, 16, Last{}, 5),                          // the cached entry has no record
	} {
		x := p.Context(50, 30, 7, 8)
		want := Context{Turn: 1, Prompt: 100, Bytes: 7, Cost: 8, Before: 50, After: 20, Known: float32(p.known) / 100,
			Behind: -1}
		if x != want {
			t.Errorf("described as %+v, want %+v", x, want)
		}
	}
	p := NextPrompt(100, 0, 16, Last{}, 5)
	if x := p.Context(90, 30, 7, 8); x.After != 0 {
		t.Errorf("behind an entry that goes beyond the prompt are %v tokens", x.After)
	}
	var none Prompt
	if x := none.Context(0, 0, 1, 1); x.Known != 0 {
		t.Errorf("of no prompt %v is known", x.Known)
	}
}

// Entries of no session are distinguished by kind.
func TestSingleEntries(t *testing.T) {
	if x, want := Single(2, 10, 3, 4), (Context{Prompt: 10, Bytes: 3, Cost: 4, Behind: -3}); x != want {
		t.Errorf("described as %+v, want %+v", x, want)
	}
}
