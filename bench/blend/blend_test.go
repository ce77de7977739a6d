package blend

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/compute/cpu"
	"grebe/eval"
	"grebe/model"
	_ "grebe/model/qwen"
	"grebe/model/tokenizer"
	"grebe/prompt"
	"grebe/shop"
)

// Blended prompts are computed as they are timed, and the books of what is computed are right.
func TestSpeed(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	p := Prompt{Preamble: 207, History: 40, Items: 6, Each: 20, Question: 20}
	s, err := MeasureSpeed(t.Context(), SpeedOptions{
		Device: dev, Shape: "tiny", Prompts: []Prompt{p}, Budgets: []float64{0.25, 1}, Repeats: 1, Requests: 50})
	if err != nil {
		t.Fatal(err)
	}
	if l := s.Lines[0]; l.Tokens != p.tokens() || l.Computed != [2]int{180, 20 + 10 + 30} || l.Allowed != 3 ||
		l.Ratio <= 0 || l.P99[0] <= 0 {
		t.Errorf("a quarter is repaired: %+v", l)
	}
	if l := s.Lines[1]; l.Computed[0] != l.Computed[1] {
		t.Errorf("all is repaired: %+v", l)
	}
	var out bytes.Buffer
	if err := s.Text(&out); err != nil || !strings.Contains(out.String(), "tiny's shape") {
		t.Errorf("%v, %s", err, out.String())
	}
}

// With everything repaired rules give the whole prompt's ranking; with a part of it, the share that was asked for.
func TestQuality(t *testing.T) {
	w, err := shop.New(1, 1000)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := eval.Untrained(dir, w); err != nil {
		t.Fatal(err)
	}
	folders, err := filepath.Glob(filepath.Join(dir, "*", "config.json"))
	if err != nil || len(folders) == 0 {
		t.Fatalf("no checkpoint in %s: %v", dir, err)
	}
	folder := filepath.Dir(folders[0])
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Open(folder, dev, model.Options{DType: "f32"})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(filepath.Join(folder, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := prompt.New(prompt.Config{User: "{text}", Item: "{text}\n", Instruction: prompt.Text{Text: "Which?"}}, tok,
		m.Vocab())
	if err != nil {
		t.Fatal(err)
	}
	data := eval.Shop(w, 2)
	if items := filepath.Join(dir, "items.ndjson"); exists(items) {
		if err := data.Equip(items); err != nil {
			t.Fatal(err)
		}
	}
	q, err := MeasureQuality(t.Context(), QualityOptions{
		Device: dev, Model: m, Prompt: b, Data: data, Budgets: []float64{0.3, 1}, Rules: []string{"attention", "epic"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(q.Pairs) != 2 || q.Pairs[1].NDCG.Value > 1e-9 || q.Pairs[1].NDCG.Value < -1e-9 {
		t.Errorf("pairs %+v: with everything repaired rules do not differ", q.Pairs)
	}
	for _, l := range q.Lines {
		switch {
		case l.Budget == 1 && l.Rule != "user-first" && l.Rule != "item-first" && (l.Error > 1e-5 || l.Top < 0.999):
			t.Errorf("%s with everything repaired is off by %v", l.Rule, l.Error)
		case l.Budget < 1 && (l.Error == 0 || l.Compute >= q.Tokens):
			t.Errorf("%s at %v computed %v of %v tokens, off by %v", l.Rule, l.Budget, l.Compute, q.Tokens, l.Error)
		}
	}
}

// Differences are taken user by user: a rule that is always a little better is so for sure, however much users differ.
func TestPairs(t *testing.T) {
	full, one, two, other := &way{rule: "full"}, &way{rule: "a", budget: 0.1}, &way{rule: "b", budget: 0.1},
		&way{rule: "b", budget: 0.2}
	for i := range 40 {
		v := float64(i%10) / 10
		full.ndcg = append(full.ndcg, v)
		one.ndcg, one.users = append(one.ndcg, v-0.01), append(one.users, outcome{err: v})
		two.ndcg, two.users = append(two.ndcg, v-0.02-0.001*float64(i%2)), append(two.users, outcome{err: v + 0.5})
	}
	other.ndcg, other.users = two.ndcg, two.users
	got := pairs([]*way{full, one, two, other}, []string{"a", "b"}, 1)
	if len(got) != 1 || got[0].Rule != "a" || got[0].Than != "b" || got[0].Budget != 0.1 {
		t.Fatalf("got %+v, want one pair at 0.1", got)
	}
	p := got[0]
	if p.NDCG.Value < 0.0233-1e-4 || p.NDCG.Value > 0.0233+1e-4 || p.NDCG.Low < 0.015 || p.NDCG.High > 0.04 {
		t.Errorf("of full %+v, want 0.0105/0.45", p.NDCG)
	}
	if e := p.Error; e.Value < -0.5-1e-9 || e.Value > -0.5+1e-9 || e.High-e.Low > 1e-9 {
		t.Errorf("error %+v, want -0.5", e)
	}
}

// One candidate, or logits that are all the same, have no spread: where nothing is off, the error is 0.
func TestDistanceWithoutSpread(t *testing.T) {
	for _, c := range []struct{ a, b []float32 }{{[]float32{3}, []float32{5}}, {[]float32{1, 1}, []float32{1, 1}},
		{nil, nil}} {
		if d := distance(c.a, c.b); d != 0 {
			t.Errorf("%v from %v: %v", c.a, c.b, d)
		}
	}
	if d := distance([]float32{0, 2}, []float32{0, 1}); d < 0.999 || d > 1.001 {
		t.Errorf("half of the spread more on each side is %v", d)
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
