package wire

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	grebev1 "grebe/api/grebe/v1"
)

// writer appends JSON. Numbers MUST be finite: whoever fills a response checks what a model returned.
type writer struct {
	buf   []byte
	comma bool // the next element of the open object or list comes after another one
}

func (w *writer) sep() {
	if w.comma {
		w.buf = append(w.buf, ',')
	}
	w.comma = true
}

// nested writes what body writes between open and end.
func (w *writer) nested(open, end byte, body func()) {
	w.buf, w.comma = append(w.buf, open), false
	body()
	w.buf, w.comma = append(w.buf, end), true
}

func (w *writer) key(name string) {
	w.sep()
	w.quote(name)
	w.buf = append(w.buf, ':')
}

const hexDigits = "0123456789abcdef"

// quote appends a string. Invalid UTF-8 becomes U+FFFD.
func (w *writer) quote(s string) {
	w.buf = append(w.buf, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.buf = append(w.buf, '\\', byte(r))
		case r == '\n':
			w.buf = append(w.buf, '\\', 'n')
		case r < ' ' || r == 0x7f:
			w.buf = append(w.buf, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15])
		default:
			w.buf = utf8.AppendRune(w.buf, r)
		}
	}
	w.buf = append(w.buf, '"')
}

func (w *writer) string(name, s string) {
	w.key(name)
	w.quote(s)
}

func (w *writer) int(name string, n int64) {
	w.key(name)
	w.buf = strconv.AppendInt(w.buf, n, 10)
}

func (w *writer) float(name string, f float64) {
	w.key(name)
	w.number(f, 64)
}

// number appends a number as short as it reads back the same; with an exponent only where plain
// digits would be long.
func (w *writer) number(f float64, bits int) {
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	w.buf = strconv.AppendFloat(w.buf, f, format, -1, bits)
}

func (w *writer) object(name string, body func()) {
	w.key(name)
	w.nested('{', '}', body)
}

func (w *writer) list(name string, n int, each func(int)) {
	w.key(name)
	w.nested('[', ']', func() {
		for i := range n {
			w.sep()
			each(i)
		}
	})
}

func encode(body func(*writer)) []byte {
	w := &writer{}
	w.nested('{', '}', func() { body(w) })
	return append(w.buf, '\n')
}

// EncodeError writes an error's body.
func EncodeError(code, message, field string) []byte {
	return encode(func(w *writer) {
		w.object("error", func() {
			w.string("code", code)
			w.string("message", message)
			if field != "" {
				w.string("field", field)
			}
		})
	})
}

// EncodeRank writes a response of /v1/rank.
func EncodeRank(m *grebev1.RankResponse) []byte {
	return encode(func(w *writer) {
		w.string("model", m.Model)
		w.string("request_id", m.RequestId)
		w.string("prefix", m.Prefix)
		if m.PrefixReason != "" {
			w.string("prefix_reason", m.PrefixReason)
		}
		w.string("node", m.Node)
		w.list("results", len(m.Results), func(i int) {
			r := m.Results[i]
			w.nested('{', '}', func() {
				w.int("index", int64(r.Index))
				w.string("id", r.Id)
				w.float("score", r.Score)
				w.key("logit")
				w.number(float64(r.Logit), 32)
				if len(r.Tasks) > 0 {
					w.object("tasks", func() {
						for _, name := range slices.Sorted(maps.Keys(r.Tasks)) {
							w.float(name, r.Tasks[name])
						}
					})
				}
			})
		})
		w.object("usage", func() { w.usage(m.Usage) })
		w.object("timing_ms", func() { w.timing(m.TimingMs) })
		w.explained(m.Parts, m.Route)
		w.notes(m.Notes)
	})
}

// explained writes the sources of a prompt and why a node answered, where they are known.
func (w *writer) explained(parts []*grebev1.Part, r *grebev1.Route) {
	if parts != nil {
		w.list("parts", len(parts), func(i int) { w.part(parts[i]) })
	}
	if r != nil {
		w.object("route", func() {
			w.float("predicted_ms", r.PredictedMs)
			w.string("reason", r.Reason)
			w.int("predicted_cached", int64(r.PredictedCached))
		})
	}
}

