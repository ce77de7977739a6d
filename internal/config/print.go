package config

import (
	"fmt"
	"io"
	"reflect"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Print writes the configuration as YAML that Load reads back, each value with its origin.
func (l *Loaded) Print(w io.Writer) error {
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(l.node(reflect.ValueOf(&l.Config).Elem(), "")); err != nil {
		return fmt.Errorf("print the configuration: %w", err)
	}
	return enc.Close()
}

func (l *Loaded) node(v reflect.Value, path string) *yaml.Node {
	if own, ok := v.Addr().Interface().(noder); ok {
		return l.comment(own.toNode(), path)
	}
	switch v.Kind() {
	case reflect.Struct:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for i := range v.NumField() {
			key := v.Type().Field(i).Tag.Get("yaml")
			if t, ok := v.Field(i).Addr().Interface().(*Token); ok && t.IsZero() {
				continue
			}
			n.Content = append(n.Content, scalar("!!str", key), l.node(v.Field(i), join(path, key)))
		}
		return n
	case reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			n.Content = append(n.Content, l.node(v.Index(i), fmt.Sprintf("%s[%d]", path, i)))
		}
		if hasEntries(v.Type()) && v.Len() > 0 {
			return n
		}
		n.Style = yaml.FlowStyle
		for _, c := range n.Content {
			c.LineComment = ""
		}
		return l.comment(n, path)
	case reflect.Bool:
		return l.comment(scalar("!!bool", strconv.FormatBool(v.Bool())), path)
	case reflect.Float32, reflect.Float64:
		return l.comment(scalar("!!float", strconv.FormatFloat(v.Float(), 'g', -1, v.Type().Bits())), path)
	case reflect.Int, reflect.Int32:
		return l.comment(scalar("!!int", strconv.FormatInt(v.Int(), 10)), path)
	}
	return l.comment(scalar("!!str", v.String()), path)
}

func (l *Loaded) comment(n *yaml.Node, path string) *yaml.Node {
	n.LineComment = "# " + l.Origin(path)
	return n
}
