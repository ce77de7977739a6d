package demo

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"grebe/compute"
	"grebe/internal/toybpe"
	"grebe/model/modeltest"
)

// merges is how many pairs the vocabulary joins.
const merges = 400

//go:embed toy/items.ndjson
var toyItems []byte

//go:embed toy/users.ndjson
var toyUsers []byte

const toyConfig = `# A toy. The model's weights are random.
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

// toyLevels are the codes of the items' semantic IDs: category, shelf, and place on the shelf.
var toyLevels = []int{8, 4, 4}

// Toy writes a model of random weights with forty items to dir unless it is there already: for tests, which
// want little of everything. It has no taste.
func Toy(dir string) error { return place(dir, writeToy) }

func writeToy(dir string) error {
	items, err := parseItems()
	if err != nil {
		return err
	}
	texts := []string{toyConfig, string(toyUsers)}
	for _, it := range items {
		texts = append(texts, it.Text+" "+strings.Join(it.Attributes["category"], " "))
	}
	vocab := toybpe.Train(texts, merges)
	var special []string // tokens after the vocabulary
	for i := range items {
		items[i].Identifier = int32(vocab.Size() + len(special))
		special = append(special, fmt.Sprintf("<item_%d>", i+1))
	}
	first := make([]int, len(toyLevels)) // tokens of the levels' codes
	for l, size := range toyLevels {
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
		Vocab: vocab.Size() + len(special), MaxPositions: 4096, Tied: true, RopeTheta: 1e6, DType: compute.BF16,
		Seed: 20260801,
	}); err != nil {
		return err
	}
	lines, err := encodeItems(items)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{
		filepath.Join("checkpoint", "tokenizer.json"): tokenizer,
		"items.ndjson": lines, "users.ndjson": toyUsers,
		ConfigFile: fmt.Appendf(nil, toyConfig, list(first), list(toyLevels)),
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

// ToyItems returns the ids of the toy's items.
func ToyItems() []string {
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
	for s := bufio.NewScanner(bytes.NewReader(toyItems)); s.Scan(); {
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
