package wire

import (
	"math"

	grebev1 "grebe/api/grebe/v1"
)

// Pairs is a request of /score in vLLM's shape. One text of the first list may go with all of the second.
type Pairs struct {
	Model         string
	First, Second []string
}

// DecodeScore reads a request of /v1/score: in SGLang's shape (query, items), where items may be one text too, or in
// vLLM's (text_1, text_2). Exactly one of the results is not nil.
func DecodeScore(in []byte) (*grebev1.ScoreRequest, *Pairs, error) {
	m, p, paired := &grebev1.ScoreRequest{}, &Pairs{}, false
	err := decode(in, true, func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "text_1", "data_1":
				p.First, paired = d.oneOrMore(), true
			case "text_2", "data_2":
				p.Second, paired = d.oneOrMore(), true
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
	if paired {
		p.Model = m.Model
		return nil, p, err
	}
	return m, nil, err
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
// objects with a text. Texts reports whether it came in TEI's shape (texts, return_text), which has an answer of its
// own.
func DecodeRerank(in []byte) (m *grebev1.RerankRequest, texts bool, err error) {
	m = &grebev1.RerankRequest{}
	err = decode(in, true, func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "model":
				m.Model = d.string()
			case "query":
				m.Query = d.document()
			case "documents":
				m.Documents = d.documents()
			case "texts":
				m.Documents, texts = d.documents(), true
			case "top_n":
				m.TopN = int32(d.integer(math.MinInt32, math.MaxInt32))
			case "return_documents", "return_text":
				b := d.bool()
				m.ReturnDocuments = &b
			default:
				d.unknown()
			}
		})
	})
	if texts && m.ReturnDocuments == nil {
		m.ReturnDocuments = new(bool)
	}
	return m, texts, err
}

// oneOrMore reads a text or a list of documents.
func (d *decoder) oneOrMore() []string {
	if d.peek() == '"' {
		return []string{d.string()}
	}
	return d.documents()
}

func (d *decoder) documents() []string {
	var out []string
	d.list(MaxCandidates, func() { out = append(out, d.document()) })
	return out
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
