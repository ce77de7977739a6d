package openapi

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

var rewrite = flag.Bool("rewrite", false, "write the references of the HTTP and gRPC API again")

const httpHead = `# Reference: HTTP API

Made from the table that ` + "`/openapi.json`" + ` is made from: do not edit it, run
` + "`go test ./server/openapi -run Reference -rewrite`" + `.

Bodies are JSON. Unknown fields are errors, except in the shapes of other servers. A body of lines is NDJSON: one JSON
object per line. Errors are JSON too; [errors](errors.md) lists their codes, [limits](limits.md) what is refused for its
size. A call that changes an item or a user is answered when the change is durable.

Where the server has [keys](../how-to/security.md#keys), send one as ` + "`Authorization: Bearer KEY`" + ` or as
` + "`X-Api-Key: KEY`" + `. Each call names the role that the key needs.

The examples run against the models of ` + "`grebe demo`" + `, here as a cluster of one node and with a table of
embeddings:

` + "```sh" + `
grebe demo --once --data ./shop > /dev/null
printf '%s\n' 'data_dir: ./data' 'tables: [{name: items, dim: 2}]' 'reload: {trial_ms: 0}' \
  'cluster: {name: shop, node: n1, coordinator: embedded, etcd: "127.0.0.1:2379", listen: "127.0.0.1:7070"}' \
  >> ./shop/grebe.yaml
sed -i 's/generate_instruction: .*/&\n      chat_message: "{text}\\n"/' ./shop/grebe.yaml
grebe serve -c ./shop/grebe.yaml --admin-listen= --grpc-listen= &
grebe health --wait 2m --pid $!
` + "```" + `
`

// TestReference compares the pages of the HTTP and gRPC API with the table of calls and with the descriptors.
func TestReference(t *testing.T) {
	for file, page := range map[string][]byte{
		"../../docs/reference/http.md": httpPage(t),
		"../../docs/reference/grpc.md": grpcPage(t),
	} {
		if *rewrite {
			if err := os.WriteFile(file, page, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, page) {
			t.Errorf("%s is not what the code says (%v): run go test ./server/openapi -run Reference -rewrite", file, err)
		}
	}
}

func httpPage(t *testing.T) []byte {
	_, schemas := describe()
	var page bytes.Buffer
	page.WriteString(httpHead)
	written := 0
	for _, tag := range tags {
		fmt.Fprintf(&page, "\n## Calls: %s\n\n%s\n", tag["name"], tag["description"])
		for _, c := range Calls {
			if c.tag() == tag["name"] {
				writeCall(t, &page, c)
				written++
			}
		}
	}
	if written != len(Calls) {
		t.Errorf("%d of %d calls belong to a group", written, len(Calls))
	}
	page.WriteString("\n## Messages\n\nFields marked * are always there, or must be sent.\n")
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		writeSchema(t, &page, name, schemas[name].(object))
	}
	return page.Bytes()
}

func writeCall(t *testing.T, page *bytes.Buffer, c Call) {
	fmt.Fprintf(page, "\n### %s %s\n\n%s.\n\n", c.Method, c.Path, strings.TrimSuffix(c.Summary, "."))
	if c.Role == "" {
		page.WriteString("- Open to everyone.\n")
	} else {
		fmt.Fprintf(page, "- Role: `%s`\n", c.Role)
	}
	for _, q := range c.Query {
		if parameters[q] == "" {
			t.Errorf("%s: the parameter %s has no description", c.Op, q)
		}
		fmt.Fprintf(page, "- `?%s`: %s\n", q, parameters[q])
	}
	if c.Request != "" {
		lines := ""
		if c.Lines {
			lines = ", one per line"
		}
		fmt.Fprintf(page, "- Body: %s%s\n", linked(c.Request), lines)
	}
	if c.Response != "" {
		fmt.Fprintf(page, "- Answer: %s\n", linked(c.Response))
	} else {
		fmt.Fprintf(page, "- Answer: %s\n", quoted(c.Returns))
	}
	e, ok := examples[c.Op]
	if !ok && (c.Request != "" || c.Lines || strings.Contains(c.Path, "{id}")) {
		t.Errorf("%s has no example", c.Op)
	}
	fmt.Fprintf(page, "\n```sh\n%s\n```\n", command(c, e))
}

