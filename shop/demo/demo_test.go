package demo

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/internal/config"
	"grebe/internal/wire"
	"grebe/model"
	"grebe/model/tokenizer"
	"grebe/shop"
)

// The embedded checkpoint fits the shop: its vocabulary has a token for every item, by name, and for every code.
func TestTrainedModelKnowsTheShop(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "demo")
	if err := Ensure(dir); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{File: filepath.Join(dir, ConfigFile)})
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.ReadConfig(cfg.Models[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(filepath.Join(cfg.Models[0].Path, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	if tok.VocabSize() != m.Vocab {
		t.Errorf("the tokenizer has %d tokens, the model %d", tok.VocabSize(), m.Vocab)
	}
	lines, err := os.ReadFile(filepath.Join(dir, "items.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	codes, seen := cfg.Models[0].Codes, map[string]string{}
	for line := range bytes.Lines(lines) {
		it, err := wire.DecodeItem(bytes.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := tok.TokenID("<" + it.Id + ">"); !ok || id != it.GetIdentifier() {
			t.Fatalf("%s has the identifier %d, but its token is %d, %v", it.Id, it.GetIdentifier(), id, ok)
		}
		for l, c := range it.Codes {
			if c < 0 || c >= codes.Size[l] {
				t.Fatalf("%s has code %d at level %d of size %d", it.Id, c, l, codes.Size[l])
			}
		}
		key := string([]byte{byte(it.Codes[0]), byte(it.Codes[1]), byte(it.Codes[2])})
		if other := seen[key]; other != "" {
			t.Errorf("%s and %s have the same codes", it.Id, other)
		}
		seen[key] = it.Id
	}
	for name, token := range map[string]int32{"<a_0>": codes.FirstToken[0], "<b_0>": codes.FirstToken[1],
		"<c_0>": codes.FirstToken[2]} {
		if id, _ := tok.TokenID(name); id != token {
			t.Errorf("%s is token %d, the configuration says %d", name, id, token)
		}
	}
}

// The embedded HSTU has a row for every item, in the shop's order, and for every other event of its customers.
func TestHSTUKnowsTheShop(t *testing.T) {
	w, err := shop.New(seed, shop.Default)
	if err != nil {
		t.Fatal(err)
	}
	data, err := trained.ReadFile("trained/hstu/items.json")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range w.Items {
		want = append(want, w.Items[i].ID)
	}
	if want = append(want, w.Marks()...); !slices.Equal(got, want) {
		t.Errorf("items.json has %d names, the shop %d, or they differ", len(got), len(want))
	}
}

func TestOffersAreOfTheDemosCustomers(t *testing.T) {
	texts, err := Texts()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range customers {
		o, err := OfferTo(c.name)
		if err != nil {
			t.Fatal(err)
		}
		if who, _, _ := strings.Cut(o.User.GetText(), " "); !strings.EqualFold(who, c.name) {
			t.Errorf("%s is called %s in the text", c.name, who)
		}
		if len(o.Items) != 100 || texts[o.Items[0].Id] != o.Items[0].GetText() {
			t.Errorf("%s is offered %d items", c.name, len(o.Items))
		}
	}
	if _, err := OfferTo("nobody"); err == nil {
		t.Error("an offer to nobody")
	}
}

// What the repository carries stays small: 25 MB in all, no file over 15 MB.
func TestEmbeddedFilesAreSmall(t *testing.T) {
	var total int64
	err := filepath.Walk("trained", func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		total += info.Size()
		if info.Size() > 15<<20 {
			t.Errorf("%s has %d bytes", path, info.Size())
		}
		return nil
	})
	if err != nil || total > 25<<20 {
		t.Errorf("%d bytes in all, %v", total, err)
	}
}

// Requests of the demo and of the quickstart name no deadline: they have time on a busy machine that has just started.
func TestTheDemoHasTime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "demo")
	if err := Ensure(dir); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{File: filepath.Join(dir, ConfigFile)})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.SLOMillis < 5000 {
		t.Errorf("the demo's requests have %d ms", cfg.SLOMillis)
	}
}
