package wire

import (
	"math"
	"strconv"

	grebev1 "grebe/api/grebe/v1"
)

// Completion is a request for completions, in the form of OpenAI's API. Zero values mean that the field is absent.
type Completion struct {
	Model    string
	Prompt   *grebev1.Input
	Messages []Message // of a chat, instead of Prompt
	// ChatOptions are variables of the chat template: nil, booleans, int64, float64 and texts.
	ChatOptions map[string]any
	N           int // choices
	BestOf      int // beams
	MaxTokens   int
	Temperature float64
	Seed        *uint64
	DeadlineMs  int32

	narrows string // a field that changes how paths are sampled, and nothing else
}

// Message is a message of a chat.
type Message struct{ Role, Text string }

// MaxMessages bounds the messages of a chat.
const MaxMessages = 1024

// Completed is the answer to a Completion.
type Completed struct {
	ID, Model string
	Created   int64 // seconds since 1970
	Choices   []Choice
	Seed      *uint64 // of a sampled answer
	Notes     []string
	Usage     *grebev1.CompatibleUsage
}

// Choice is a path of the catalog.
type Choice struct {
	Text  string
	Item  string // the first with these codes
	Codes []int32
	Score float64
}

// DecodeCompletion reads a request of /v1/completions. Fields that would change the answer and that the server does not
// have are errors, unless they have the value that changes nothing.
func DecodeCompletion(in []byte) (*Completion, error) {
	m := &Completion{}
	err := decode(in, true, func(d *decoder) {
		d.object(func(key string) {
			if key == "prompt" {
				m.Prompt = d.prompt()
			} else if !d.completion(m, key) {
				d.unsupported(key)
			}
		})
	})
	return m, m.check(err)
}

// DecodeChat reads a request of /v1/chat/completions.
func DecodeChat(in []byte) (*Completion, error) {
	m := &Completion{}
	err := decode(in, true, func(d *decoder) {
		d.object(func(key string) {
			switch {
			case key == "messages":
				m.Messages = []Message{}
				d.list(MaxMessages, func() { m.Messages = append(m.Messages, d.message()) })
			case key == "chat_template_kwargs":
				m.ChatOptions = map[string]any{}
				d.object(func(key string) { m.ChatOptions[key] = d.plain() })
			case !d.completion(m, key):
				d.unsupported(key)
			}
		})
		if d.err == nil && len(m.Messages) == 0 {
			d.err = &Error{Field: "messages", Problem: "is missing"}
		}
	})
	return m, m.check(err)
}

// message reads a message. Its content is a text, or a list of parts that are texts.
func (d *decoder) message() (m Message) {
	has := false
	d.object(func(key string) {
		switch key {
		case "role":
			if m.Role = d.string(); d.err == nil && m.Role != "system" && m.Role != "user" && m.Role != "assistant" {
				d.fail("want system, user or assistant")
			}
		case "content":
			has = true
			if d.peek() == '"' {
				m.Text = d.string()
				return
			}
			d.list(MaxMessages, func() { m.Text += d.document() })
		default:
			d.unsupported(key)
		}
	})
	if d.err == nil && (m.Role == "" || !has) {
		d.fail("want a role and a content")
	}
	return m
}

// plain reads a value that has no parts.
func (d *decoder) plain() any {
	switch c := d.peek(); {
	case c == '"':
		return d.string()
	case c == 't' || c == 'f':
		return d.bool()
	case d.literal("null"):
		return nil
	case c == '-' || c >= '0' && c <= '9':
		text := d.number()
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
		f, err := strconv.ParseFloat(text, 64)
		if err != nil && d.err == nil {
			d.fail("the number is too large")
		}
		return f
	}
	d.expect("a text, a number, a boolean or null")
	return nil
}

// check returns err, or an error if a field would change how paths are sampled.
func (m *Completion) check(err error) error {
	if err == nil && m.Temperature > 0 && m.narrows != "" {
		return &Error{Field: m.narrows, Problem: "is not supported with a temperature: all paths of the catalog may be drawn"}
	}
	return err
}