// notes writes why an answer is worse than it could be, where it is.
func (w *writer) notes(notes []string) {
	if len(notes) > 0 {
		w.strings("notes", notes)
	}
}

func (w *writer) part(p *grebev1.Part) {
	w.nested('{', '}', func() {
		w.string("kind", p.Kind)
		if p.Id != "" {
			w.string("id", p.Id)
		}
		w.int("tokens", int64(p.Tokens))
		w.int("cached", int64(p.Cached))
		if p.Source != "" {
			w.string("source", p.Source)
		}
	})
}

func (w *writer) timing(t *grebev1.Timing) {
	w.float("queue", t.GetQueue())
	w.float("fetch", t.GetFetch())
	w.float("compute", t.GetCompute())
	w.float("total", t.GetTotal())
}

func (w *writer) usage(u *grebev1.Usage) {
	w.int("prompt_tokens", int64(u.GetPromptTokens()))
	w.int("cached_tokens", int64(u.GetCachedTokens()))
	w.int("computed_tokens", int64(u.GetComputedTokens()))
	w.int("user_tokens", int64(u.GetUserTokens()))
	w.int("item_tokens", int64(u.GetItemTokens()))
	w.int("instruction_tokens", int64(u.GetInstructionTokens()))
	w.object("by_source", func() {
		s := u.GetBySource()
		w.int("device", int64(s.GetDevice()))
		w.int("host", int64(s.GetHost()))
		w.int("disk", int64(s.GetDisk()))
		w.int("peer", int64(s.GetPeer()))
		w.int("prototype", int64(s.GetPrototype()))
		w.int("recomputed", int64(s.GetRecomputed()))
	})
	if n := u.GetBeamTokens(); n > 0 {
		w.int("beam_tokens", int64(n))
	}
	if n := u.GetPartlyComputedTokens(); n > 0 {
		w.int("partly_computed_tokens", int64(n))
	}
	if n := u.GetBesideTokens(); n > 0 {
		w.int("beside_tokens", int64(n))
	}
	if note := u.GetNote(); note != "" {
		w.string("note", note)
	}
}

func (w *writer) compatibleUsage(u *grebev1.CompatibleUsage) {
	w.object("usage", func() {
		w.int("prompt_tokens", int64(u.GetPromptTokens()))
		w.int("completion_tokens", int64(u.GetCompletionTokens()))
		w.int("total_tokens", int64(u.GetTotalTokens()))
		w.int("cached_tokens", int64(u.GetCachedTokens()))
		w.object("prompt_tokens_details", func() {
			w.int(
				"cached_tokens", int64(u.GetPromptTokensDetails().GetCachedTokens()))
		})
	})
}

// EncodeScore writes a response of /v1/score.
func EncodeScore(m *grebev1.ScoreResponse) []byte {
	return encode(func(w *writer) {
		w.string("object", m.Object)
		w.string("model", m.Model)
		w.list("scores", len(m.Scores), func(i int) {
			w.nested('[', ']', func() {
				for _, f := range m.Scores[i].Values {
					w.sep()
					w.number(f, 64)
				}
			})
		})
		w.compatibleUsage(m.Usage)
	})
}

// EncodeRerank writes a response of /v1/rerank.
func EncodeRerank(m *grebev1.RerankResponse) []byte {
	return encode(func(w *writer) {
		w.string("object", m.Object)
		w.string("id", m.Id)
		w.string("model", m.Model)
		w.list("results", len(m.Results), func(i int) {
			r := m.Results[i]
			w.nested('{', '}', func() {
				w.int("index", int64(r.Index))
				w.float("relevance_score", r.RelevanceScore)
				if r.Document != nil {
					w.object("document", func() { w.string("text", *r.Document) })
				}
			})
		})
		w.compatibleUsage(m.Usage)
	})
}

