package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"grebe/internal/readfile"
)

// maxFileSize bounds a tokenizer.json. Real ones are below 40 MB.
const maxFileSize = 1 << 30

// Load reads the tokenizer.json at path.
func Load(path string) (*Tokenizer, error) {
	data, err := readfile.Regular(path, maxFileSize)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	t, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: read %s: %w", path, err)
	}
	return t, nil
}

// Parse reads the contents of a tokenizer.json. It keeps no reference to data.
func Parse(data []byte) (*Tokenizer, error) {
	t, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	return t, nil
}

// fileSpec is the part of a tokenizer.json that decides what text encodes to.
type fileSpec struct {
	Version      *string      `json:"version"`
	AddedTokens  []addedToken `json:"added_tokens"`
	Normalizer   *component   `json:"normalizer"`
	PreTokenizer *component   `json:"pre_tokenizer"`
	Decoder      *component   `json:"decoder"`
	Model        *modelSpec   `json:"model"`
}

// component is a normalizer, pre-tokenizer or decoder; Type says which fields count.
type component struct {
	Type           string       `json:"type"`
	Normalizers    []*component `json:"normalizers"`
	Pretokenizers  []*component `json:"pretokenizers"`
	Pattern        *pattern     `json:"pattern"`
	Behavior       string       `json:"behavior"`
	Invert         bool         `json:"invert"`
	AddPrefixSpace *bool        `json:"add_prefix_space"`
	UseRegex       *bool        `json:"use_regex"`
}

type pattern struct {
	Regex  *string `json:"Regex"`
	String *string `json:"String"`
}

type modelSpec struct {
	Type         string           `json:"type"`
	Dropout      *float64         `json:"dropout"`
	Prefix       *string          `json:"continuing_subword_prefix"`
	Suffix       *string          `json:"end_of_word_suffix"`
	ByteFallback bool             `json:"byte_fallback"`
	IgnoreMerges bool             `json:"ignore_merges"`
	Vocab        map[string]int32 `json:"vocab"`
	Merges       json.RawMessage  `json:"merges"`
}

func parse(data []byte) (*Tokenizer, error) {
	if len(data) > maxFileSize {
		return nil, fmt.Errorf("%d bytes, more than %d", len(data), maxFileSize)
	}
	if !utf8.Valid(data) {
		return nil, errors.New("not valid UTF-8")
	}
	var f fileSpec
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("not a tokenizer.json: %w", err)
	}
	if f.Version != nil && *f.Version != "1.0" {
		return nil, fmt.Errorf("version %q is not supported, only 1.0", *f.Version)
	}
	if f.Model == nil {
		return nil, errors.New("no model")
	}
	if err := f.Model.check(); err != nil {
		return nil, err
	}
	if err := checkDecoder(f.Decoder); err != nil {
		return nil, err
	}
	t := &Tokenizer{}
	t.scratch.New = func() any { return new(scratch) }
	var err error
	if t.nfc, err = wantsNFC(f.Normalizer, 0); err != nil {
		return nil, err
	}
	if t.split, err = parseSplitter(f.PreTokenizer); err != nil {
		return nil, err
	}
	if err := t.build(f.Model, f.AddedTokens); err != nil {
		return nil, err
	}
	return t, nil
}

// check refuses the models that are not byte-level BPE.
func (m *modelSpec) check() error {
	switch {
	case m.Type != "" && m.Type != "BPE":
		return fmt.Errorf("model type %q is not supported, only BPE", m.Type)
	case m.Dropout != nil && *m.Dropout != 0:
		return fmt.Errorf("model dropout %v is not supported", *m.Dropout)
	case m.Prefix != nil && *m.Prefix != "":
		return fmt.Errorf("model continuing_subword_prefix %q is not supported", *m.Prefix)
	case m.Suffix != nil && *m.Suffix != "":
		return fmt.Errorf("model end_of_word_suffix %q is not supported", *m.Suffix)
	case m.ByteFallback:
		return errors.New("model byte_fallback is not supported, only byte-level BPE")
	case len(m.Vocab) == 0:
		return errors.New("model has no vocab")
	case len(m.Merges) == 0 || bytes.Equal(m.Merges, []byte("null")):
		return errors.New("model has no merges")
	}
	return nil
}

func checkDecoder(c *component) error {
	if c == nil || c.Type == "ByteLevel" {
		return nil
	}
	return fmt.Errorf("decoder %q is not supported, only ByteLevel", c.Type)
}

