package wire

import (
	"math"

	grebev1 "grebe/api/grebe/v1"
)

// DecodeScore reads a request of /v1/score, as SGLang takes it: items may be one text too.
func DecodeScore(in []byte) (*grebev1.ScoreRequest, error) {
	m := &grebev1.ScoreRequest{}
	err := decode(in, true, func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "model":
				m.Model = d.string()
			case "query":
				m.Query = d.input()
			case "items":
				m.Items = nil
				if d.peek() == '"' {
					m.Items = append(m.Items, d.input())
					return
				}
				d.list(MaxCandidates, func() { m.Items = append(m.Items, d.input()) })
			case "label_token_ids":
				m.LabelTokenIds = d.tokens()
			case "apply_softmax":
				m.ApplySoftmax = d.bool()
			case "item_first":
				m.ItemFirst = d.bool()
			default:
				d.unknown()
			}
		})
	})
	return m, err
}

// input reads a text or a list of tokens.
func (d *decoder) input() *grebev1.Input {
	switch d.peek() {
	case '"':
		s := d.string()
		return &grebev1.Input{Text: &s}
	case '[':
		return &grebev1.Input{Tokens: d.tokens()}
	}
	d.expect("a text or a list of tokens")
	return nil
}

// DecodeRerank reads a request of /v1/rerank, as Jina and Cohere take it: documents are texts or
// objects with a text.
func DecodeRerank(in []byte) (*grebev1.RerankRequest, error) {
	m := &grebev1.RerankRequest{}
	err := decode(in, true, func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "model":
				m.Model = d.string()
			case "query":
				m.Query = d.document()
			case "documents":
				m.Documents = nil
				d.list(MaxCandidates, func() { m.Documents = append(m.Documents, d.document()) })
			case "top_n":
				m.TopN = int32(d.integer(math.MinInt32, math.MaxInt32))
			case "return_documents":
				b := d.bool()
				m.ReturnDocuments = &b
			default:
				d.unknown()
			}
		})
	})
	return m, err
}

// document reads a text, or an object with a text.
func (d *decoder) document() string {
	switch d.peek() {
	case '"':
		return d.string()
	case '{':
		text, found := "", false
		d.object(func(key string) {
			if key != "text" {
				d.skip()
				return
			}
			text, found = d.string(), true
		})
		if !found {
			d.fail("has no text")
		}
		return text
	}
	d.expect("a text or an object with a text")
	return ""
}
