package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestAgreesWithLibrary compares with ids that the `tokenizers` library (0.23.2, without
// special tokens added) gave for the tokenizers that smallTokenizer writes.
func TestAgreesWithLibrary(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "library.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases map[string][]struct {
		Text string
		IDs  []int32
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]smallOptions{
		"qwen":  {split: patterns["qwen"], nfc: true, added: someAdded},
		"llama": {split: patterns["llama"], ignoreMerges: true, mergeLines: true, added: someAdded},
		"gpt2":  {split: patterns["gpt2"], added: someAdded},
	} {
		if len(cases[name]) < 100 {
			t.Errorf("%s: %d cases, want at least 100", name, len(cases[name]))
		}
		tok := mustParse(t, smallTokenizer(o))
		for _, c := range cases[name] {
			if got := tok.Encode(c.Text); !slices.Equal(got, c.IDs) {
				t.Errorf("%s: %q\n got %v\nwant %v", name, c.Text, got, c.IDs)
			}
		}
	}
}

// An added token may have id 0, before normalisation or after it.
func TestAddedTokenZero(t *testing.T) {
	for _, normalized := range []bool{false, true} {
		tok := mustParse(t, smallTokenizer(smallOptions{split: patterns["qwen"], nfc: true,
			added: []map[string]any{{"content": first(t), "normalized": normalized}}}))
		id, ok := tok.TokenID(first(t))
		if !ok || id != 0 {
			t.Fatalf("%q is token %d, %v, want 0", first(t), id, ok)
		}
		text := "the" + first(t) + "cat"
		if got := tok.AppendEncode(nil, text); !slices.Contains(got, 0) {
			t.Errorf("normalized %v: %q is %v, want token 0 in it", normalized, text, got)
		}
	}
}

// first returns the text of token 0 of the small vocabulary.
func first(t *testing.T) string {
	t.Helper()
	for text, id := range trainSmall().vocab {
		if id == 0 {
			return text
		}
	}
	t.Fatal("no token 0")
	return ""
}

