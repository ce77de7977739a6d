package openapi

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	grebev1 "grebe/api/grebe/v1"
)

const grpcHead = `# Reference: gRPC API

Made from the descriptors and comments of [` + "`grebe.proto`" + `](../../api/grebe/v1/grebe.proto): do not edit it, run
` + "`go test ./server/openapi -run Reference -rewrite`" + `.

gRPC is served beside HTTP, at ` + "`listen`" + `, and alone at ` + "`grpc_listen`" + `. The calls are those of the
[HTTP API](http.md) with the same messages and the same answers. Where the server has keys, send one in the metadata:
` + "`authorization: Bearer KEY`" + ` or ` + "`x-api-key: KEY`" + `. [Errors](errors.md) lists the codes of gRPC too.
The server also has the services ` + "`grpc.health.v1.Health`" + `, which needs no key, and reflection.

The examples use [grpcurl](https://github.com/fullstorydev/grpcurl) against the models of ` + "`grebe demo`" + `:

` + "```sh" + `
grebe demo --once --data ./shop > /dev/null
grebe serve -c ./shop/grebe.yaml --data-dir ./data --admin-listen= --grpc-listen= --set reload.trial_ms=0 &
grebe health --wait 2m --pid $!
` + "```" + `
`

// grpcExamples are the requests of the page, by method. They run in the order of the page.
var grpcExamples = map[protoreflect.Name]string{
	"Rank": `{"model": "shop", "user": {"id": "kaya"}, "candidates": [{"id": "i00040"}, {"id": "i02500"}]}`,
	"Recommend": `{"model": "shop", "user": {"id": "kaya"}, "n": 5, ` +
		`"filter": {"department": {"values": ["Camping"]}}}`,
	"Score": `{"model": "shop", "query": {"text": "A camper."}, "items": [{"text": "A tent"}], ` +
		`"label_token_ids": [2628]}`,
	"Rerank":          `{"model": "shop-pointwise", "query": "A camper.", "documents": ["A tent", "A kettle"]}`,
	"ListModels":      `{}`,
	"ReloadModel":     `{"model": "shop", "wait": true}`,
	"RollbackModel":   `{"model": "shop", "wait": true}`,
	"GetCatalog":      `{}`,
	"ActivateCatalog": `{"version": "auto"}`,
	"RollbackCatalog": `{"model": "shop"}`,
}

// grpcFirst are commands that an example needs before it.
var grpcFirst = map[protoreflect.Name]string{
	"ReloadModel": examples["reload_model"].first,
	"RollbackCatalog": `curl -sS http://127.0.0.1:8080/v1/items:batch ` + "\\\n  " +
		`-d '{"id": "i1", "text": "Field guide to water birds", "codes": [1, 2, 3]}'`,
}

func grpcPage(t *testing.T) []byte {
	said := comments(grebev1.Source)
	var page bytes.Buffer
	page.WriteString(grpcHead)
	services := grebev1.File_grebe_v1_grebe_proto.Services()
	asked := map[protoreflect.Name]bool{}
	var order []protoreflect.MessageDescriptor
	for i := range services.Len() {
		service := services.Get(i)
		fmt.Fprintf(&page, "\n## Service `%s`\n", service.FullName())
		for j := range service.Methods().Len() {
			method := service.Methods().Get(j)
			writeMethod(t, &page, service, method, said[string(method.Name())])
			order = collect(collect(order, asked, method.Input()), asked, method.Output())
		}
	}
	page.WriteString("\n## Messages\n")
	for _, m := range order {
		writeMessage(&page, m, said)
	}
	return page.Bytes()
}

func writeMethod(t *testing.T, page *bytes.Buffer, service protoreflect.ServiceDescriptor,
	method protoreflect.MethodDescriptor, said string) {
	fmt.Fprintf(page, "\n### %s\n\n%s\n\n", method.Name(), wrapped(said))
	call := callOf(method.Name())
	if call == nil || said == "" {
		t.Errorf("%s has no call of HTTP with the same name, or no comment", method.Name())
		return
	}
	fmt.Fprintf(page, "- Role: `%s`\n- Request: %s\n- Response: %s\n- HTTP: `%s %s`\n", call.Role,
		linked(string(method.Input().Name())), linked(string(method.Output().Name())), call.Method, call.Path)
	body := grpcExamples[method.Name()]
	if err := protojson.Unmarshal([]byte(body), dynamicpb.NewMessage(method.Input())); err != nil {
		t.Errorf("example of %s: %v", method.Name(), err)
	}
	page.WriteString("\n```sh\n")
	if first := grpcFirst[method.Name()]; first != "" {
		page.WriteString(first + "\n")
	}
	if body != "{}" {
		body = " \\\n  -d '" + body + "' \\\n  "
	} else {
		body = " "
	}
	fmt.Fprintf(page, "grpcurl -plaintext%s127.0.0.1:8080 %s/%s\n```\n", body, service.FullName(), method.Name())
}

// callOf returns the call of HTTP that does what a method does: RollbackCatalog is rollback_catalog.
func callOf(method protoreflect.Name) *Call {
	var op strings.Builder
	for i, r := range string(method) {
		if r < 'a' && i > 0 {
			op.WriteByte('_')
		}
		op.WriteRune(r)
	}
	for i := range Calls {
		if Calls[i].Op == strings.ToLower(op.String()) {
			return &Calls[i]
		}
	}
	return nil
}

// collect adds a message and those in it, each once.
func collect(out []protoreflect.MessageDescriptor, seen map[protoreflect.Name]bool,
	m protoreflect.MessageDescriptor) []protoreflect.MessageDescriptor {
	if seen[m.Name()] || m.IsMapEntry() {
		return out
	}
	seen[m.Name()] = true
	out = append(out, m)
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if f.IsMap() {
			f = f.MapValue()
		}
		if f.Message() != nil {
			out = collect(out, seen, f.Message())
		}
	}
	return out
}

func writeMessage(page *bytes.Buffer, m protoreflect.MessageDescriptor, said map[string]string) {
	fmt.Fprintf(page, "\n### %s\n\n", m.Name())
	if text := said[string(m.Name())]; text != "" {
		page.WriteString(wrapped(text) + "\n\n")
	}
	if m.Fields().Len() == 0 {
		page.WriteString("It has no fields.\n")
		return
	}
	page.WriteString("| number | field | type | |\n|---|---|---|---|\n")
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		fmt.Fprintf(page, "| %d | `%s` | %s | %s |\n", f.Number(), f.Name(), protoKind(f),
			cell(said[string(m.Name())+"."+string(f.Name())]))
	}
}

// protoKind returns the type of a field as grebe.proto has it.
func protoKind(f protoreflect.FieldDescriptor) string {
	one := func(f protoreflect.FieldDescriptor) string {
		if f.Message() != nil {
			return linked(string(f.Message().Name()))
		}
		return f.Kind().String()
	}
	switch {
	case f.IsMap():
		return "map of " + one(f.MapKey()) + " to " + one(f.MapValue())
	case f.IsList():
		return "repeated " + one(f)
	case f.HasOptionalKeyword():
		return "optional " + one(f)
	}
	return one(f)
}