// EncodeRerankCohere writes a response of /v2/rerank, as Cohere's second version of the API has it.
func EncodeRerankCohere(m *grebev1.RerankResponse) []byte {
	return encode(func(w *writer) {
		w.string("id", m.Id)
		w.list("results", len(m.Results), func(i int) {
			w.nested('{', '}', func() {
				w.int("index", int64(m.Results[i].Index))
				w.float("relevance_score", m.Results[i].RelevanceScore)
			})
		})
		w.object("meta", func() { w.object("api_version", func() { w.string("version", "2") }) })
	})
}

// EncodeRerankTEI writes a response of /rerank, as TEI (Text Embeddings Inference) has it: a bare list.
func EncodeRerankTEI(m *grebev1.RerankResponse) []byte {
	w := &writer{}
	w.nested('[', ']', func() {
		for _, r := range m.Results {
			w.sep()
			w.nested('{', '}', func() {
				w.int("index", int64(r.Index))
				w.float("score", r.RelevanceScore)
				if r.Document != nil {
					w.string("text", *r.Document)
				}
			})
		}
	})
	return append(w.buf, '\n')
}

// PairScores are the scores of Pairs, in their order.
type PairScores struct {
	ID, Model string
	Created   int64 // seconds since 1970
	Scores    []float64
	Usage     *grebev1.CompatibleUsage
}

// EncodePairs writes a response of /score in vLLM's shape.
func EncodePairs(m *PairScores) []byte {
	return encode(func(w *writer) {
		w.string("id", m.ID)
		w.string("object", "list")
		w.int("created", m.Created)
		w.string("model", m.Model)
		w.list("data", len(m.Scores), func(i int) {
			w.nested('{', '}', func() {
				w.int("index", int64(i))
				w.string("object", "score")
				w.float("score", m.Scores[i])
			})
		})
		w.compatibleUsage(m.Usage)
	})
}

// EncodeItem writes an item. Fields without a value are left out.
func EncodeItem(m *grebev1.Item) []byte { return EncodePutItem(m, nil) }

// EncodePutItem writes the response to PUT /v1/items/{id}: the item, and warnings if there are any.
func EncodePutItem(m *grebev1.Item, warnings []string) []byte {
	return encode(func(w *writer) {
		w.string("id", m.Id)
		w.text(m.Text)
		w.ints("tokens", m.Tokens)
		if m.Identifier != nil {
			w.int("identifier", int64(*m.Identifier))
		}
		w.ints("codes", m.Codes)
		if len(m.Attributes) > 0 {
			w.object("attributes", func() {
				for _, name := range slices.Sorted(maps.Keys(m.Attributes)) {
					w.strings(name, m.Attributes[name].GetValues())
				}
			})
		}
		if len(warnings) > 0 {
			w.strings("warnings", warnings)
		}
	})
}

// EncodeUser writes a user. Fields without a value are left out.
func EncodeUser(m *grebev1.User) []byte {
	return encode(func(w *writer) {
		w.string("id", m.Id)
		if m.History != nil {
			w.strings("history", m.History)
		}
		w.text(m.Text)
		w.ints("tokens", m.Tokens)
		if m.Events == nil {
			return
		}
		w.list("events", len(m.Events), func(i int) {
			w.nested('{', '}', func() { w.event(m.Events[i]) })
		})
	})
}

// event writes the fields of an event.
func (w *writer) event(e *grebev1.Event) {
	if e.Id != "" {
		w.string("id", e.Id)
	}
	w.string("item", e.Item)
	w.int("time", e.Time)
	w.int("action", int64(e.Action))
	w.object("features", func() {
		for _, name := range slices.Sorted(maps.Keys(e.Features)) {
			w.float(name, e.Features[name])
		}
	})
}

func (w *writer) text(s *string) {
	if s != nil {
		w.string("text", *s)
	}
}

func (w *writer) ints(name string, ids []int32) {
	if ids != nil {
		w.list(name, len(ids), func(i int) { w.buf = strconv.AppendInt(w.buf, int64(ids[i]), 10) })
	}
}

func (w *writer) strings(name string, ss []string) {
	w.list(name, len(ss), func(i int) { w.quote(ss[i]) })
}
