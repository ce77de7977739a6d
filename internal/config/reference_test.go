package config

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the reference of the configuration again")

const referenceFile = "../../docs/reference/configuration.md"

const referenceHead = `# Reference: configuration

Made from the comments of ` + "`internal/config`" + `: do not edit it, run
` + "`go test ./internal/config -run Reference -rewrite`" + `.

A server reads a YAML file, then the environment, then flags; a later one wins. The environment spells a key in
capitals behind ` + "`GREBE_`" + `: ` + "`cache.host_memory`" + ` is ` + "`GREBE_CACHE_HOST_MEMORY`" + ` and
` + "`models[0].path`" + ` is ` + "`GREBE_MODELS_0_PATH`" + `. Sizes are bytes with a unit such as
` + "`512MiB`" + `, or a share such as ` + "`80%`" + `. Keys that end in ` + "`_ms`" + ` are milliseconds.
` + "`grebe serve --print-config`" + ` shows all values and where each comes from. An unknown key stops the start.
`

// TestReference compares the page of all keys with the code. Each key needs a comment "meaning; default".
func TestReference(t *testing.T) {
	want := reference(t)
	if *rewrite {
		if err := os.WriteFile(referenceFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the code says: run go test ./internal/config -run Reference -rewrite\n%s",
			referenceFile, firstDifference(got, want))
	}
}

func firstDifference(got, want []byte) string {
	g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d is %q, want %q", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("it has %d lines, want %d", len(g), len(w))
}

// page writes the reference: one part for each struct, in the order of the file.
type page struct {
	*testing.T
	bytes.Buffer
	docs map[string]*ast.TypeSpec
	text map[string]string // comments of structs
}

func reference(t *testing.T) []byte {
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	p := &page{T: t, docs: map[string]*ast.TypeSpec{}, text: map[string]string{}}
	for _, d := range file.Decls {
		if g, ok := d.(*ast.GenDecl); ok {
			for _, s := range g.Specs {
				if ts, ok := s.(*ast.TypeSpec); ok {
					p.docs[ts.Name.Name], p.text[ts.Name.Name] = ts, plain(g.Doc.Text())
				}
			}
		}
	}
	p.WriteString(referenceHead)
	p.part(reflect.ValueOf(Default()).Elem(), "")
	return p.Bytes()
}

// part writes the keys of v, which path names, and then those of the structs in it.
func (p *page) part(v reflect.Value, path string) {
	name := v.Type().Name()
	spec, ok := p.docs[name]
	if !ok {
		p.Fatalf("no struct %s in config.go", name)
	}
	if path != "" {
		fmt.Fprintf(p, "\n## `%s`\n%s\n", strings.TrimSuffix(path, "."), wrap(p.text[name], ""))
	}
	p.WriteString("\n")
	type inner struct {
		v    reflect.Value
		path string
	}
	var parts []inner
	for i, f := range spec.Type.(*ast.StructType).Fields.List {
		field := v.Type().Field(i)
		key := field.Tag.Get("yaml")
		switch value := v.Field(i); {
		case p.docs[field.Type.Name()] != nil:
			parts = append(parts, inner{value, path + key + "."})
			fmt.Fprintf(p, "- **`%s`**: see [`%s`](#%s).\n", key, path+key, anchor(path+key))
			continue
		case field.Type.Kind() == reflect.Slice && p.docs[field.Type.Elem().Name()] != nil:
			entry := reflect.New(field.Type.Elem())
			if d, ok := entry.Interface().(interface{ setDefaults() }); ok {
				d.setDefaults()
			}
			parts = append(parts, inner{entry.Elem(), path + key + "[]."})
			fmt.Fprintf(p, "- **`%s`**: a list; see [`%s[]`](#%s).\n", key, path+key, anchor(path+key))
			continue
		}
		comment := plain(f.Doc.Text() + f.Comment.Text())
		comment = strings.TrimPrefix(comment, field.Name+" is ")
		comment = strings.TrimPrefix(comment, field.Name+" are ")
		comment = strings.TrimPrefix(comment, field.Name+" says ")
		at := strings.LastIndex(comment, "; ")
		if at < 0 {
			p.Errorf("%s%s: its comment %q does not end with \"; default\"", path, key, comment)
			continue
		}
		meaning, usual := comment[:at], strings.TrimSuffix(comment[at+2:], ".")
		end := "Default: " + usual + "."
		if usual == "required" {
			end = "Required."
		}
		fmt.Fprintln(p, wrap(fmt.Sprintf("- **`%s`**: %s. %s", key, meaning, end), "  "))
		p.holds(path+key, v.Field(i), usual)
	}
	for _, in := range parts {
		p.part(in.v, in.path)
	}
}

// holds compares the default that a comment states with the one in the code, where the code has one.
func (p *page) holds(path string, v reflect.Value, stated string) {
	if v.IsZero() || path == "data_dir" { // data_dir is beside the file that was read
		return
	}
	values := []string{fmt.Sprint(v.Interface())}
	switch x := v.Interface().(type) {
	case string:
		values = append(values, strings.ReplaceAll(fmt.Sprintf("%q", x), `"`, ""))
	case []string:
		values = []string{strings.Join(x, " and ")}
	}
	for _, s := range values {
		if strings.Contains(stated, s) {
			return
		}
	}
	p.Errorf("%s: the comment says that the default is %q, the code has %q", path, stated, values)
}

func plain(s string) string { return strings.Join(strings.Fields(s), " ") }

// anchor is the name that pages on the web give a heading.
func anchor(s string) string { return strings.NewReplacer(".", "", "[", "", "]", "").Replace(s) }

// wrap breaks a paragraph into lines of at most 118 columns; lines after the first begin with indent.
func wrap(s, indent string) string {
	var b strings.Builder
	col := 0
	for i, w := range strings.Fields(s) {
		switch {
		case i > 0 && col+1+len(w) > 118:
			b.WriteString("\n" + indent)
			col = len(indent)
		case i > 0:
			b.WriteByte(' ')
			col++
		}
		b.WriteString(w)
		col += len(w)
	}
	return b.String()
}
