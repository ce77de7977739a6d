package tokenizer

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// Templates and special tokens are read in each form in which checkpoints have them.
func TestChatTemplate(t *testing.T) {
	for name, c := range map[string]struct {
		config, alone string
		want          string
		tokens        map[string]string
		wrong         bool
	}{
		"none":  {},
		"empty": {config: "{}"},
		"text": {config: `{"chat_template": "a", "bos_token": "<s>", "eos_token": null}`, want: "a",
			tokens: map[string]string{"bos_token": "<s>"}},
		"object of a token": {config: `{"chat_template": "a", "eos_token": {"content": "</s>", "lstrip": false}}`,
			want:   "a",
			tokens: map[string]string{"eos_token": "</s>"}},
		"list": {config: `{"chat_template": [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "c"}]}`,
			want: "c"},
		"file": {config: `{"chat_template": "a", "pad_token": "p"}`, alone: "d", want: "d",
			tokens: map[string]string{"pad_token": "p"}},
		"only a file":    {alone: "d", want: "d"},
		"no default":     {config: `{"chat_template": [{"name": "tool_use", "template": "b"}]}`, wrong: true},
		"no template":    {config: `{"chat_template": 5}`, wrong: true},
		"not JSON":       {config: `{`, wrong: true},
		"null":           {config: `{"chat_template": null}`},
		"another's keys": {config: `{"bos_token": 7}`},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"tokenizer_config.json": c.config, "chat_template.jinja": c.alone} {
			if text == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, tokens, err := ChatTemplate(dir)
		if (err != nil) != c.wrong || got != c.want || !c.wrong && !maps.Equal(tokens, c.tokens) {
			t.Errorf("%s: %q %v %v, want %q %v", name, got, tokens, err, c.want, c.tokens)
		}
	}
}