// maxNesting bounds Sequences within Sequences.
const maxNesting = 8

// wantsNFC reports whether text is to be normalised to NFC.
func wantsNFC(c *component, depth int) (bool, error) {
	if c == nil {
		return false, nil
	}
	switch {
	case c.Type == "NFC":
		return true, nil
	case c.Type == "Sequence" && depth < maxNesting:
		nfc := false
		for _, part := range c.Normalizers {
			one, err := wantsNFC(part, depth+1)
			if err != nil {
				return false, err
			}
			nfc = nfc || one
		}
		return nfc, nil
	}
	return false, fmt.Errorf("normalizer %q is not supported, only NFC", c.Type)
}

// parseSplitter accepts ByteLevel with its own pattern, and Split by a known pattern
// followed by ByteLevel without.
func parseSplitter(c *component) (splitter, error) {
	if c == nil {
		return splitter{}, errors.New("no pre_tokenizer: only byte-level BPE is supported")
	}
	parts := []*component{c}
	if c.Type == "Sequence" {
		parts = c.Pretokenizers
	}
	var types []string
	for _, p := range parts {
		if p == nil {
			return splitter{}, errors.New("pre_tokenizer has a null part")
		}
		types = append(types, p.Type)
	}
	switch strings.Join(types, "+") {
	case "ByteLevel":
		return splitter{gpt2: true}, parts[0].checkByteLevel(true)
	case "Split+ByteLevel":
		s, err := parts[0].parseSplit()
		if err != nil {
			return s, err
		}
		return s, parts[1].checkByteLevel(false)
	}
	return splitter{}, fmt.Errorf("pre_tokenizer %.200q is not supported, only ByteLevel and Split+ByteLevel",
		strings.Join(types, "+"))
}

func (c *component) checkByteLevel(useRegex bool) error {
	if c.AddPrefixSpace == nil || *c.AddPrefixSpace {
		return errors.New("pre_tokenizer ByteLevel without add_prefix_space false is not supported")
	}
	if got := c.UseRegex == nil || *c.UseRegex; got != useRegex {
		return fmt.Errorf("pre_tokenizer ByteLevel with use_regex %v is not supported here", got)
	}
	return nil
}

func (c *component) parseSplit() (splitter, error) {
	switch {
	case c.Behavior != "Isolated":
		return splitter{}, fmt.Errorf("pre_tokenizer Split behavior %q is not supported, only Isolated", c.Behavior)
	case c.Invert:
		return splitter{}, errors.New("pre_tokenizer Split with invert is not supported")
	case c.Pattern == nil || c.Pattern.Regex == nil || c.Pattern.String != nil:
		return splitter{}, errors.New("pre_tokenizer Split without a Regex pattern is not supported")
	}
	s, ok := splitterFor(*c.Pattern.Regex)
	if !ok {
		return s, fmt.Errorf("pre_tokenizer Split pattern %.400q is not supported, only those of Qwen2, Llama-3 and GPT-2",
			*c.Pattern.Regex)
	}
	return s, nil
}

// parseMerges reads merges written as "a b" or as ["a", "b"].
func parseMerges(raw json.RawMessage) ([][2]string, error) {
	inner := bytes.TrimLeft(bytes.TrimPrefix(raw, []byte("[")), " \t\r\n")
	if bytes.HasPrefix(inner, []byte(`"`)) {
		return parseMergeLines(raw)
	}
	var pairs [][]string
	if err := json.Unmarshal(raw, &pairs); err != nil {
		return nil, fmt.Errorf("model merges: %w", err)
	}
	merges := make([][2]string, len(pairs))
	for i, p := range pairs {
		if len(p) != 2 {
			return nil, fmt.Errorf("model merge %d has %d parts, not 2", i, len(p))
		}
		merges[i] = [2]string(p)
	}
	return merges, nil
}

func parseMergeLines(raw json.RawMessage) ([][2]string, error) {
	var lines []string
	if err := json.Unmarshal(raw, &lines); err != nil {
		return nil, fmt.Errorf("model merges: %w", err)
	}
	merges := make([][2]string, 0, len(lines))
	for i, line := range lines {
		if strings.HasPrefix(line, "#version") {
			continue
		}
		a, b, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(b, " ") {
			return nil, fmt.Errorf("model merge %d, %.100q, is not two tokens", i, line)
		}
		merges = append(merges, [2]string{a, b})
	}
	return merges, nil
}
