package server

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"grebe/serve"
)

var rewrite = flag.Bool("rewrite", false, "write the reference of the errors again")

const errorsFile = "../docs/reference/errors.md"

const errorsHead = `# Reference: errors

Made from the comments of ` + "`serve/errors.go`" + `: do not edit it, run
` + "`go test ./server -run Reference -rewrite`" + `.

Every error is a JSON object. ` + "`field`" + ` is the path of the value in question, where there is one:

` + "```json" + `
{"error": {"code": "invalid_argument", "message": "candidates[3].id: no item \"i999\"", "field": "candidates[3].id"}}
` + "```" + `

A bad request never costs another request anything. Nothing of a refused change is kept.

| HTTP | gRPC | code | what it means |
|---|---|---|---|
`

// TestReference compares the page of errors with the code.
func TestReference(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../serve/errors.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	page.WriteString(errorsHead)
	seen := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || fmt.Sprint(spec.Type) != "Code" {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		status, ok := statuses[serve.Code(text)]
		meaning := strings.TrimSpace(spec.Doc.Text() + spec.Comment.Text())
		if !ok || meaning == "" {
			t.Errorf("%s: has a status: %v; its comment is %q", text, ok, meaning)
		}
		fmt.Fprintf(&page, "| %d | %v | `%s` | %s |\n", status.http, status.grpc, text, meaning)
		seen++
		return true
	})
	if seen != len(statuses) {
		t.Errorf("serve has %d codes, the server has statuses for %d", seen, len(statuses))
	}
	if *rewrite {
		if err := os.WriteFile(errorsFile, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(errorsFile); err != nil || !bytes.Equal(got, page.Bytes()) {
		t.Errorf("%s is not what the code says (%v): run go test ./server -run Reference -rewrite", errorsFile, err)
	}
}
