package arrays

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"grebe/model/tokenizer"
	"grebe/plan"
	"grebe/prompt"
	"grebe/shop"
)

// golden is what training/test_plans.py compares its masks and positions with.
const golden = "../../training/testdata/plans.json"

type planCase struct {
	Name     string             `json:"name"`
	Prompts  map[string][]int32 `json:"prompts"`
	Order    string             `json:"order"`
	Kind     string             `json:"kind"` // rank, pointwise or generate
	User     []int32            `json:"user"`
	Items    [][]int32          `json:"items"`
	Tokens   []int32            `json:"tokens"`
	Position []int32            `json:"positions"`
	Mask     []string           `json:"mask"` // a row per token: 1 where it attends
	Answers  []int              `json:"answers"`
}

// The masks and positions that the scripts train with are those that the server computes with.
func TestPlansOfTheScriptsAreThoseOfTheServer(t *testing.T) {
	got, err := json.MarshalIndent(planCases(t), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if os.Getenv("GREBE_UPDATE") != "" {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what package prompt lays out: GREBE_UPDATE=1 writes it anew, and then training/plans.py must "+
			"follow", golden)
	}
}

func planCases(t *testing.T) []planCase {
	full := map[string][]int32{"preamble": {1, 2}, "lead_in": {3}, "instruction": {4, 5}, "generate_instruction": {6}}
	bare := map[string][]int32{"instruction": {4}, "generate_instruction": {6, 7}}
	user, items := []int32{10, 11, 12, 13, 14}, [][]int32{{20}, {30, 31, 32}, {40, 41}}
	var out []planCase
	for i, prompts := range []map[string][]int32{full, bare} {
		text := func(name string) prompt.Text { return prompt.Text{Tokens: prompts[name]} }
		b, err := prompt.New(prompt.Config{
			Preamble: text("preamble"), LeadIn: text("lead_in"), Instruction: text("instruction"),
			GenerateInstruction: text("generate_instruction"),
		}, nil, 100)
		if err != nil {
			t.Fatal(err)
		}
		add := func(kind string, order plan.Order, l prompt.Layout, err error) {
			if err != nil {
				t.Fatal(err)
			}
			c := planCase{Name: fmt.Sprintf("%s %s %d", kind, order, i), Prompts: prompts, Order: order.String(), Kind: kind,
				User: user, Items: items}
			c.fill(l.Plan, l.Answers)
			out = append(out, c)
		}
		for _, order := range []plan.Order{plan.UserFirst, plan.ItemFirst} {
			l, err := b.Rank(order, user, items)
			add("rank", order, l, err)
			l, err = b.Pointwise(order, user, items)
			add("pointwise", order, l, err)
		}
		l, err := b.Rank(plan.Causal, user, items)
		add("rank", plan.Causal, l, err)
		add("generate", plan.UserFirst, b.Generate(user), nil)
	}
	return out
}

// fill writes out what a plan means. Answers are the last tokens of the segments from answers on.
func (c *planCase) fill(p *plan.Plan, answers int) {
	at := 0
	for i := range p.Segments {
		c.Tokens = append(c.Tokens, p.Segments[i].Tokens...)
		at += len(p.Segments[i].Tokens)
		if i >= answers {
			c.Answers = append(c.Answers, at-1)
		}
	}
	c.Position = p.Positions()
	for _, row := range p.Mask() {
		line := make([]byte, len(row))
		for k, sees := range row {
			line[k] = '0'
			if sees {
				line[k] = '1'
			}
		}
		c.Mask = append(c.Mask, string(line))
	}
}

// The arrays hold what the server makes of the same customer: the tokens of the whole text, and at each
// cut those of the customer as they were then.
func TestTokensAreTheServers(t *testing.T) {
	x := written(t)
	w, dir := x.w, x.dir
	tok, err := tokenizer.Load(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	if tok.VocabSize() != x.meta.Vocabulary {
		t.Errorf("the tokenizer has %d tokens, meta.json says %d", tok.VocabSize(), x.meta.Vocabulary)
	}
	b, err := prompt.New(prompt.Config{User: prompts.User, Item: prompts.Item}, tok, tok.VocabSize())
	if err != nil {
		t.Fatal(err)
	}
	ids, err := b.ItemTokens(&prompt.Item{ID: w.Items[7].ID, Text: w.Items[7].Text()})
	if err != nil || int(ids[0]) != x.meta.FirstIdentifier+7 {
		t.Errorf("item 7 begins with token %v, %v, want its identifier %d", ids, err, x.meta.FirstIdentifier+7)
	}
	for n := range 20 {
		u := w.User(shop.Train, n)
		c := x.customer(shop.Train, n)
		if want := appendTokens(nil, tok.Encode(w.Text(u))); !slices.Equal(c.tokens, want) {
			t.Fatalf("customer %d: the tokens are not those of the text", n)
		}
		if len(c.cuts) != len(c.items) || len(c.items) != u.Events() {
			t.Fatalf("customer %d: %d cuts and %d items for %d purchases", n, len(c.cuts), len(c.items), u.Events())
		}
		for k, cut := range c.cuts {
			then := w.Text(w.Before(u, shop.Train, n, k))
			if want := appendTokens(nil, tok.Encode(then)); !slices.Equal(c.tokens[:cut], want) {
				t.Fatalf("customer %d before purchase %d: the tokens up to the cut are not those of the text then", n, k)
			}
		}
	}
}

func TestCustomersWriteArraysOfTheSplit(t *testing.T) {
	x := written(t)
	dir := x.dir
	for _, split := range []shop.Split{shop.Train, shop.Test} {
		if err := x.Customers(split, 3); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(filepath.Join(dir, "test.offers.npy"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "{'descr': '<u2', 'fortran_order': False, 'shape': (3, 100), }"; !bytes.Contains(data, []byte(want)) ||
		len(data)%64 != (3*100*2)%64 {
		t.Errorf("test.offers.npy has %d bytes and begins %q", len(data), data[:80])
	}
	if _, err := os.Stat(filepath.Join(dir, "train.p.npy")); err == nil {
		t.Error("the training split has the true probabilities")
	}
}

var shared struct {
	sync.Once
	x   *Writer
	err error
}

// written returns a small shop's writer. Its vocabulary takes a second to train, so tests share it.
func written(t *testing.T) *Writer {
	t.Helper()
	shared.Do(func() {
		var w *shop.World
		if w, shared.err = shop.New(3, 1000); shared.err == nil {
			shared.x, shared.err = New(folder, w)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.x
}

var folder string // of written

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "arrays-"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(folder)
	os.Exit(code)
}

// The scripts' own tests run where Python has what they need.
func TestScripts(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	for _, candidate := range []string{python, "/usr/bin/python3"} {
		if exec.Command(candidate, "-c", "import numpy, torch").Run() == nil {
			cmd := exec.Command(candidate, "-m", "unittest", "-q", "test_plans", "test_hstu")
			cmd.Dir = "../../training"
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("training: %v\n%s", err, out)
			}
			return
		}
	}
	t.Skip("python3 has no numpy and torch")
}
