package arrays

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/toybpe"
	"grebe/internal/wire"
	"grebe/model/tokenizer"
)

// titleMerges is more than the shop's: titles of real items have more words.
const titleMerges = 4000

// Line is how an item of a catalog stands in the text of a user who had it.
func Line(text string) string { return "- " + text + "\n" }

// Catalog writes a catalog that is not the shop's into dir, which exists: tokenizer.json, trained on the texts of its
// items; items.ndjson with identifiers; meta.json; the tokens of each item as a candidate (items.tokens, items.offsets)
// and in a history (items.lines, items.line_offsets). Who had which item is for a script to say: a text is its first
// line and the lines of its items, and so are its tokens. There are no codes.
func Catalog(dir string, items []*grebev1.Item, head string) error {
	ids, texts := make([]string, len(items)), repeated(prompts.Preamble, prompts.LeadIn, prompts.Instruction, head)
	for i, it := range items {
		if it.Text == nil || *it.Text == "" {
			return fmt.Errorf("arrays: item %s has no text", it.Id)
		}
		ids[i] = it.Id
		texts = append(texts, *it.Text)
	}
	x := &Writer{dir: dir}
	data, err := x.number(toybpe.Train(texts, titleMerges), ids, nil)
	if err != nil {
		return err
	}
	if x.meta.Vocabulary > 1<<16 {
		return fmt.Errorf("arrays: a vocabulary of %d: arrays hold 65,536", x.meta.Vocabulary)
	}
	if x.tok, err = tokenizer.Parse(data); err != nil {
		return fmt.Errorf("arrays: %w", err)
	}
	x.describe()
	x.meta.Head, x.meta.Tokens["head"] = head, x.tok.Encode(head)
	meta, err := json.MarshalIndent(&x.meta, "", "  ")
	if err != nil {
		return fmt.Errorf("arrays: meta.json: %w", err)
	}
	var catalog []byte
	var tokens, lines []uint16
	offsets, lineOffsets := []int64{0}, []int64{0}
	for i, it := range items {
		identifier := int32(x.meta.FirstIdentifier + i)
		it.Identifier = &identifier
		catalog = append(catalog, wire.EncodeItem(it)...)
		tokens = appendTokens(tokens, x.tok.Encode("<"+it.Id+"> "+*it.Text+"\n"))
		lines = appendTokens(lines, x.tok.Encode(Line(*it.Text)))
		offsets, lineOffsets = append(offsets, int64(len(tokens))), append(lineOffsets, int64(len(lines)))
	}
	for name, data := range map[string][]byte{"tokenizer.json": data, "meta.json": append(meta, '\n'),
		"items.ndjson": catalog} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return fmt.Errorf("arrays: %w", err)
		}
	}
	return save(dir, "items", map[string]array{
		"tokens": flat(tokens), "offsets": flat(offsets), "lines": flat(lines), "line_offsets": flat(lineOffsets),
	})
}
