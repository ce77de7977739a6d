// Package servetest has a fake model for tests of serving. Its answers depend on every token that they see, so a
// wrong prompt gives another answer. It has no weights and computes at once.
package servetest

import (
	"context"
	"encoding/binary"
	"hash/fnv"
	"sync"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/engine"
	"grebe/plan"
	"grebe/prompt"
)

const (
	Vocab     = 400 // bytes, then tokens without a text
	Positions = 5000
	Yes, No   = 301, 302
)

var Instruction = []int32{390, 391}
var Preamble = []int32{399}

// Tokenizer has a token per byte.
type Tokenizer struct{}

func (Tokenizer) AppendEncode(dst []int32, text string) []int32 {
	for _, b := range []byte(text) {
		dst = append(dst, int32(b))
	}
	return dst
}

func (Tokenizer) TokenID(string) (int32, bool) { return 0, false }

// Logit is the fake model: a number in (−4, 4) that depends on every token that an answer sees, in order, and on
// the wanted token.
func Logit(id int32, seen ...[]int32) float32 {
	h := fnv.New64a()
	for _, tokens := range append(seen, []int32{-1, id}) {
		for _, t := range tokens {
			var b [4]byte
			binary.LittleEndian.PutUint32(b[:], uint32(t))
			h.Write(b[:])
		}
	}
	return float32(h.Sum64()>>11)/(1<<53)*8 - 4
}

// Runner answers with Logit. before, if set, runs first and may fail or panic.
type Runner struct {
	mu     sync.Mutex
	before func(context.Context, *engine.Job) error
}

// Set sets before.
func (f *Runner) Set(before func(context.Context, *engine.Job) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

func (f *Runner) Do(ctx context.Context, j *engine.Job) (*engine.Result, error) {
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	if before != nil {
		if err := before(ctx, j); err != nil {
			return nil, err
		}
	}
	if err := j.Plan.Validate(Vocab, Positions); err != nil {
		return nil, err
	}
	res := &engine.Result{Computed: j.Plan.Tokens(), Queue: 1500 * time.Microsecond, Compute: 2 * time.Millisecond,
		BatchTokens: 64}
	for _, w := range j.Want {
		s := &j.Plan.Segments[w.Segment]
		if len(s.Tokens) == 0 {
			panic("an answer is wanted of an empty segment")
		}
		logits := make([]float32, len(w.IDs))
		for i, id := range w.IDs {
			logits[i] = Logit(id, SeenBy(j.Plan, w.Segment)...)
		}
		res.Logits = append(res.Logits, logits)
	}
	return res, nil
}

func SeenBy(p *plan.Plan, segment int) [][]int32 {
	var out [][]int32
	for _, i := range p.Segments[segment].Sees {
		out = append(out, p.Segments[i].Tokens)
	}
	return append(out, p.Segments[segment].Tokens)
}

func NewBuilder(t testing.TB, tok prompt.Tokenizer) *prompt.Builder {
	t.Helper()
	b, err := prompt.New(prompt.Config{
		Preamble: prompt.Text{Tokens: Preamble}, Instruction: prompt.Text{Tokens: Instruction},
		User: "{text}{history}", Separator: "|",
	}, tok, Vocab)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// BareBuilder returns a builder without preamble and instruction.
func BareBuilder(t testing.TB) *prompt.Builder {
	t.Helper()
	b, err := prompt.New(prompt.Config{}, Tokenizer{}, Vocab)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// NewCatalog returns a catalog with items i1 to i3 with texts and identifiers, an item of tokens, and user u1.
func NewCatalog(t testing.TB) *catalog.Catalog {
	t.Helper()
	cat := catalog.New(catalog.Options{})
	for i, text := range []string{"anvil", "bolt", "crate"} {
		id := int32(310 + i)
		if _, err := cat.PutItem(&grebev1.Item{Id: "i" + string(rune('1'+i)), Text: &text, Identifier: &id}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cat.PutUser(&grebev1.User{Id: "u1", History: []string{"i1", "gone", "i3"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := cat.PutItem(&grebev1.Item{Id: "plain/1", Tokens: []int32{7, 8}}); err != nil {
		t.Fatal(err)
	}
	return cat
}