// completion reads a field that requests for completions have in common. It returns false if it is none of them.
func (d *decoder) completion(m *Completion, key string) bool {
	switch key {
	case "model":
		m.Model = d.string()
	case "n":
		m.N = int(d.integer(1, MaxResults))
	case "best_of":
		m.BestOf = int(d.integer(1, MaxBeamWidth))
	case "max_tokens", "max_completion_tokens":
		m.MaxTokens = int(d.integer(1, math.MaxInt32))
	case "temperature":
		m.Temperature = d.float()
	case "seed":
		m.Seed = new(uint64(d.integer(0, MaxSeed)))
	case "deadline_ms":
		m.DeadlineMs = d.count()
	case "top_p":
		m.narrow(key, d.float() != 1)
	case "min_p":
		m.narrow(key, d.float() != 0)
	case "top_k":
		m.narrow(key, d.integer(math.MinInt32, math.MaxInt32) > 0)
	default:
		return false
	}
	return true
}

func (m *Completion) narrow(key string, does bool) {
	if does {
		m.narrows = key
	}
}

// prompt reads a text or tokens, also as the only element of a list.
func (d *decoder) prompt() *grebev1.Input {
	if d.peek() != '[' {
		return d.input()
	}
	start := d.pos
	d.take('[')
	if c := d.peek(); c != '"' && c != '[' {
		d.pos = start
		return d.input()
	}
	d.pos = start
	var out *grebev1.Input
	d.list(math.MaxInt, func() {
		if out != nil {
			d.fail("want one prompt for each request")
			return
		}
		out = d.input()
	})
	return out
}

// unsupported passes over a field, or refuses it if it would change the answer.
func (d *decoder) unsupported(key string) {
	refuse := func(changes bool) {
		if changes {
			d.fail("is not supported: choices are whole paths of the catalog")
		}
	}
	switch key {
	case "stream", "echo", "logprobs", "continue_final_message":
		if c := d.peek(); c == 't' || c == 'f' {
			refuse(d.bool())
		} else {
			d.skip()
			refuse(true)
		}
	case "add_generation_prompt":
		refuse(!d.bool())
	case "tools", "functions", "logit_bias", "suffix", "documents", "chat_template":
		from := d.pos
		d.skip()
		text := string(d.in[from:d.pos])
		refuse(text != "[]" && text != "{}" && text != `""` && text != "null")
	case "frequency_penalty", "presence_penalty":
		refuse(d.float() != 0)
	case "repetition_penalty":
		refuse(d.float() != 1)
	case "response_format":
		d.object(func(key string) {
			if key == "type" {
				refuse(d.string() != "text")
				return
			}
			d.skip()
		})
	default:
		d.skip()
	}
}

// EncodeCompletion writes a response of /v1/completions.
func EncodeCompletion(m *Completed) []byte {
	return m.encode("cmpl-", "text_completion", func(w *writer, text string) {
		w.string("text", text)
	})
}

// EncodeChat writes a response of /v1/chat/completions.
func EncodeChat(m *Completed) []byte {
	return m.encode("chatcmpl-", "chat.completion", func(w *writer, text string) {
		w.object("message", func() {
			w.string("role", "assistant")
			w.string("content", text)
		})
	})
}

func (m *Completed) encode(prefix, object string, content func(w *writer, text string)) []byte {
	return encode(func(w *writer) {
		w.string("id", prefix+m.ID)
		w.string("object", object)
		w.int("created", m.Created)
		w.string("model", m.Model)
		w.list("choices", len(m.Choices), func(i int) {
			c := &m.Choices[i]
			w.nested('{', '}', func() {
				w.int("index", int64(i))
				content(w, c.Text)
				w.null("logprobs")
				w.string("finish_reason", "stop")
				w.object("sglext", func() { w.float("sequence_score", c.Score) })
				w.string("item", c.Item)
				w.ints("codes", c.Codes)
			})
		})
		if m.Seed != nil {
			w.int("seed", int64(*m.Seed))
		}
		w.notes(m.Notes)
		w.compatibleUsage(m.Usage)
	})
}

func (w *writer) null(name string) {
	w.key(name)
	w.buf = append(w.buf, "null"...)
}

// EncodeCompletionError writes an error in the form of OpenAI's API. kind is its type.
func EncodeCompletionError(kind, code, message, field string) []byte {
	return encode(func(w *writer) {
		w.object("error", func() {
			w.string("message", message)
			w.string("type", kind)
			if field == "" {
				w.null("param")
			} else {
				w.string("param", field)
			}
			w.string("code", code)
		})
	})
}