// command returns an example as it is typed.
func command(c Call, e example) string {
	at := "http://127.0.0.1:8080" + strings.ReplaceAll(c.Path, "{id}", e.id)
	if e.query != "" {
		at = "'" + at + "?" + e.query + "'"
	}
	parts := []string{"curl -sS"}
	if e.flags != "" {
		parts[0] += "f " + e.flags // an error is no file, and not what a retry waits for
	}
	usual := "GET"
	if e.body != "" {
		usual = "POST"
	}
	if c.Method != usual {
		parts[0] += " -X " + c.Method
	}
	parts[0] += " " + at
	if e.body != "" {
		parts = append(parts, "-d '"+e.body+"'")
	}
	line := strings.Join(parts, " ")
	if len(line) > 120 {
		line = strings.Join(parts, " \\\n  ")
	}
	if e.first != "" {
		line = e.first + "\n" + line
	}
	return line
}

// linked returns links to messages, of which one is meant.
func linked(names string) string {
	var out []string
	for _, name := range strings.Split(names, "|") {
		out = append(out, fmt.Sprintf("[`%s`](#%s)", name, strings.ToLower(name)))
	}
	return strings.Join(out, " or ")
}

// quoted marks a text that is JSON as code.
func quoted(text string) string {
	from, to := strings.Index(text, "{"), strings.LastIndex(text, "}")
	if from < 0 {
		return text
	}
	return text[:from] + "`" + text[from:to+1] + "`" + text[to+1:]
}

func writeSchema(t *testing.T, page *bytes.Buffer, name string, schema object) {
	fmt.Fprintf(page, "\n### %s\n\n", name)
	if said, _ := schema["description"].(string); said != "" {
		page.WriteString(wrapped(said) + "\n\n")
	}
	if schema["type"] == "array" {
		schema = schema["items"].(object)
		page.WriteString("It is a list of:\n\n")
	}
	props := schema["properties"].(object)
	if len(props) == 0 {
		page.WriteString("It has no fields.\n")
		return
	}
	needed, _ := schema["required"].([]string)
	page.WriteString("| field | type | |\n|---|---|---|\n")
	for _, field := range fieldsOf(name, props) {
		p := props[field].(object)
		mark := ""
		if slices.Contains(needed, field) {
			mark = " *"
		}
		said, _ := p["description"].(string)
		fmt.Fprintf(page, "| `%s`%s | %s | %s |\n", field, mark, kindOf(t, p), cell(said))
	}
}

// fieldsOf returns the fields of a message in the order of grebe.proto, or of the alphabet if it is not there.
func fieldsOf(name string, props object) []string {
	m := messages().ByName(protoreflect.Name(name))
	if m == nil {
		return slices.Sorted(maps.Keys(props))
	}
	var out []string
	for i := range m.Fields().Len() {
		out = append(out, string(m.Fields().Get(i).Name()))
	}
	return out
}

// kindOf returns the type of a value in words.
func kindOf(t *testing.T, p object) string {
	if to, ok := p["$ref"].(string); ok {
		return linked(strings.TrimPrefix(to, "#/components/schemas/"))
	}
	for _, key := range []string{"oneOf", "anyOf"} {
		if several, ok := p[key].([]object); ok {
			var out []string
			for _, one := range several {
				out = append(out, kindOf(t, one))
			}
			return strings.Join(out, " or ")
		}
	}
	switch p["type"] {
	case "array":
		return "list of " + kindOf(t, p["items"].(object))
	case "object":
		if values, ok := p["additionalProperties"].(object); ok {
			return "map to " + kindOf(t, values)
		}
		props, _ := p["properties"].(object)
		var out []string
		for _, field := range slices.Sorted(maps.Keys(props)) {
			out = append(out, "`"+field+"`")
		}
		return "object with " + strings.Join(out, ", ")
	case "string", "integer", "number", "boolean", "null":
		return p["type"].(string)
	}
	t.Errorf("no words for the type of %v", p)
	return ""
}

// cell returns a text that fits into a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// wrapped breaks a text into lines of at most 118 bytes.
func wrapped(text string) string {
	var out []string
	line := ""
	for _, w := range strings.Fields(text) {
		if line != "" && len(line)+len(w)+1 > 118 {
			out = append(out, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + w)
	}
	return strings.Join(append(out, line), "\n")
}
