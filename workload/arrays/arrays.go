// Package arrays writes the shop as arrays of integers, so that a training script only gathers: texts
// are tokenised here, by the tokenizer that serves them later.
//
// A folder has
//
//   - tokenizer.json: byte-level BPE trained on the shop's texts; behind its merges come <yes>, <no>, a
//     token per item (<i00001>, …) and the codes of semantic IDs (<a_0>, …, <b_0>, …, <c_0>, …);
//   - items.ndjson: the catalog with identifiers, without codes, which training finds;
//   - meta.json: numbers of tokens, and the prompts as texts and as tokens (Meta);
//   - items.*.npy: tokens of each item as a candidate, and its category, brand and style as numbers;
//   - train, validation, test: the customers of a split (see customers.go).
//
// The prompts are defined here once: the scripts read them from meta.json and write them into the
// configuration that serves the trained model. The same seed gives the same files.
package arrays

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"grebe/internal/toybpe"
	"grebe/internal/wire"
	"grebe/model/tokenizer"
	"grebe/shop"
)

// Prompts are the fixed parts of the trained models' prompts.
type Prompts struct {
	Preamble            string `json:"preamble"`
	LeadIn              string `json:"lead_in"`
	User                string `json:"user"`
	Item                string `json:"item"`
	Instruction         string `json:"instruction"`
	Pointwise           string `json:"pointwise"`
	GenerateInstruction string `json:"generate_instruction"`
}

// The identifier stands in the candidate's text, so that a model knows which one it reads.
var prompts = Prompts{
	Preamble:            "A shop and one of its customers.\n",
	LeadIn:              "Offers:\n",
	User:                "{text}",
	Item:                "<{id}> {text}\n",
	Instruction:         "The customer takes:",
	Pointwise:           "Will the customer take it?",
	GenerateInstruction: "Next:",
}

// Levels are the numbers of codes of each level of the semantic IDs.
var Levels = []int{64, 64, 32}

const merges = 2400

// Meta is meta.json.
type Meta struct {
	Vocabulary      int                `json:"vocabulary"`
	Words           int                `json:"words"` // tokens of the BPE: the ids below it
	Yes             int                `json:"yes"`
	No              int                `json:"no"`
	FirstIdentifier int                `json:"first_identifier"`
	Items           int                `json:"items"`
	FirstCode       []int              `json:"first_code"`
	Levels          []int              `json:"levels"`
	Marks           []string           `json:"marks"`          // rows of streams that are no items
	Head            string             `json:"head,omitempty"` // first line of a user's text; of a catalog (Catalog)
	Prompts         Prompts            `json:"prompts"`
	Tokens          map[string][]int32 `json:"tokens"` // of the fixed parts, by their names in Prompts
}

// Writer writes the shop into a folder.
type Writer struct {
	dir  string
	w    *shop.World
	tok  *tokenizer.Tokenizer
	meta Meta
}

// New writes the tokenizer, the items and meta.json into dir, which exists.
func New(dir string, w *shop.World) (*Writer, error) {
	x := &Writer{dir: dir, w: w}
	data, err := x.vocabulary()
	if err != nil {
		return nil, err
	}
	if x.tok, err = tokenizer.Parse(data); err != nil {
		return nil, fmt.Errorf("arrays: %w", err)
	}
	x.describe()
	meta, err := json.MarshalIndent(&x.meta, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("arrays: meta.json: %w", err)
	}
	for name, data := range map[string][]byte{"tokenizer.json": data, "meta.json": append(meta, '\n'),
		"items.ndjson": x.catalog()} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return nil, fmt.Errorf("arrays: %w", err)
		}
	}
	return x, x.items()
}

// vocabulary trains the BPE and adds the special tokens.
func (x *Writer) vocabulary() ([]byte, error) {
	p := &prompts
	texts := repeated(p.Preamble, p.LeadIn, " "+p.Instruction, " "+p.Pointwise, p.Instruction, p.Pointwise,
		p.GenerateInstruction)
	for i := range x.w.Items {
		texts = append(texts, x.w.Items[i].Text())
	}
	for n := range 400 {
		texts = append(texts, x.w.Text(x.w.User(shop.Train, n)))
	}
	ids := make([]string, len(x.w.Items))
	for i := range ids {
		ids[i] = x.w.Items[i].ID
	}
	return x.number(toybpe.Train(texts, merges), ids, Levels)
}

// repeated returns texts often enough that each of their words becomes a token.
func repeated(texts ...string) (out []string) {
	for range 100 {
		out = append(out, texts...)
	}
	return out
}

// number adds the special tokens to a vocabulary, notes their numbers and returns tokenizer.json.
func (x *Writer) number(vocab *toybpe.Vocabulary, ids []string, levels []int) ([]byte, error) {
	special := []string{"<yes>", "<no>"}
	for _, id := range ids {
		special = append(special, "<"+id+">")
	}
	m := &x.meta
	m.Words, m.Yes, m.No = vocab.Size(), vocab.Size(), vocab.Size()+1
	m.FirstIdentifier, m.Items, m.Levels = vocab.Size()+2, len(ids), levels
	for l, size := range levels {
		m.FirstCode = append(m.FirstCode, vocab.Size()+len(special))
		for c := range size {
			special = append(special, fmt.Sprintf("<%c_%d>", 'a'+l, c))
		}
	}
	m.Vocabulary = vocab.Size() + len(special)
	data, err := vocab.TokenizerJSON(special)
	if err != nil {
		return nil, fmt.Errorf("arrays: %w", err)
	}
	return data, nil
}

func (x *Writer) describe() {
	p := &prompts
	x.meta.Prompts = *p
	if x.w != nil {
		x.meta.Marks = x.w.Marks()
	}
	x.meta.Tokens = map[string][]int32{
		"preamble": x.tok.Encode(p.Preamble), "lead_in": x.tok.Encode(p.LeadIn), "instruction": x.tok.Encode(p.Instruction),
		"pointwise": x.tok.Encode(p.Pointwise), "generate_instruction": x.tok.Encode(p.GenerateInstruction),
	}
}

// catalog returns the items with their identifiers.
func (x *Writer) catalog() []byte {
	var out []byte
	for i := range x.w.Items {
		m := x.w.ItemMessage(i)
		identifier := int32(x.meta.FirstIdentifier + i)
		m.Identifier = &identifier
		out = append(out, wire.EncodeItem(m)...)
	}
	return out
}

// items writes the tokens of the items as candidates, as the template of Prompts has them, and their
// attributes as numbers.
func (x *Writer) items() error {
	var tokens []uint16
	var attributes []uint16
	offsets := []int64{0}
	numbers := [3]map[string]uint16{{}, {}, {}}
	for i := range x.w.Items {
		it := &x.w.Items[i]
		tokens = appendTokens(tokens, x.tok.Encode("<"+it.ID+"> "+it.Text()+"\n"))
		offsets = append(offsets, int64(len(tokens)))
		for k, name := range []string{it.Category, it.Brand, it.Style} {
			if _, ok := numbers[k][name]; !ok {
				numbers[k][name] = uint16(len(numbers[k]))
			}
			attributes = append(attributes, numbers[k][name])
		}
	}
	return save(x.dir, "items", map[string]array{
		"tokens": flat(tokens), "offsets": flat(offsets), "attributes": {attributes, []int{len(x.w.Items), 3}},
	})
}

func appendTokens(dst []uint16, ids []int32) []uint16 {
	for _, id := range ids {
		dst = append(dst, uint16(id)) // the vocabulary is far below 65,536
	}
	return dst
}
