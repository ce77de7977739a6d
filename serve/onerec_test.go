package serve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/compute/ref"
	"grebe/engine"
	"grebe/generate"
	"grebe/internal/toybpe"
	"grebe/internal/wire"
	"grebe/model"
	"grebe/model/modeltest"
	"grebe/model/tokenizer"
	"grebe/plan"
	"grebe/prompt"
)

// oneRec is how a family of checkpoints names the tokens of codes.
type oneRec struct {
	pattern    []string
	completion string
	special    []string
}

// Checkpoints with the added tokens of OpenOneRec and MiniOneRec complete texts with paths of the catalog. Scores are
// those of a float64 model that scores every path, and the best path is the one that /v1/recommend finds for the same
// prompt.
func TestOneRecCheckpoints(t *testing.T) {
	for name, c := range map[string]oneRec{
		"OpenOneRec": {[]string{"<s_a_%d>", "<s_b_%d>", "<s_c_%d>"},
			"{text}<|sid_begin|>", []string{"<|sid_begin|>", "<|sid_end|>"}},
		"MiniOneRec": {[]string{"<a_%d>", "<b_%d>", "<c_%d>"}, "{text}", nil},
	} {
		t.Run(name, func(t *testing.T) { c.check(t) })
	}
}

func (c *oneRec) check(t *testing.T) {
	const size = 8
	special := append([]string{"<|im_start|>", "<|im_end|>"}, c.special...)
	for _, p := range c.pattern {
		for i := range size {
			special = append(special, fmt.Sprintf(p, i))
		}
	}
	vocab := toybpe.Train([]string{"the user watched these videos, what is next"}, 20)
	raw, err := vocab.TokenizerJSON(special)
	must(t, err)
	tok, err := tokenizer.Parse(raw)
	must(t, err)
	b, err := prompt.New(prompt.Config{Completion: c.completion, ChatMessage: "<|im_start|>{role}\n{text}<|im_end|>\n",
		ChatEnd: "<|im_start|>assistant\n", Codes: prompt.Codes{Pattern: c.pattern}}, tok, vocab.Size()+len(special))
	must(t, err)
	dir := t.TempDir()
	must(t, modeltest.Write(dir, modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2,
		HeadDim: 16,
		Inter:   96, Vocab: vocab.Size() + len(special), Seed: 11}))
	dev, err := cpu.New(cpu.Options{Threads: 1})
	must(t, err)
	defer dev.Close()
	m, err := model.Open(dir, dev, model.Options{DType: "f32"})
	must(t, err)
	defer m.Close()
	e, err := engine.New(m, dev, engine.Options{MaxTokens: 4096})
	must(t, err)
	defer e.Close()
	rng := rand.New(rand.NewPCG(3, 1))
	var items []*prompt.Item
	for i := range 40 {
		items = append(items, &prompt.Item{ID: fmt.Sprint("i", i), Identifier: -1,
			Codes: []int32{rng.Int32N(size), rng.Int32N(size), rng.Int32N(size)}})
	}
	snap, err := generate.NewSnapshot("1", items, b, m, nil)
	must(t, err)
	g := &generate.Generator{Prompt: b, Do: e.Do, Shape: m.Shape()}
	g.Use(snap)
	s, err := New(Config{SLO: time.Minute, Models: []Model{
		{Name: "m", Runner: e, Prompt: b, Generate: g, Vocab: m.Vocab(), Positions: m.MaxPositions()}}})
	must(t, err)

	text := "the user watched " + b.CodeText([]int32{3, 1, 7}) + b.CodeText([]int32{0, 5, 2})
	tokens, err := b.CompletionTokens(text)
	must(t, err)
	want := bruteForce(t, dir, b, tokens, items)
	for form, req := range map[string]*wire.Completion{
		"text":   {Prompt: &grebev1.Input{Text: &text}, N: 100},
		"tokens": {Prompt: &grebev1.Input{Tokens: tokens}, N: 100},
	} {
		got, err := s.Complete(t.Context(), req)
		must(t, err)
		if len(got.Choices) != len(want) {
			t.Fatalf("%s: %d choices, want %d", form, len(got.Choices), len(want))
		}
		for i, x := range got.Choices {
			if score, ok := want[x.Text]; !ok || math.Abs(x.Score-score) > 1e-4 || i > 0 && x.Score > got.Choices[i-1].Score {
				t.Errorf("%s: choice %d is %s with %v, want %v", form, i, x.Text, x.Score, score)
			}
		}
		found, err := s.Recommend(t.Context(), &grebev1.RecommendRequest{User: &grebev1.User{Tokens: tokens}, N: 1})
		must(t, err)
		if best := got.Choices[0]; found.Results[0].Id != best.Item || math.Abs(found.Results[0].Score-best.Score) > 1e-6 {
			t.Errorf("%s: %+v, /v1/recommend finds %v", form, best, found.Results[0])
		}
	}
	chat, err := s.Complete(t.Context(), &wire.Completion{Messages: []wire.Message{{Role: "user", Text: text}}, N: 3})
	must(t, err)
	joined := "<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n"
	for _, whole := range []string{joined, joined + strings.TrimPrefix(c.completion, "{text}")} {
		same, err := s.Complete(t.Context(), &wire.Completion{Prompt: &grebev1.Input{Text: &whole}, N: 3})
		must(t, err)
		if fmt.Sprint(same.Choices) != fmt.Sprint(chat.Choices) {
			t.Errorf("a chat: %+v, its text: %+v", chat.Choices, same.Choices)
		}
	}
}

// bruteForce scores every path of the items with a float64 model, each prefix as a prompt of its own.
func bruteForce(t *testing.T, dir string, b *prompt.Builder, tokens []int32, items []*prompt.Item) map[string]float64 {
	t.Helper()
	var dev compute.Device = ref.New()
	defer dev.Close()
	m, err := model.Open(dir, dev, model.Options{DType: "f32"})
	must(t, err)
	defer m.Close()
	e, err := engine.New(m, dev, engine.Options{MaxTokens: 4096})
	must(t, err)
	defer e.Close()
	scores := map[string]float64{}
	var walk func(prefix []int32, score float64)
	walk = func(prefix []int32, score float64) {
		if len(prefix) == b.Depth() {
			scores[b.CodeText(prefix)] = score
			return
		}
		var next, ids []int32
		whole := slices.Clone(tokens)
		for _, it := range items {
			if slices.Equal(it.Codes[:len(prefix)], prefix) && !slices.Contains(next, it.Codes[len(prefix)]) {
				all, err := b.CodeTokens(it.Codes)
				must(t, err)
				next, ids = append(next, it.Codes[len(prefix)]), append(ids, all[len(prefix)])
				whole = append(slices.Clone(tokens), all[:len(prefix)]...)
			}
		}
		job := &engine.Job{Plan: &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: whole}}},
			Want: []engine.Want{{IDs: ids}}}
		res, err := e.Do(t.Context(), job)
		must(t, err)
		total := logSumExp(res.Logits[0])
		for i, code := range next {
			walk(append(slices.Clone(prefix), code), score+float64(res.Logits[0][i])-total)
		}
	}
	walk(nil, 0)
	return scores
}
