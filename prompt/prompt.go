// Package prompt turns what a request names — a user, candidates — into tokens, and tokens into a
// plan, by the templates of a model's configuration.
//
// Segments are tokenised one by one and no special token is added, so that an item has the same
// tokens, and so the same cached KV, wherever it stands. The package is pure; a Builder is safe for
// concurrent use.
package prompt

import (
	"errors"
	"fmt"
	"strings"
)

// Text is a fixed part of a prompt: a text, or the tokens themselves.
type Text struct {
	Text   string
	Tokens []int32 // used when not nil
}

// Config holds a model's templates. The zero value of a field means what its comment says.
type Config struct {
	Preamble            Text   // first in every prompt: BOS, system text, chat header; none
	LeadIn              Text   // before the items of an item-first prompt; none
	Instruction         Text   // the question of a ranking; none
	GenerateInstruction Text   // the question of a generation; none
	User                string // template of the user segment: {text}, {history}; "{text}"
	Query               string // template of a query to rerank documents by: {text}; User, where it has {text}
	Completion          string // template of a prompt that a client gives whole: {text}; "{text}"
	ChatMessage         string // template of a message of a chat: {role}, {text}; none: ChatTemplate
	ChatEnd             string // after the messages; none
	ChatTemplate        ChatTemplate
	Item                string // template of an item: {text}, {id}, {attributes.NAME}; "{text}"
	History             string // how {history} lists items: text, codes or identifier; text
	HistoryItem         string // template of an item that {history} lists as text, with Item's fields; "{text}"
	Separator           string // between listed items; "\n" is the configuration's default, not this one's
	Codes               Codes  // tokens of semantic IDs; none
}

// Codes says which tokens stand for the codes of semantic IDs, level by level: ranges of tokens, or
// texts looked up in the vocabulary.
type Codes struct {
	FirstToken []int32
	Size       []int32
	Pattern    []string // one per level, with one %d for the code
}

// Item is a candidate or a past item.
type Item struct {
	ID         string
	Text       string
	Tokens     []int32 // used instead of the template when not nil
	Identifier int32   // the token that stands for it; negative when it has none
	Codes      []int32
	Attributes map[string][]string
}

// User is whom a request is for.
type User struct {
	ID      string
	Text    string
	History []*Item // oldest first
	Tokens  []int32 // used instead of the template when not nil
}

// Tokenizer is what a Builder needs of model/tokenizer.
type Tokenizer interface {
	AppendEncode(dst []int32, text string) []int32
	TokenID(text string) (int32, bool)
}

// Builder builds the tokens and plans of one model.
type Builder struct {
	tok         Tokenizer // nil when the model has no tokenizer: everything must come as tokens
	vocab       int
	preamble    []int32
	leadIn      []int32
	instruction []int32
	generate    []int32
	user, item  template
	query       template // none: the model takes no queries
	completion  template
	message     template // of a chat; none: chat
	chat        *chat    // none: without message the model takes no chats
	chatEnd     string
	past        template // of an item in a history
	history     historyKind
	separator   string
	codes       Codes
}

// New checks the configuration against the tokenizer and the vocabulary. tok may be nil.
func New(cfg Config, tok Tokenizer, vocab int) (*Builder, error) {
	b := &Builder{tok: tok, vocab: vocab, separator: cfg.Separator}
	for _, f := range []struct {
		name string
		text Text
		dst  *[]int32
	}{
		{"preamble", cfg.Preamble, &b.preamble},
		{"lead_in", cfg.LeadIn, &b.leadIn},
		{"instruction", cfg.Instruction, &b.instruction},
		{"generate_instruction", cfg.GenerateInstruction, &b.generate},
	} {
		ids, err := b.fixed(f.text)
		if err != nil {
			return nil, fmt.Errorf("prompt.%s: %w", f.name, err)
		}
		*f.dst = ids
	}
	var err error
	if b.user, err = parse(orElse(cfg.User, "{text}"), "text", "history"); err != nil {
		return nil, fmt.Errorf("prompt.user: %w", err)
	}
	if b.query, err = parseQuery(cfg.Query, b.user); err != nil {
		return nil, err
	}
	if b.completion, err = parse(orElse(cfg.Completion, "{text}"), "text"); err == nil && !b.completion.has("text") {
		err = errors.New("{text} is missing: the prompt would not be read")
	}
	if err != nil {
		return nil, fmt.Errorf("prompt.completion: %w", err)
	}
	if b.message, err = parse(cfg.ChatMessage, "role", "text"); err == nil && cfg.ChatMessage != "" &&
		!b.message.has("text") {
		err = errors.New("{text} is missing: messages would not be read")
	}
	if err != nil {
		return nil, fmt.Errorf("prompt.chat_message: %w", err)
	}
	if b.chatEnd = cfg.ChatEnd; cfg.ChatEnd != "" && cfg.ChatMessage == "" {
		return nil, errors.New("prompt.chat_end needs prompt.chat_message")
	}
	if cfg.ChatMessage == "" && cfg.ChatTemplate.Source != "" {
		if b.chat, err = newChat(&cfg.ChatTemplate); err != nil {
			err = fmt.Errorf("the checkpoint's chat template is not supported: %w; set prompt.chat_message instead", err)
			return nil, err
		}
	}
	if b.item, err = parse(orElse(cfg.Item, "{text}"), "text", "id", "attributes."); err != nil {
		return nil, fmt.Errorf("prompt.item: %w", err)
	}
	if b.past, err = parse(orElse(cfg.HistoryItem, "{text}"), "text", "id", "attributes."); err != nil {
		return nil, fmt.Errorf("prompt.history_item: %w", err)
	}
	if b.history, err = parseHistory(orElse(cfg.History, "text")); err != nil {
		return nil, err
	}
	if err := cfg.Codes.validate(tok, vocab); err != nil {
		return nil, err
	}
	b.codes = cfg.Codes
	return b, nil
}

