package config

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxEntries bounds the lists of models and of tables, so that an index in a variable or flag cannot ask for memory.
const maxEntries = 64

// decoder reads YAML nodes into a Config and notes where each value came from.
type decoder struct {
	at      func(n *yaml.Node) string // the origin of a node's value
	origins map[string]string
	errs    []error
}

func (d *decoder) fail(n *yaml.Node, path, format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	if path != "" {
		msg = path + ": " + msg
	}
	d.errs = append(d.errs, fmt.Errorf("%s: %s", d.at(n), msg))
}

// value reads n into v, which path names.
func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if own, ok := v.Addr().Interface().(noder); ok {
		if err := own.fromNode(n); err != nil {
			d.fail(n, path, "%v", err)
			return
		}
		d.origins[path] = d.at(n)
		return
	}
	if own, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := setText(n, own); err != nil {
			d.fail(n, path, "%v", err)
			return
		}
		d.origins[path] = d.at(n)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.mapping(n, v, path)
		return
	case reflect.Slice:
		d.list(n, v, path)
		return
	}
	if err := setScalar(n, v); err != nil {
		d.fail(n, path, "%v", err)
		return
	}
	d.origins[path] = d.at(n)
}

// setText reads a text or a number into a value that parses texts.
func setText(n *yaml.Node, v encoding.TextUnmarshaler) error {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return fmt.Errorf("want a text or a number, got %s", describe(n))
	}
	return v.UnmarshalText([]byte(n.Value))
}

func setScalar(n *yaml.Node, v reflect.Value) error {
	isScalar := n.Kind == yaml.ScalarNode
	switch v.Kind() {
	case reflect.String:
		if !isScalar || n.Tag != "!!str" {
			return fmt.Errorf("want a text, got %s%s", describe(n), quoteHint(n))
		}
		v.SetString(n.Value)
		return nil
	case reflect.Uint64:
		i, err := strconv.ParseUint(strings.ReplaceAll(n.Value, "_", ""), 0, 64)
		if !isScalar || n.Tag != "!!int" || err != nil {
			return fmt.Errorf("want a whole number of at least 0, got %s", describe(n))
		}
		v.SetUint(i)
		return nil
	case reflect.Int, reflect.Int32:
		if !isScalar || n.Tag != "!!int" {
			return fmt.Errorf("want a whole number, got %s", describe(n))
		}
		i, err := strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 0, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("%s is out of range", n.Value)
		}
		v.SetInt(i)
		return nil
	case reflect.Bool:
		if !isScalar || n.Tag != "!!bool" {
			return fmt.Errorf("want true or false, got %s", describe(n))
		}
		v.SetBool(strings.EqualFold(n.Value, "true"))
		return nil
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(n.Value, v.Type().Bits())
		if !isScalar || err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("want a number, got %s", describe(n))
		}
		v.SetFloat(f)
		return nil
	}
	panic("config: no reader for " + v.Type().String()) // a field of a type that nobody taught
}

func quoteHint(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
		return ": put it in quotes"
	}
	return ""
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "want keys and values, got %s", describe(n))
		return
	}
	d.origins[path] = d.at(n)
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		full := join(path, key.Value)
		f, ok := field(v, key.Value)
		switch {
		case !ok:
			d.fail(key, full, "unknown key%s", suggest(key.Value, keys(v.Type())))
		case seen[key.Value]:
			d.fail(key, full, "given twice")
		default:
			seen[key.Value] = true
			d.value(val, f, full)
		}
	}
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, path, "want a list, got %s", describe(n))
		return
	}
	if hasEntries(v.Type()) {
		if len(n.Content) > maxEntries {
			d.fail(n, path, "%d %s, at most %d", len(n.Content), path, maxEntries)
			return
		}
		v.SetLen(0)
		for i, c := range n.Content {
			d.value(c, grow(v, i), fmt.Sprintf("%s[%d]", path, i))
		}
		return
	}
	out := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, c := range n.Content {
		if err := setScalar(c, out.Index(i)); err != nil {
			d.fail(c, fmt.Sprintf("%s[%d]", path, i), "%v", err)
			return
		}
	}
	d.origins[path] = d.at(n)
	v.SetZero()
	if len(n.Content) > 0 {
		v.Set(out)
	}
}

