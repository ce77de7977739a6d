// Package demo writes the data of `grebe demo`: a checkpoint, a tokenizer, a catalog of invented
// items and users, and the configuration that serves them.
//
// The weights are random, from a fixed seed: the demo shows the machinery and has no taste. All else
// is what a real folder has, and it is loaded the same way. The same version writes the same bytes.
package demo

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"grebe/compute"
	"grebe/internal/toybpe"
	"grebe/model/modeltest"
)

// version names the folder; a change to what Ensure writes needs a new one.
const version = "demo-2"

// merges is how many pairs the vocabulary joins.
const merges = 400

// Names of the files that others open.
const (
	ConfigFile = "grebe.yaml"
	User       = "ana" // whose ranking the demo shows
)

//go:embed items.ndjson
var itemLines []byte

//go:embed users.ndjson
var userLines []byte

const configText = `# Written by grebe demo. The model's weights are random.
models:
  - name: demo
    path: ./checkpoint
    prompt:
      preamble: "Recommendations for one customer.\n"
      user: "About: {text}\nBought:\n{history}\n"
      item: "{text} ({attributes.category})\n"
      lead_in: "Offers:\n"
      instruction: "The customer will choose "
      generate_instruction: "Next: "
    scoring: {kind: identifier}
    codes: {first_token: %s, size: %s}
cache: {host_memory: 256MiB}
catalog: {items: items.ndjson, users: users.ndjson}
`

// levels are the codes of the items' semantic IDs: category, shelf, and place on the shelf.
var levels = []int{8, 4, 4}

// Dir returns the folder that Ensure uses when it is given none.
func Dir() string {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir() // no home: a service account, a bare container
	}
	return filepath.Join(base, "grebe", version)
}

// Ensure writes the data to dir unless it is there already. It is complete or absent: it is written
// beside dir and moved.
func Ensure(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, ConfigFile)); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), version+"-*")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := write(tmp); err != nil {
		return fmt.Errorf("demo: write %s: %w", dir, err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("demo: %s has other files in it: give an empty folder or a new one", dir)
	}
	if err := os.Rename(tmp, dir); err != nil {
		if _, other := os.Stat(filepath.Join(dir, ConfigFile)); other == nil {
			return nil // another process was faster and wrote the same
		}
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}

func write(dir string) error {
	items, err := parseItems()
	if err != nil {
		return err
	}
	texts := []string{configText, string(userLines)}
	for _, it := range items {
		texts = append(texts, it.Text+" "+strings.Join(it.Attributes["category"], " "))
	}
	vocab := toybpe.Train(texts, merges)
	var special []string // tokens after the vocabulary
	for i := range items {
		items[i].Identifier = int32(vocab.Size() + len(special))
		special = append(special, fmt.Sprintf("<item_%d>", i+1))
	}
	first := make([]int, len(levels)) // tokens of the levels' codes
	for l, size := range levels {
		first[l] = vocab.Size() + len(special)
		for c := range size {
			special = append(special, fmt.Sprintf("<%c_%d>", 'a'+l, c))
		}
	}
	setCodes(items)
	tokenizer, err := vocab.TokenizerJSON(special)
	if err != nil {
		return err
	}
	checkpoint := filepath.Join(dir, "checkpoint")
	if err := modeltest.Write(checkpoint, modeltest.Spec{
		Architecture: modeltest.Qwen3, Hidden: 256, Layers: 4, Heads: 4, KVHeads: 2, HeadDim: 64, Inter: 768,
		Vocab: vocab.Size() + len(special), MaxPositions: 4096, Tied: true, RopeTheta: 1e6, DType: compute.BF16, Seed: 20260801,
	}); err != nil {
		return err
	}
	lines, err := encodeItems(items)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		filepath.Join("checkpoint", "tokenizer.json"): tokenizer,
		"items.ndjson": lines, "users.ndjson": userLines, ConfigFile: fmt.Appendf(nil, configText, list(first), list(levels)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// setCodes gives the items semantic IDs. The last two items of a category share theirs, as happens in
// real catalogs.
func setCodes(items []item) {
	categories, inside := map[string]int{}, map[string]int{}
	for i := range items {
		name := items[i].Attributes["category"][0]
		if _, ok := categories[name]; !ok {
			categories[name] = len(categories)
		}
		at := inside[name]
		inside[name]++
		if at%8 == 7 {
			at--
		}
		items[i].Codes = []int{categories[name], at / 4, at % 4}
	}
}

// list writes numbers as YAML.
func list(numbers []int) string { return strings.ReplaceAll(fmt.Sprint(numbers), " ", ", ") }

// Candidates returns the ids of all items.
func Candidates() []string {
	items, err := parseItems()
	if err != nil {
		panic(err) // the embedded file is wrong
	}
	ids := make([]string, len(items))
	for i := range items {
		ids[i] = items[i].ID
	}
	return ids
}

// Texts returns what the items are, by id.
func Texts() map[string]string {
	items, err := parseItems()
	if err != nil {
		panic(err) // the embedded file is wrong
	}
	texts := make(map[string]string, len(items))
	for i := range items {
		texts[items[i].ID] = items[i].Text
	}
	return texts
}

// item is a line of the catalog.
type item struct {
	ID         string              `json:"id"`
	Text       string              `json:"text"`
	Identifier int32               `json:"identifier"`
	Codes      []int               `json:"codes"`
	Attributes map[string][]string `json:"attributes"`
}

func parseItems() ([]item, error) {
	var items []item
	for s := bufio.NewScanner(bytes.NewReader(itemLines)); s.Scan(); {
		var it item
		if err := json.Unmarshal(s.Bytes(), &it); err != nil {
			return nil, fmt.Errorf("item %d: %w", len(items), err)
		}
		items = append(items, it)
	}
	return items, nil
}

func encodeItems(items []item) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	for i := range items {
		if err := enc.Encode(&items[i]); err != nil {
			return nil, fmt.Errorf("item %s: %w", items[i].ID, err)
		}
	}
	return out.Bytes(), nil
}
