package archtest

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the reference of the metrics again")

const metricsHead = `# Reference: metrics

Made from the code: do not edit it, run
` + "`go test ./internal/archtest -run Reference -rewrite`" + `.

` + "`GET /metrics`" + ` returns them in Prometheus' format, with those of Go and of the process.
Labels are bounded: none is ever the id of a user or an item. [Watch a server](../how-to/watch.md) says what to alert
on.

The label ` + "`op`" + ` names an operation:

- Requests to models: ` + "`rank`, `recommend`, `score`, `rerank` and `completions`" + `.
- Of ` + "`grebe_tokens_total` and `grebe_slo_ok_total`" + ` alone: ` + "`probe`" + `, requests of the server
  itself. They warm a checkpoint up and check it, when it is loaded and while it is on trial. No client sent them.
- Of ` + "`grebe_requests_total` and `grebe_request_seconds`" + ` alone, other calls: ` + "`items`, `users`" + `,
  ` + "`events`, `tables`, `catalog`, `models`, `reload`, `batches`, `backup`, `cluster`, `metrics`, `health`" + `,
  ` + "`page`, `openapi`, and `other`" + `, an unknown address.
`

// TestReference compares the page of metrics with the code: names, labels and help of all that a server exports.
func TestReference(t *testing.T) {
	found := map[string]string{} // by name
	for _, p := range packages(t) {
		if within(p.path, "bench") {
			continue
		}
		for _, f := range p.files {
			if !f.test {
				metricsOf(t, f, found)
			}
		}
	}
	if len(found) < 50 {
		t.Fatalf("found %d metrics in the code: is it read right?", len(found))
	}
	var page bytes.Buffer
	page.WriteString(metricsHead + "\n")
	for _, name := range slices.Sorted(maps.Keys(found)) {
		page.WriteString(found[name])
	}
	file := filepath.Join(root(t), "docs/reference/metrics.md")
	if *rewrite {
		if err := os.WriteFile(file, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, page.Bytes()) {
		t.Errorf("docs/reference/metrics.md is not what the code says (%v): "+
			"run go test ./internal/archtest -run Reference -rewrite", err)
	}
}

// filled breaks a text into lines that begin with an indent.
func filled(text, indent string) string {
	var out strings.Builder
	width := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case width == 0:
			out.WriteString(indent)
			width = len(indent)
		case width+1+len(word) > maxColumns:
			out.WriteString("\n" + indent)
			width = len(indent)
		default:
			out.WriteByte(' ')
			width++
		}
		out.WriteString(word)
		width += len(word)
	}
	return out.String()
}

// metricsOf adds a file's metrics: calls of NewDesc, and options with a Name.
func metricsOf(t *testing.T, f file, found map[string]string) {
	add := func(name, help ast.Expr, labels []string) {
		text, help2 := constant(f, name), constant(f, help)
		if !strings.HasPrefix(text, "grebe_") {
			return
		}
		if help2 == "" {
			t.Errorf("%s: %s has no help that can be read", f.path, text)
		}
		if len(labels) > 0 {
			text += "{" + strings.Join(labels, ",") + "}"
		}
		found[text] = fmt.Sprintf("- **`%s`**\n%s\n", text, filled(help2, "  "))
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		fun := call.Fun
		if sel, ok := fun.(*ast.SelectorExpr); ok {
			fun = sel.Sel
		}
		id, ok := fun.(*ast.Ident)
		if !ok || !strings.HasPrefix(id.Name, "New") || len(call.Args) == 0 {
			return true
		}
		if id.Name == "NewDesc" && len(call.Args) == 4 {
			add(call.Args[0], call.Args[1], strs(f, call.Args[2]))
			return true
		}
		opts, ok := call.Args[0].(*ast.CompositeLit)
		if !ok {
			return true
		}
		fields := map[string]ast.Expr{}
		for _, e := range opts.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				fields[fmt.Sprint(kv.Key)] = kv.Value
			}
		}
		labels := keys(fields["ConstLabels"])
		if strings.HasSuffix(id.Name, "Vec") && len(call.Args) == 2 {
			labels = append(labels, strs(f, call.Args[1])...)
		}
		if fields["Name"] != nil {
			add(fields["Name"], fields["Help"], labels)
		}
		return true
	})
}

// constant returns the text of a string expression: literals, sums, and names that the file gives a literal.
func constant(f file, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); e.Kind == token.STRING && err == nil {
			return s
		}
	case *ast.BinaryExpr:
		return constant(f, e.X) + constant(f, e.Y)
	case *ast.Ident:
		if v := value(f, e.Name); v != nil {
			return constant(f, v)
		}
	}
	return ""
}

// strs returns the texts of a list of strings, written there or named.
func strs(f file, e ast.Expr) []string {
	if id, ok := e.(*ast.Ident); ok {
		e = value(f, id.Name)
	}
	var out []string
	if list, ok := e.(*ast.CompositeLit); ok {
		for _, x := range list.Elts {
			out = append(out, constant(f, x))
		}
	}
	return out
}

// keys returns the keys of a map that is written out.
func keys(e ast.Expr) []string {
	var out []string
	if m, ok := e.(*ast.CompositeLit); ok {
		for _, x := range m.Elts {
			if kv, ok := x.(*ast.KeyValueExpr); ok {
				if lit, ok := kv.Key.(*ast.BasicLit); ok {
					out = append(out, strings.Trim(lit.Value, `"`))
				}
			}
		}
	}
	return out
}

// value returns what a file first gives to a name.
func value(f file, name string) ast.Expr {
	var out ast.Expr
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, id := range n.Names {
				if id.Name == name && i < len(n.Values) && out == nil {
					out = n.Values[i]
				}
			}
		case *ast.AssignStmt:
			for i, l := range n.Lhs {
				if id, ok := l.(*ast.Ident); ok && id.Name == name && i < len(n.Rhs) && len(n.Lhs) == len(n.Rhs) && out == nil {
					out = n.Rhs[i]
				}
			}
		}
		return true
	})
	return out
}