// hasEntries reports whether a list's elements have keys: models, tables.
func hasEntries(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct
}

// grow returns element i of a list of entries, appending one with defaults when i is its length.
func grow(v reflect.Value, i int) reflect.Value {
	if i == v.Len() {
		e := reflect.New(v.Type().Elem())
		if d, ok := e.Interface().(interface{ setDefaults() }); ok {
			d.setDefaults()
		}
		v.Set(reflect.Append(v, e.Elem()))
	}
	return v.Index(i)
}

// set gives one value by its path, from a variable or a flag: text is read as YAML, and as a plain
// text where the field is one.
func (d *decoder) set(c *Config, path, text string) error {
	v, err := lookup(reflect.ValueOf(c).Elem(), path)
	if err != nil {
		return err
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	if !plainText(v, text) {
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(text), &doc); err == nil && len(doc.Content) == 1 {
			n = doc.Content[0]
		}
	}
	before := len(d.errs)
	d.value(n, v, path)
	if len(d.errs) > before {
		return errors.New(strings.TrimPrefix(d.errs[before].Error(), d.at(n)+": "))
	}
	return nil
}

// plainText reports whether a value is text as it stands, and not YAML.
func plainText(v reflect.Value, text string) bool {
	_, isText := v.Addr().Interface().(*Text)
	return v.Kind() == reflect.String || isText && !strings.HasPrefix(strings.TrimSpace(text), "{")
}

// lookup finds the field that a path such as models[0].prompt.user names.
func lookup(v reflect.Value, path string) (reflect.Value, error) {
	rest := path
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, ".")
		name, index, indexed := strings.Cut(name, "[")
		if v.Kind() != reflect.Struct {
			return v, fmt.Errorf("%s: unknown key", path)
		}
		f, ok := field(v, name)
		if !ok {
			return v, fmt.Errorf("%s: unknown key%s", path, suggest(name, keys(v.Type())))
		}
		v = f
		if !indexed {
			continue
		}
		i, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
		if err != nil || !hasEntries(v.Type()) || i < 0 || i > v.Len() || i >= maxEntries {
			return v, fmt.Errorf("%s: no such entry: there are %d %s", path, entriesIn(v), name)
		}
		v = grow(v, i)
	}
	return v, nil
}

func entriesIn(v reflect.Value) int {
	if v.Kind() == reflect.Slice {
		return v.Len()
	}
	return 0
}

// leaves lists the paths of the values in v, as a user writes them.
func leaves(v reflect.Value, path string, visit func(path string, v reflect.Value)) {
	if _, own := v.Addr().Interface().(noder); own || v.Kind() != reflect.Struct {
		if hasEntries(v.Type()) {
			for i := range v.Len() {
				leaves(v.Index(i), fmt.Sprintf("%s[%d]", path, i), visit)
			}
			return
		}
		visit(path, v)
		return
	}
	for i := range v.NumField() {
		leaves(v.Field(i), join(path, v.Type().Field(i).Tag.Get("yaml")), visit)
	}
}

func field(v reflect.Value, key string) (reflect.Value, bool) {
	i := slices.Index(keys(v.Type()), key)
	if i < 0 || key == "" {
		return reflect.Value{}, false
	}
	return v.Field(i), true
}

func keys(t reflect.Type) []string {
	out := make([]string, t.NumField())
	for i := range out {
		out[i] = t.Field(i).Tag.Get("yaml")
	}
	return out
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// suggest names the key that was probably meant, or all there are.
func suggest(key string, known []string) string {
	for _, k := range known {
		if distance(key, k) <= 2 {
			return fmt.Sprintf(": did you mean %s?", k)
		}
	}
	return ": want one of " + strings.Join(known, ", ")
}

// distance counts the edits from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
