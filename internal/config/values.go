package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Text is a text, or tokens when Tokens is not nil.
type Text struct {
	Text   string
	Tokens []int32
}

// Token is a vocabulary entry given by its text or, when ByID, by its number.
type Token struct {
	Text string
	ID   int32
	ByID bool
}

// IsZero reports whether no token was given.
func (t Token) IsZero() bool { return t == Token{} }

func (t Token) String() string {
	if t.ByID {
		return strconv.Itoa(int(t.ID))
	}
	return strconv.Quote(t.Text)
}

// Size is an amount of memory: bytes, or a share when Percent is not 0.
type Size struct {
	Bytes   int64
	Percent float64
}

// IsZero reports whether the size is nothing.
func (s Size) IsZero() bool { return s == Size{} }

// Of returns the bytes that s means where a share is one of total.
func (s Size) Of(total int64) int64 {
	if s.Percent > 0 {
		return int64(s.Percent / 100 * float64(total))
	}
	return s.Bytes
}

var units = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
}

func (s Size) String() string {
	if s.Percent > 0 {
		return strconv.FormatFloat(s.Percent, 'g', -1, 64) + "%"
	}
	for _, u := range units[:4] {
		if s.Bytes >= u.bytes && s.Bytes%u.bytes == 0 {
			return strconv.FormatInt(s.Bytes/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(s.Bytes, 10)
}

// ParseSize reads a size such as 8GiB, 500MB, 4096 or 80%.
func ParseSize(text string) (Size, error) {
	bad := fmt.Errorf("%q is not a size: write 8GiB, 500MB, 4096 (bytes) or 80%%", text)
	number, unit := strings.TrimSpace(text), int64(1)
	percent := strings.HasSuffix(number, "%")
	if percent {
		number = strings.TrimSuffix(number, "%")
	} else {
		for _, u := range units {
			if n, ok := strings.CutSuffix(number, u.name); ok {
				number, unit = n, u.bytes
				break
			}
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || math.IsNaN(v) || v < 0 {
		return Size{}, bad
	}
	if percent {
		if v > 100 {
			return Size{}, fmt.Errorf("%q is more than 100%%", text)
		}
		return Size{Percent: v}, nil
	}
	if v*float64(unit) >= math.MaxInt64 {
		return Size{}, fmt.Errorf("%q is larger than any memory", text)
	}
	return Size{Bytes: int64(v * float64(unit))}, nil
}

// noder is a value that reads itself from YAML and writes itself to it.
type noder interface {
	fromNode(n *yaml.Node) error
	toNode() *yaml.Node
}

func (s *Size) fromNode(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode {
		return fmt.Errorf("want a size such as 8GiB, got %s", describe(n))
	}
	v, err := ParseSize(n.Value)
	if err == nil {
		*s = v
	}
	return err
}

func (s *Size) toNode() *yaml.Node { return scalar("!!str", s.String()) }

func (t *Text) fromNode(n *yaml.Node) error {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!str":
		*t = Text{Text: n.Value}
		return nil
	case n.Kind == yaml.MappingNode && len(n.Content) == 2 && n.Content[0].Value == "tokens":
		var ids []int32
		if err := n.Content[1].Decode(&ids); err != nil {
			return fmt.Errorf("tokens: want a list of token numbers, got %s", describe(n.Content[1]))
		}
		*t = Text{Tokens: append([]int32{}, ids...)}
		return nil
	}
	return fmt.Errorf("want a text in quotes or {tokens: [..]}, got %s", describe(n))
}

func (t *Text) toNode() *yaml.Node {
	if t.Tokens == nil {
		return scalar("!!str", t.Text)
	}
	list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, id := range t.Tokens {
		list.Content = append(list.Content, scalar("!!int", strconv.Itoa(int(id))))
	}
	return &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle,
		Content: []*yaml.Node{scalar("!!str", "tokens"), list}}
}

func (t *Token) fromNode(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode {
		return fmt.Errorf("want a text in quotes or a token's number, got %s", describe(n))
	}
	switch n.Tag {
	case "!!str":
		*t = Token{Text: n.Value}
		return nil
	case "!!int":
		id, err := strconv.ParseInt(n.Value, 10, 32)
		if err != nil || id < 0 {
			return fmt.Errorf("%s is not a token's number", n.Value)
		}
		*t = Token{ID: int32(id), ByID: true}
		return nil
	}
	return fmt.Errorf("want a text in quotes or a token's number, got %s", describe(n))
}

func (t *Token) toNode() *yaml.Node {
	if t.ByID {
		return scalar("!!int", strconv.Itoa(int(t.ID)))
	}
	return scalar("!!str", t.Text)
}

func scalar(tag, value string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
	if tag == "!!str" && needsQuotes(value) {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// needsQuotes reports whether a text printed bare would be read as something else.
func needsQuotes(s string) bool {
	var n yaml.Node
	err := yaml.Unmarshal([]byte(s), &n)
	return err != nil || len(n.Content) != 1 || n.Content[0].Tag != "!!str" || n.Content[0].Value != s
}

// describe says what a node is, for messages.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!null":
		return "nothing"
	case "!!int", "!!float":
		return "the number " + n.Value
	case "!!bool":
		return "the truth value " + n.Value
	}
	return strconv.Quote(n.Value)
}