// parseQuery reads the template of queries. Without one, the user's is used if it shows texts.
func parseQuery(text string, user template) (template, error) {
	if text == "" {
		if user.has("text") {
			return user, nil
		}
		return nil, nil
	}
	t, err := parse(text, "text")
	if err == nil && !t.has("text") {
		err = errors.New("{text} is missing: the query would not be read")
	}
	if err != nil {
		return nil, fmt.Errorf("prompt.query: %w", err)
	}
	return t, nil
}

func orElse(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func (b *Builder) fixed(t Text) ([]int32, error) {
	if t.Tokens != nil {
		return t.Tokens, b.CheckTokens(t.Tokens)
	}
	if t.Text == "" {
		return nil, nil
	}
	if b.tok == nil {
		return nil, errNoTokenizer
	}
	return b.tok.AppendEncode(nil, t.Text), nil
}

var errNoTokenizer = fmt.Errorf("a text needs the checkpoint's tokenizer.json, which is missing: give tokens, " +
	"such as {tokens: [3]}")

// CheckTokens reports the first token outside the vocabulary.
func (b *Builder) CheckTokens(ids []int32) error {
	for i, id := range ids {
		if id < 0 || int(id) >= b.vocab {
			return fmt.Errorf("tokens[%d]: %d is outside the vocabulary of %d", i, id, b.vocab)
		}
	}
	return nil
}

// Encode returns the tokens of a plain text.
func (b *Builder) Encode(text string) ([]int32, error) {
	if text == "" {
		return nil, nil
	}
	if b.tok == nil {
		return nil, errNoTokenizer
	}
	return b.tok.AppendEncode(nil, text), nil
}

// ShowsText and ShowsHistory report whether the user segment shows a user's text, and their history.
func (b *Builder) ShowsText() bool    { return b.user.has("text") }
func (b *Builder) ShowsHistory() bool { return b.user.has("history") }

// errNoQuery says that a query would be dropped.
var errNoQuery = errors.New("the model's prompt.user has no {text}, so the query would not be read: set prompt.query")

// QueryTokens returns the tokens of a query, which stands where the user does.
func (b *Builder) QueryTokens(text string) ([]int32, error) {
	if b.query == nil {
		return nil, errNoQuery
	}
	return b.segment(b.query, &User{Text: text})
}

// UserTokens returns the tokens of the user segment.
func (b *Builder) UserTokens(u *User) ([]int32, error) {
	if u.Tokens != nil {
		return u.Tokens, b.CheckTokens(u.Tokens)
	}
	return b.segment(b.user, u)
}

// segment returns the tokens of a template of the user.
func (b *Builder) segment(t template, u *User) ([]int32, error) {
	w := writer{b: b}
	for _, p := range t {
		switch p.field {
		case "":
			w.text(p.literal)
		case "text":
			w.text(u.Text)
		case "history":
			n := 0
			for _, it := range u.History {
				if b.listed(&w, it, n > 0) {
					n++
				}
			}
		}
	}
	return w.done()
}

// listed writes one item of a history, behind a separator if others are before it. It returns false if it has nothing
// to write: see Unlisted.
func (b *Builder) listed(w *writer, it *Item, behind bool) bool {
	ids, ok := b.shown(it)
	if w.err != nil || !ok {
		return false
	}
	if behind {
		w.text(b.separator)
	}
	if b.history == historyText {
		b.writeItem(w, b.past, it)
	} else {
		w.tokens(ids)
	}
	return true
}

// shown returns the tokens by which {history} shows an item, if not by its text. It is false if there are none.
func (b *Builder) shown(it *Item) ([]int32, bool) {
	switch b.history {
	case historyCodes:
		ids, err := b.CodeTokens(it.Codes)
		return ids, err == nil
	case historyIdentifier:
		return []int32{it.Identifier}, it.Identifier >= 0 && int(it.Identifier) < b.vocab
	}
	return nil, true
}

// Lists reports whether {history} shows an item.
func (b *Builder) Lists(it *Item) bool {
	_, ok := b.shown(it)
	return ok
}

// Unlisted returns how many items of a user's history UserTokens leaves out, and what they lack: {history} shows codes
// or identifiers, and new items of a catalog often have none yet.
func (b *Builder) Unlisted(u *User) (n int, lack string) {
	switch {
	case u.Tokens != nil || !b.ShowsHistory() || b.history == historyText:
		return 0, ""
	case b.history == historyCodes:
		lack = "codes of this model"
	default:
		lack = "identifiers of this model"
	}
	for _, it := range u.History {
		if !b.Lists(it) {
			n++
		}
	}
	return n, lack
}

// ItemTokens returns the tokens of a candidate.
func (b *Builder) ItemTokens(it *Item) ([]int32, error) {
	if it.Tokens != nil {
		return it.Tokens, b.CheckTokens(it.Tokens)
	}
	w := writer{b: b}
	b.writeItem(&w, b.item, it)
	return w.done()
}

// writeItem writes an item by a template, or the tokens that it comes with.
func (b *Builder) writeItem(w *writer, by template, it *Item) {
	if it.Tokens != nil {
		if err := b.CheckTokens(it.Tokens); err != nil {
			w.fail(fmt.Errorf("item %q: %w", it.ID, err))
		}
		w.tokens(it.Tokens)
		return
	}
	for _, p := range by {
		switch {
		case p.field == "":
			w.text(p.literal)
		case p.field == "text":
			w.text(it.Text)
		case p.field == "id":
			w.text(it.ID)
		default:
			w.text(strings.Join(it.Attributes[strings.TrimPrefix(p.field, "attributes.")], ", "))
		}
	}
}

// maxSegment bounds the bytes of texts and the tokens of one segment, far beyond the positions of any model: a short
// history may name a long item many thousand times, and what it stands for would fill the memory before anyone counts
// positions.
const maxSegment = 16 << 20

// ErrTooLarge says that a user or an item is larger than any model takes.
var ErrTooLarge = errors.New("its texts are larger than 16 MiB together")

// writer joins texts and tokens: neighbouring texts are tokenised together, as one text.
type writer struct {
	b    *Builder
	buf  strings.Builder
	ids  []int32
	size int // bytes of texts and tokens so far
	err  error
}

// room reports whether so much more may be written.
func (w *writer) room(n int) bool {
	if w.size += n; w.size > maxSegment {
		w.fail(ErrTooLarge)
	}
	return w.err == nil
}

func (w *writer) text(s string) {
	if w.room(len(s)) {
		w.buf.WriteString(s)
	}
}

func (w *writer) tokens(ids []int32) {
	if !w.room(len(ids)) {
		return
	}
	w.flush()
	w.ids = append(w.ids, ids...)
}

func (w *writer) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

func (w *writer) flush() {
	if w.buf.Len() == 0 || w.err != nil {
		return
	}
	if w.b.tok == nil {
		w.fail(errNoTokenizer)
	} else {
		w.ids = w.b.tok.AppendEncode(w.ids, w.buf.String())
	}
	w.buf.Reset()
}

func (w *writer) done() ([]int32, error) {
	w.flush()
	return w.ids, w.err
}

// Preamble returns the tokens that begin every prompt. The caller MUST NOT change them.
func (b *Builder) Preamble() []int32 { return b.preamble }

// LeadIn returns the tokens before the items of an item-first prompt.
func (b *Builder) LeadIn() []int32 { return b.leadIn }

// Instruction returns the tokens of a ranking's question.
func (b *Builder) Instruction() []int32 { return b.instruction }