func TestAddedTokens(t *testing.T) {
	tok := mustParse(t, smallTokenizer(smallOptions{split: patterns["qwen"], nfc: true, added: someAdded}))
	for text, want := range map[string][]string{
		"x<a_1>y":            {"x", "<a_1>", "y"},
		"<a_12><a_1>":        {"<a_12>", "<a_1>"},
		"<a_13":              {"<a_1", "3"},
		"x  <left>  y":       {"x", "<left>", " ", " ", "y"},
		"x  <right>  y":      {"x", "  ", "<right>", "y"},
		"x \n<both>\u00a0 y": {"x", "<both>", "y"},
		"a cat, cats":        {"a", " ", "cat", ",", " cats"},
		"catalog":            {"catalog"},
		"cafe\u0301":         {"caf\u00e9"},
		"e\u0301<|end|>":     {"\u00e9", "<|end|>"},
		"<|end|><|end|>":     {"<|end|>", "<|end|>"},
		"<|en":               {"<", "|", "en"},
	} {
		var got []string
		for _, id := range tok.Encode(text) {
			s, ok := tok.TokenText(id)
			if !ok {
				t.Fatalf("%q: id %d has no text", text, id)
			}
			got = append(got, s)
			if back, ok := tok.TokenID(s); !ok || back != id {
				t.Errorf("TokenID(%q) = %d, %v, want %d", s, back, ok, id)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q\n got %q\nwant %q", text, got, want)
		}
	}
}

// edit returns a small tokenizer.json with one field changed.
func edit(t testing.TB, path string, value any) []byte {
	t.Helper()
	var f map[string]any
	if err := json.Unmarshal(smallTokenizer(smallOptions{split: patterns["llama"], added: someAdded}), &f); err != nil {
		t.Fatal(err)
	}
	at := any(f)
	keys := strings.Split(path, ".")
	for _, k := range keys[:len(keys)-1] {
		if m, ok := at.(map[string]any); ok {
			at = m[k]
			continue
		}
		at = at.([]any)[k[0]-'0']
	}
	at.(map[string]any)[keys[len(keys)-1]] = value
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParseRefuses(t *testing.T) {
	split, level := "pre_tokenizer.pretokenizers.0.", "pre_tokenizer.pretokenizers.1."
	for _, c := range []struct {
		path  string
		value any
		want  string
	}{
		{"version", "2.0", `version "2.0"`},
		{"model", nil, "no model"},
		{"model.type", "Unigram", `"Unigram"`},
		{"model.dropout", 0.1, "dropout"},
		{"model.continuing_subword_prefix", "##", `"##"`},
		{"model.end_of_word_suffix", "</w>", `"</w>"`},
		{"model.byte_fallback", true, "byte_fallback"},
		{"model.vocab", nil, "no vocab"},
		{"model.vocab", map[string]any{"a": 0}, "no token for byte"},
		{"model.vocab.a", 1 << 30, "out of proportion"},
		{"model.vocab.a", -1, "out of proportion"},
		{"model.vocab.a", 98, "both have id 98"},
		{"model.vocab.a", 1.5, "not a tokenizer.json"},
		{"model.vocab.a", 1 << 40, "not a tokenizer.json"},
		{"model.merges", nil, "no merges"},
		{"model.merges", []any{"a b c"}, "not two tokens"},
		{"model.merges", []any{"ab"}, "not two tokens"},
		{"model.merges", []any{[]any{"a"}}, "1 parts"},
		{"model.merges", []any{[]any{"q", "q"}}, "not in vocab"},
		{"model.merges", []any{[]any{"a", "b"}, "a b"}, "merges"},
		{"model.merges", 3, "merges"},
		{"normalizer", map[string]any{"type": "NFKC"}, `"NFKC"`},
		{"normalizer", map[string]any{"type": "Sequence", "normalizers": []any{map[string]any{"type": "Lowercase"}}},
			`"Lowercase"`},
		{"pre_tokenizer", nil, "no pre_tokenizer"},
		{"pre_tokenizer", map[string]any{"type": "Metaspace"}, `"Metaspace"`},
		{"pre_tokenizer", map[string]any{"type": "Sequence", "pretokenizers": []any{nil}}, "null part"},
		{split + "pattern", map[string]any{"Regex": `\p{L}+`}, `\\p{L}+`},
		{split + "pattern", map[string]any{"String": " "}, "Regex"},
		{split + "behavior", "Removed", `"Removed"`},
		{split + "invert", true, "invert"},
		{level + "add_prefix_space", true, "add_prefix_space"},
		{level + "use_regex", true, "use_regex"},
		{"decoder", map[string]any{"type": "Metaspace"}, `"Metaspace"`},
		{"added_tokens.0.id", 7, "has id 7"},
		{"added_tokens.0.id", nil, "no id"},
		{"added_tokens.0.content", nil, "no content"},
		{"added_tokens.0.content", strings.Repeat("x", 600), "600 bytes"},
		{"added_tokens.0.content", "<a_1>", "twice"},
	} {
		_, err := Parse(edit(t, c.path, c.value))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s = %v: error %v, want one that says %q", c.path, c.value, err, c.want)
		}
	}
}

func TestParseAccepts(t *testing.T) {
	for path, value := range map[string]any{
		"added_tokens": nil, "version": nil, "decoder": nil, "unknown": map[string]any{"x": 1}, "model.unknown": []any{1},
		"model.merges": []any{}, "post_processor": map[string]any{"type": "TemplateProcessing"},
		"normalizer": map[string]any{"type": "NFC"}, "model.dropout": 0.0, "model.unk_token": "a", "model.type": "BPE",
	} {
		tok, err := Parse(edit(t, path, value))
		if err != nil {
			t.Errorf("%s = %v: %v", path, value, err)
			continue
		}
		if got := tok.Decode(tok.Encode("the café 123")); got != "the café 123" {
			t.Errorf("%s = %v: came back as %q", path, value, got)
		}
	}
}

func TestParseTruncated(t *testing.T) {
	data := smallTokenizer(smallOptions{split: patterns["qwen"], added: someAdded})
	for n := 0; n < len(data); n += 97 {
		if _, err := Parse(data[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are accepted", n, len(data))
		}
	}
	if _, err := Parse([]byte(strings.Repeat(`{"normalizer":`, 100000))); err == nil {
		t.Error("deep nesting is accepted")
	}
	if _, err := Load(filepath.Join(t.TempDir(), "absent.json")); err == nil {
		t.Error("an absent file is loaded")
	}
}

// TestHostileAddedTokens has tokens that begin everywhere and are stripped on both sides.
func TestHostileAddedTokens(t *testing.T) {
	tok := mustParse(t, smallTokenizer(smallOptions{split: patterns["qwen"], added: []map[string]any{
		{"content": " ", "lstrip": true, "rstrip": true}, {"content": strings.Repeat("q", 500) + "x"},
	}}))
	tok.Encode(strings.Repeat(" ", 1<<18))
	text := strings.Repeat("q", 1<<14)
	if got := tok.Decode(tok.Encode(text)); got != text {
		t.Error("a text of near misses does not come back")
	}
}

func FuzzParse(f *testing.F) {
	for _, o := range []smallOptions{
		{split: patterns["qwen"], nfc: true, added: someAdded},
		{split: patterns["llama"], ignoreMerges: true, mergeLines: true},
		{split: patterns["gpt2"]},
	} {
		data := smallTokenizer(o)
		f.Add(data)
		f.Add(data[:len(data)/2])
	}
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a a"]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Parse(data)
		if err != nil {
			return
		}
		tok.Decode(tok.Encode("the cat's <a_1> 123  \n café \xff"))
		for id := range int32(tok.VocabSize()) {
			tok.TokenText(id)
		}
	})
}

func FuzzEncode(f *testing.F) {
	for _, s := range []string{
		"", "Hello world's 'LL 123456", " \n\r\n  x", "é e\u0301 \u0085\u00a0", "我们的2024🙂\n", "'ſ'S \u212a",
		"\xff\xe4\xbd", "a" + strings.Repeat("\u0301\u0323", 20),
	} {
		f.Add(s)
	}
	type pair struct {
		tok *Tokenizer
		ref *reference
	}
	pairs := map[string]pair{}
	for name, p := range patterns {
		data := smallTokenizer(smallOptions{split: p, ignoreMerges: name == "llama"})
		ref := newReference(f, data)
		ref.split = p
		pairs[name] = pair{mustParse(f, data), ref}
	}
	normal := mustParse(f, smallTokenizer(smallOptions{split: patterns["qwen"], nfc: true, added: someAdded}))
	f.Fuzz(func(t *testing.T, text string) {
		for name, p := range pairs {
			got := p.tok.Encode(text)
			if back := p.tok.DecodeBytes(got); string(back) != text {
				t.Fatalf("%s: %q came back as %q", name, text, back)
			}
			if utf8.ValidString(text) && len(text) < 500 {
				clear(p.ref.cached)
				if want := p.ref.encode(text); !slices.Equal(got, want) {
					t.Fatalf("%s: %q\n got %v\nwant %v", name, text, got, want)
				}
			}
		}
		if !utf8.ValidString(text) {
			return
		}
		once := normal.Decode(normal.Encode(text))
		if strings.Contains(text, " ") || strings.Contains(text, "<") {
			return // added tokens strip spaces
		}
		if want := composeNFC(text); once != want {
			t.Fatalf("%q came back as %q, want %q", text, once, want)
		}
	})
}
