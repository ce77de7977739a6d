package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ChatTemplate reads the chat template of a checkpoint and its special tokens by their names, such as bos_token. The
// template is in chat_template.jinja or in tokenizer_config.json; it is empty if the checkpoint has none.
func ChatTemplate(dir string) (source string, tokens map[string]string, err error) {
	file := filepath.Join(dir, "tokenizer_config.json")
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, err
	}
	var fields map[string]json.RawMessage
	if err == nil {
		if err := json.Unmarshal(data, &fields); err != nil {
			return "", nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	tokens = map[string]string{}
	for _, name := range []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
		"mask_token"} {
		if t, ok := specialToken(fields[name]); ok {
			tokens[name] = t
		}
	}
	alone := filepath.Join(dir, "chat_template.jinja")
	if data, err := os.ReadFile(alone); err == nil {
		return string(data), tokens, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", nil, err
	}
	if source, err = chatSource(fields["chat_template"]); err != nil {
		return "", nil, fmt.Errorf("%s: chat_template: %w", file, err)
	}
	return source, tokens, nil
}

// specialToken reads a token: a text, or an object with its content.
func specialToken(raw json.RawMessage) (string, bool) {
	var text *string
	if json.Unmarshal(raw, &text) == nil && text != nil {
		return *text, true
	}
	var object struct{ Content *string }
	if json.Unmarshal(raw, &object) == nil && object.Content != nil {
		return *object.Content, true
	}
	return "", false
}

// chatSource reads a template: a text, or a list of templates with names, of which one is the default.
func chatSource(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &named); err != nil {
		return "", errors.New("want a text or a list of templates with names")
	}
	for _, t := range named {
		if t.Name == "default" {
			return t.Template, nil
		}
	}
	return "", errors.New(`none of the templates has the name "default"`)
}
