package blend

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/bench/eval"
	"grebe/compute/cpu"
	"grebe/model"
	_ "grebe/model/qwen"
	"grebe/model/tokenizer"
	"grebe/prompt"
	"grebe/workload/shop"
)

// Blended prompts are computed as they are timed, and the books of what is computed are right.
func TestSpeed(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	p := Prompt{Preamble: 207, History: 40, Items: 6, Each: 20, Question: 20}
	s, err := MeasureSpeed(t.Context(), SpeedOptions{Device: dev, Shape: "tiny", Prompts: []Prompt{p}, Budgets: []float64{0.25, 1}, Repeats: 1, Requests: 50})
	if err != nil {
		t.Fatal(err)
	}
	if l := s.Lines[0]; l.Tokens != p.tokens() || l.Computed != [2]int{180, 20 + 10 + 30} || l.Allowed != 3 || l.Ratio <= 0 || l.P99[0] <= 0 {
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
	b, err := prompt.New(prompt.Config{User: "{text}", Item: "{text}\n", Instruction: prompt.Text{Text: "Which?"}}, tok, m.Vocab())
	if err != nil {
		t.Fatal(err)
	}
	data := eval.Shop(w, 2)
	if items := filepath.Join(dir, "items.ndjson"); exists(items) {
		if err := data.Equip(items); err != nil {
			t.Fatal(err)
		}
	}
	q, err := MeasureQuality(t.Context(), QualityOptions{Device: dev, Model: m, Prompt: b, Data: data, Budgets: []float64{0.3, 1}, Rules: []string{"attention", "epic"}})
	if err != nil {
		t.Fatal(err)
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

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
