package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Values of another shape than a key has are refused, with what was given.
func TestShapes(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"workers: many", `workers: want a whole number, got "many"`},
		{"workers: 1.5", "workers: want a whole number, got the number 1.5"},
		{"workers: [1]", "workers: want a whole number, got a list"},
		{"workers: true", "workers: want a whole number, got the truth value true"},
		{"models: [{path: x, blend: {auto: 1}}]", "models[0].blend.auto: want true or false, got the number 1"},
		{"models: [{path: x, blend: {auto: {}}}]", "models[0].blend.auto: want true or false, got a mapping"},
		{"models: [{path: x, blend: {items: much}}]", `models[0].blend.items: want a number, got "much"`},
		{"models: [{path: x, blend: {items: .nan}}]", "models[0].blend.items: want a number, got the number .nan"},
		{"models: [{path: x, blend: {items: [1]}}]", "models[0].blend.items: want a number, got a list"},
		{"models: [{path: x, blend: 1}]", "models[0].blend: want keys and values, got the number 1"},
		{"models: {path: x}", "models: want a list, got a mapping"},
		{"models: [x]", `models[0]: want keys and values, got "x"`},
		{"cache: {disk: [1]}", "cache.disk: want a size such as 8GiB, got a list"},
		{"models: [{path: x, prompt: {instruction: [a]}}]", "models[0].prompt.instruction: want a text in quotes"},
		{"models: [{path: x, prompt: {instruction: {tokens: a}}}]", "instruction: tokens: want a list of token numbers"},
		{"models: [{path: x, prompt: {instruction: {token: [1]}}}]", "models[0].prompt.instruction: want a text in quotes"},
		{"models: [{path: x, scoring: {\"no\": [1]}}]", "scoring.no: want a text in quotes or a token's number, got a list"},
		{"models: [{path: x, scoring: {\"yes\": -1}}]", "models[0].scoring.yes: -1 is not a token's number"},
		{"models: [{path: x, scoring: {\"yes\": 2147483648}}]", "scoring.yes: 2147483648 is not a token's number"},
		{"models: [{path: x, scoring: {\"yes\": true}}]", "or a token's number, got the truth value true"},
		{"workers: 1\nworkers: 2", "workers"},
		{"workers: 1\n---\nworkers: 2", "more than one YAML document"},
		{"- 1", "want keys and values, got a list"},
	} {
		text := c.text
		if !strings.Contains(text, "models") {
			text += "\nmodels: [{path: x}]\n"
		}
		if strings.HasPrefix(text, "- ") || strings.Contains(text, "---") {
			text = strings.TrimSuffix(text, "\nmodels: [{path: x}]\n")
		}
		if _, err := Load(Source{File: write(t, text)}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n%v\nwant %s", text, err, c.want)
		}
	}
}

// The largest token numbers, and texts that look like other things, are read, printed and read again as they are.
func TestPrintedValuesAreReadBack(t *testing.T) {
	text := `models:
  - path: x
    prompt: {instruction: {tokens: [0, 2147483647]}, item: "1.5"}
    scoring: {kind: pointwise, "yes": 2147483647, "no": "true"}
`
	first, err := Load(Source{File: write(t, text)})
	if err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	if err := first.Print(&printed); err != nil {
		t.Fatal(err)
	}
	second, err := Load(Source{File: write(t, printed.String())})
	if err != nil {
		t.Fatalf("%v\n%s", err, &printed)
	}
	for _, l := range []*Loaded{first, second} {
		m := &l.Models[0]
		if p := m.Prompt; !slices.Equal(p.Instruction.Tokens, []int32{0, 2147483647}) || p.Item != "1.5" {
			t.Errorf("prompt %+v", p)
		}
		if s := m.Scoring; s.Yes != (Token{ID: 2147483647, ByID: true}) || s.No != (Token{Text: "true"}) {
			t.Errorf("scoring %+v", s)
		}
	}
	if s := first.Models[0].Scoring; s.Yes.String() != "2147483647" || s.No.String() != `"true"` {
		t.Errorf("tokens are shown as %s and %s", s.Yes, s.No)
	}
}

// A file that cannot be read, or is too large to be a configuration, is an error that names it.
func TestFilesThatAreNoConfiguration(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large.yaml")
	if err := os.WriteFile(large, []byte("# "+strings.Repeat("x", maxFile)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{large, dir, filepath.Join(dir, "none.yaml")} {
		if _, err := Load(Source{File: name}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	just := filepath.Join(dir, "just.yaml")
	text := "models: [{path: x}]\n#"
	if err := os.WriteFile(just, []byte(text+strings.Repeat("x", maxFile-len(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Source{File: just}); err != nil {
		t.Errorf("a file of the largest size: %v", err)
	}
	wantFault(t, "limits.deadline_ms", "3600001", "limits.deadline_ms")
}

// Sizes are written as a person would write them, and read back as the same number of bytes.
func TestSizesReadBack(t *testing.T) {
	for text, bytes := range map[string]int64{
		"0": 0, "1": 1, "1023B": 1023, "1KiB": 1 << 10, "1.5MiB": 3 << 19, "8GiB": 8 << 30, "2TiB": 2 << 40,
	} {
		s, err := ParseSize(text)
		if err != nil || s.Bytes != bytes || s.Percent != 0 {
			t.Errorf("%s: %+v, %v, want %d bytes", text, s, err, bytes)
			continue
		}
		if again, err := ParseSize(s.String()); err != nil || again != s {
			t.Errorf("%s is written as %s and read back as %+v, %v", text, s, again, err)
		}
	}
	for _, text := range []string{"", "x", "-1", "1XB", "KiB", "1e300GiB", "NaN", "Inf", "9223372036854775808"} {
		if s, err := ParseSize(text); err == nil {
			t.Errorf("%q is taken for %+v", text, s)
		}
	}
}
