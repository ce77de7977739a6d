package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"grebe/internal/config"
	"grebe/model"
	_ "grebe/model/qwen"
	"grebe/model/tokenizer"
)

func TestToyLoads(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := Toy(dir); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{File: filepath.Join(dir, ConfigFile)})
	if err != nil {
		t.Fatal(err)
	}
	folder := cfg.Models[0].Path
	m, err := model.ReadConfig(folder)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(filepath.Join(folder, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	items, err := parseItems()
	if err != nil {
		t.Fatal(err)
	}
	for i, it := range items {
		if back := tok.Decode(tok.Encode(it.Text)); back != it.Text {
			t.Errorf("%q comes back from the tokenizer as %q", it.Text, back)
		}
		if n := len(tok.Encode(it.Text)); n > 24 {
			t.Errorf("%q has %d tokens: the merges are of no use", it.Text, n)
		}
		if i == 0 {
			if id, ok := tok.TokenID("<item_1>"); !ok || int(id) >= tok.VocabSize() {
				t.Errorf("<item_1> is token %d, %v", id, ok)
			}
		}
	}
	if tok.VocabSize() != m.Vocab {
		t.Errorf("the tokenizer has %d tokens, the model %d", tok.VocabSize(), m.Vocab)
	}
}

// Items have semantic IDs whose tokens the vocabulary has by name, and a few share theirs.
func TestToyItemsHaveCodes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := Toy(dir); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{File: filepath.Join(dir, ConfigFile)})
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(filepath.Join(cfg.Models[0].Path, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(filepath.Join(dir, "items.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	codes, shared := cfg.Models[0].Codes, 0
	seen := map[string]bool{}
	for line := range bytes.Lines(written) {
		var it item
		if err := json.Unmarshal(line, &it); err != nil {
			t.Fatal(err)
		}
		if len(it.Codes) != len(codes.FirstToken) {
			t.Fatalf("%s has codes %v, the model %d levels", it.ID, it.Codes, len(codes.FirstToken))
		}
		for l, c := range it.Codes {
			name := fmt.Sprintf("<%c_%d>", 'a'+l, c)
			if id, ok := tok.TokenID(name); !ok || id != codes.FirstToken[l]+int32(c) || int32(c) >= codes.Size[l] {
				t.Errorf("%s: code %d of level %d is token %d, which is not %s of the vocabulary", it.ID, c, l,
					codes.FirstToken[l]+int32(c), name)
			}
		}
		if key := fmt.Sprint(it.Codes); seen[key] {
			shared++
		} else {
			seen[key] = true
		}
	}
	if shared == 0 || shared > len(seen)/4 {
		t.Errorf("%d items share the codes of another, of %d: want a few", shared, len(seen))
	}
}

func TestToyIsDeterministicAndKeepsWhatIsThere(t *testing.T) {
	base := t.TempDir()
	a, b := filepath.Join(base, "a"), filepath.Join(base, "b")
	for _, dir := range []string{a, b, a} {
		if err := Toy(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"items.ndjson", "checkpoint/tokenizer.json", "checkpoint/model.safetensors"} {
		x, err := os.ReadFile(filepath.Join(a, name))
		if err != nil {
			t.Fatal(err)
		}
		y, err := os.ReadFile(filepath.Join(b, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(x, y) {
			t.Errorf("%s differs between two runs", name)
		}
	}
	left, err := filepath.Glob(filepath.Join(base, "demo-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary folders are left: %v, %v", left, err)
	}
}

func TestForeignFilesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Toy(dir); err == nil {
		t.Fatal("a folder with other files was taken")
	}
	if _, err := os.Stat(filepath.Join(dir, "mine")); err != nil {
		t.Error(err)
	}
}

// Processes that start at the same time do not refuse what the other wrote.
func TestAnotherProcessWasFaster(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "demo")
	write := func(to string) error { return os.WriteFile(filepath.Join(to, ConfigFile), nil, 0o644) }
	err := place(dir, func(to string) error {
		if err := place(dir, write); err != nil {
			t.Fatal(err)
		}
		return write(to)
	})
	if err != nil {
		t.Error(err)
	}
}
