package prompt

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"grebe/prompt/jinja"
)

// ErrNoChat is returned for chats with a model that has no template for them.
var ErrNoChat = errors.New("the model takes no chats: it has neither a chat template nor prompt.chat_message")

// OptionError is the error of an option that a chat cannot have.
type OptionError struct{ name, problem string }

func (e *OptionError) Error() string { return e.name + " " + e.problem }

// Message is a message of a chat.
type Message struct{ Role, Text string }

// ChatTemplate is what a checkpoint says about chats.
type ChatTemplate struct {
	Source string            // in Jinja; "": none
	Tokens map[string]string // special tokens by their names, such as bos_token
}

// Check returns an error if the template is not supported, or does not show the text of a message.
func (c *ChatTemplate) Check() error {
	_, err := newChat(c)
	return err
}

// chat is a parsed ChatTemplate.
type chat struct {
	template *jinja.Template
	tokens   map[string]string
}

func newChat(c *ChatTemplate) (*chat, error) {
	t, err := jinja.Parse(c.Source)
	if err != nil {
		return nil, err
	}
	out := &chat{t, c.Tokens}
	const probe = "grebe"
	text, err := out.render([]Message{{"user", probe}}, nil)
	if err == nil && !strings.Contains(text, probe) {
		err = errors.New("it does not show the text of a user's message")
	}
	return out, err
}

const (
	mostChat  = 2 << 20 // bytes of a rendered chat
	leastWork = 4 << 20 // of a rendering
	workByte  = 64      // more for each byte of a message
)

// render returns the prompt of a chat. The variables are those of Hugging Face's transformers, except functions that
// read a clock.
func (c *chat) render(messages []Message, options map[string]any) (string, error) {
	vars, work := map[string]any{"add_generation_prompt": true}, leastWork
	for name, token := range c.tokens {
		vars[name] = token
	}
	all := make([]any, len(messages))
	for i, m := range messages {
		one := &jinja.Map{}
		one.Set("role", m.Role)
		one.Set("content", m.Text)
		all[i] = one
		work += workByte * len(m.Text)
	}
	vars["messages"] = all
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if _, ok := vars[name]; ok || name == "tools" || name == "documents" {
			return "", &OptionError{name, "is set by the server"}
		}
		vars[name] = options[name]
	}
	return c.template.Render(vars, jinja.Limits{Output: mostChat, Work: work})
}

// Chat returns the prompt of a chat: by prompt.chat_message, or else by the checkpoint's template. Only the latter
// has options.
func (b *Builder) Chat(messages []Message, options map[string]any) (string, error) {
	if b.chat != nil {
		return b.chat.render(messages, options)
	}
	if len(b.message) == 0 {
		return "", ErrNoChat
	}
	for name := range options {
		return "", &OptionError{name, "is not read: messages are joined by prompt.chat_message"}
	}
	var out strings.Builder
	for _, m := range messages {
		for _, p := range b.message {
			switch p.field {
			case "role":
				out.WriteString(m.Role)
			case "text":
				out.WriteString(m.Text)
			default:
				out.WriteString(p.literal)
			}
		}
	}
	return out.String() + b.chatEnd, nil
}
