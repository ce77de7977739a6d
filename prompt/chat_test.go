package prompt

import (
	"errors"
	"strings"
	"testing"
	"time"
)

const (
	chatml = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}" +
		"{% if add_generation_prompt %}<assistant>{% endif %}{% if think is defined %}{{ think }}{% endif %}"
	hello = "<s><system>be brief\n<user>hello\n<assistant>"
)

var greeting = []Message{{"system", "be brief"}, {"user", "hello"}}

// Chats are joined by the checkpoint's template, unless the configuration has one.
func TestChatTemplate(t *testing.T) {
	template := ChatTemplate{chatml, map[string]string{"bos_token": "<s>"}}
	b, err := New(Config{ChatTemplate: template}, nil, 10)
	if err != nil {
		t.Fatal(err)
	}
	for want, options := range map[string]map[string]any{
		hello:           nil,
		hello + "False": {"think": false},
		hello + "deep":  {"think": "deep"},
	} {
		if got, err := b.Chat(greeting, options); err != nil || got != want {
			t.Errorf("%v: %q, %v, want %q", options, got, err, want)
		}
	}
	var option *OptionError
	for _, name := range []string{"messages", "tools", "bos_token", "add_generation_prompt"} {
		if _, err := b.Chat(greeting, map[string]any{name: "x"}); !errors.As(err, &option) {
			t.Errorf("option %s: %v", name, err)
		}
	}
	b, err = New(Config{ChatTemplate: template, ChatMessage: "{role}: {text};", ChatEnd: "A:"}, nil, 10)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := b.Chat(greeting, nil); err != nil || got != "system: be brief;user: hello;A:" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := b.Chat(greeting, map[string]any{"think": true}); !errors.As(err, &option) {
		t.Errorf("an option without a template: %v", err)
	}
	if b, err = New(Config{}, nil, 10); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Chat(greeting, nil); !errors.Is(err, ErrNoChat) {
		t.Errorf("no template: %v", err)
	}
}

// A template that cannot be used is an error at the start.
func TestWrongChatTemplate(t *testing.T) {
	for source, want := range map[string]string{
		"a\n{% include 'b' %}":         `line 2: the statement "include" is not supported`,
		"{{ messages[0].text }}":       "does not show the text",
		"{{ strftime_now('%Y') }}":     "do not depend on the clock",
		"{{ raise_exception('no') }}":  "no",
		"{{ messages[0].content + 1}}": "is not supported",
	} {
		_, err := New(Config{ChatTemplate: ChatTemplate{Source: source}}, nil, 10)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "prompt.chat_message") {
			t.Errorf("%s: %v, want %s", source, err, want)
		}
	}
}

// A chat of the largest size is rendered in a short time.
func TestLargeChat(t *testing.T) {
	b, err := New(Config{ChatTemplate: ChatTemplate{Source: chatml}}, nil, 10)
	if err != nil {
		t.Fatal(err)
	}
	many := make([]Message, 1024)
	for i := range many {
		many[i] = Message{"user", strings.Repeat("x", 1023)}
	}
	begun := time.Now()
	if got, err := b.Chat(many, nil); err != nil || len(got) < 1<<20 {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	t.Log(time.Since(begun))
}
