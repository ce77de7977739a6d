package eval

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"grebe/compute"
	"grebe/internal/toybpe"
	"grebe/internal/wire"
	"grebe/model/modeltest"
	"grebe/shop"
)

// merges is how many pairs the untrained model's vocabulary joins.
const merges = 1200

// ConfigFile is the configuration in a folder that Untrained writes.
const ConfigFile = "grebe.yaml"

const configText = `# The shop of shop with a model of random weights: it has no taste.
models:
  - name: untrained
    path: ./checkpoint
    prompt:
      user: "{text}"
      item: "{text}\n"
      lead_in: "Offers:\n"
      instruction: "The customer takes"
      generate_instruction: "Next:"
    codes: {first_token: [%d, %d, %d], size: [%d, %d, %d]}
  - name: untrained-pointwise
    path: ./checkpoint
    prompt:
      user: "{text}"
      item: "{text}\n"
      lead_in: "Offer:\n"
      instruction: "Will the customer take it?"
    scoring: {kind: pointwise, "yes": %d, "no": %d}
cache: {host_memory: 256MiB}
catalog: {items: items.ndjson}
`

// shelfSize is the number of codes of the second and third level: a category is a grid of them.
const shelfSize = 16

// Untrained writes a small model of random weights for the shop into dir, with its tokenizer, the
// items with identifiers and codes (category, then place on the shelf), and a configuration. It is what
// a trained folder looks like, without the taste: results must be those of chance.
func Untrained(dir string, w *shop.World) error {
	texts := make([]string, 0, len(w.Items)+200)
	for i := range w.Items {
		texts = append(texts, w.Items[i].Text())
	}
	for n := range 200 {
		texts = append(texts, w.Text(w.User(shop.Train, n)))
	}
	vocab := toybpe.Train(texts, merges)
	special := []string{"<yes>", "<no>"}
	token := func() int { return vocab.Size() + len(special) }
	var items bytes.Buffer
	categories, onShelf := map[string]int{}, map[string]int{}
	for i := range w.Items {
		m := w.ItemMessage(i)
		identifier := int32(token())
		special = append(special, fmt.Sprintf("<item_%d>", i+1))
		name := w.Items[i].Category
		if _, ok := categories[name]; !ok {
			categories[name] = len(categories)
		}
		place := onShelf[name]
		onShelf[name]++
		m.Identifier, m.Codes = &identifier, []int32{int32(categories[name]), int32(place / shelfSize % shelfSize),
			int32(place % shelfSize)}
		items.Write(wire.EncodeItem(m))
	}
	first, size := make([]any, 3), []any{len(categories), shelfSize, shelfSize}
	for l := range first {
		first[l] = token()
		for c := range size[l].(int) {
			special = append(special, fmt.Sprintf("<%c_%d>", 'a'+l, c))
		}
	}
	tokenizer, err := vocab.TokenizerJSON(special)
	if err != nil {
		return err
	}
	checkpoint := filepath.Join(dir, "checkpoint")
	if err := modeltest.Write(checkpoint, modeltest.Spec{
		Architecture: modeltest.Qwen3, Hidden: 64, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 32, Inter: 128,
		Vocab: token(), MaxPositions: 8192, Tied: true, RopeTheta: 1e6, DType: compute.BF16, Seed: 7,
	}); err != nil {
		return fmt.Errorf("eval: write %s: %w", checkpoint, err)
	}
	args := append(append(first, size...), vocab.Size(), vocab.Size()+1)
	config := fmt.Sprintf(configText, args...)
	for name, data := range map[string][]byte{
		filepath.Join("checkpoint", "tokenizer.json"): tokenizer, "items.ndjson": items.Bytes(), ConfigFile: []byte(config),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return fmt.Errorf("eval: %w", err)
		}
	}
	return nil
}
