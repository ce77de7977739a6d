package server

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"grebe/compute/ref"
	"grebe/engine"
	"grebe/internal/fixture"
	"grebe/model"
	_ "grebe/model/llama"
	_ "grebe/model/qwen"
	"grebe/prompt"
	"grebe/serve"
)

// The fixtures' prompts, sent through HTTP, the prompt builder, the engine and a real checkpoint, give what Hugging
// Face transformers computes.
func TestTransformers(t *testing.T) {
	for _, name := range []string{"qwen2-tiny", "qwen3-tiny", "llama-tiny"} {
		set := fixture.Load(t, name)
		dev := ref.New()
		m, err := model.Open(set.Dir, dev, model.Options{DType: "f32"})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		e, err := engine.New(m, dev, engine.Options{MaxTokens: 512})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		for i := range set.Cases {
			if c := &set.Cases[i]; c.Order != "causal" {
				t.Run(name+"/"+c.Name, func(t *testing.T) { againstTransformers(t, c, e, m) })
			}
		}
	}
}

// parts are the tokens of a case, by their part of the prompt.
type parts struct {
	preamble, leadIn, user, instruction []int32
	items                               [][]int32
}

func partsOf(c *fixture.Case) parts {
	p := parts{user: []int32{}}
	for _, s := range c.Segments {
		switch {
		case s.Name == "preamble":
			p.preamble = s.Tokens
		case s.Name == "lead-in":
			p.leadIn = s.Tokens
		case s.Kind == "user":
			p.user = append(p.user, s.Tokens...)
		case s.Kind == "item":
			p.items = append(p.items, s.Tokens)
		default:
			p.instruction = s.Tokens
		}
	}
	return p
}

func againstTransformers(t *testing.T, c *fixture.Case, e *engine.Engine, m model.Model) {
	p := partsOf(c)
	b, err := prompt.New(prompt.Config{
		Preamble: prompt.Text{Tokens: p.preamble}, LeadIn: prompt.Text{Tokens: p.leadIn},
		Instruction: prompt.Text{Tokens: p.instruction},
	}, nil, m.Vocab())
	if err != nil {
		t.Fatal(err)
	}
	const yes, no = 5, 90
	mod := serve.Model{Name: "m", Runner: e, Prompt: b, Vocab: m.Vocab(), Positions: m.MaxPositions()}
	if c.Pointwise {
		mod.Scoring = serve.Scoring{Kind: serve.Pointwise, Yes: yes, No: no}
	}
	w := worldOf(t, serve.Config{Models: []serve.Model{mod}, SLO: time.Minute})

	var candidates []string
	want := make([]float64, len(p.items))
	for i, it := range p.items {
		candidates = append(candidates, fmt.Sprintf(`{"tokens":%s,"identifier":%d}`, list(it), 7*i))
		if c.Pointwise {
			want[i] = float64(c.Logits[i].Values[yes]) - float64(c.Logits[i].Values[no])
		} else {
			want[i] = float64(c.Logits[0].Values[7*i])
		}
	}
	got := w.rank(t, fmt.Sprintf(`{"user":{"tokens":%s},"candidates":[%s],"prefix":%q}`, list(p.user),
		strings.Join(candidates, ","), c.Order))
	for _, r := range got.Results {
		if math.Abs(float64(r.Logit)-want[r.Index]) > 1e-4*scale(c.Logits) {
			t.Errorf("candidate %d: logit %v, transformers %v", r.Index, r.Logit, want[r.Index])
		}
	}
	if got.Usage.Prompt != c.Tokens() {
		t.Errorf("%d prompt tokens, want %d", got.Usage.Prompt, c.Tokens())
	}
	if c.Pointwise && c.Order == "user" {
		scoreAgainstTransformers(t, w, c, p)
	}
}

// scoreAgainstTransformers checks that /v1/score computes what pointwise user-first scoring does.
func scoreAgainstTransformers(t *testing.T, w *world, c *fixture.Case, p parts) {
	var items []string
	for _, it := range p.items {
		items = append(items, list(it))
	}
	rec := w.ask("POST", "/v1/score", fmt.Sprintf(`{"query":%s,"items":[%s],"label_token_ids":[5,90]}`, list(p.user),
		strings.Join(items, ",")))
	var got scoreBody
	decodeJSON(t, rec.Body, &got)
	for i, r := range c.Logits {
		probabilities := naiveSoftmax(r.Values)
		for k, id := range []int{5, 90} {
			if math.Abs(got.Scores[i][k]-probabilities[id]) > 1e-4*probabilities[id] {
				t.Errorf("item %d, label %d: %v, transformers %v", i, id, got.Scores[i][k], probabilities[id])
			}
		}
	}
}

// scale is the largest logit of a case.
func scale(rows []fixture.Row) float64 {
	most := 0.0
	for _, r := range rows {
		for _, v := range r.Values {
			most = max(most, math.Abs(float64(v)))
		}
	}
	return most
}

func list(ids []int32) string {
	b, err := json.Marshal(ids)
	if err != nil {
		panic(err)
	}
	return string(b)
}
