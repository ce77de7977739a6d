// Package openapi describes the HTTP API as an OpenAPI 3.1 document. It is made from the messages that the server
// reads and writes and the comments of grebe.proto, so it is never out of date.
package openapi

import (
	"bufio"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	grebev1 "grebe/api/grebe/v1"
)

type object = map[string]any

// Call is one method of a path.
type Call struct {
	Method, Path string
	Op           string // unique name, for generated clients
	Summary      string
	Request      string // name of a message, or names separated by |; empty: no body, or one that Summary describes
	Response     string // the same for the response; empty: described by Returns
	Returns      string
	Lines        bool     // the body is NDJSON
	Query        []string // parameters
	Role         string   // role that a key needs; empty: no key needed
}

// Document returns the description as JSON.
func Document(version string) []byte {
	paths, schemas := describe()
	doc, err := json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{"title": "Grebe", "version": version,
			"license": object{"name": "Apache 2.0", "identifier": "Apache-2.0"},
			"description": "A server for generative recommenders: ranks candidates with language models and " +
				"generates items of a catalog."},
		"servers":  []object{{"url": "/", "description": "The server that this document came from."}},
		"tags":     tags,
		"paths":    paths,
		"security": []object{{}, {"key": []string{}}},
		"components": object{
			"schemas": schemas,
			"securitySchemes": object{"key": object{"type": "http", "scheme": "bearer",
				"description": "Where the server has keys; see `grebe key`."}},
		},
	}, "", " ")
	if err != nil {
		panic(err) // cannot fail: maps of strings and lists
	}
	return append(doc, '\n')
}

// describe returns the calls by path and method, and the messages that they carry.
func describe() (paths, schemas object) {
	said := comments(grebev1.Source)
	paths, schemas = object{}, object{"Error": errorSchema()}
	for _, c := range Calls {
		at, _ := paths[c.Path].(object)
		if at == nil {
			at = object{}
			paths[c.Path] = at
		}
		at[strings.ToLower(c.Method)] = c.describe()
		for _, name := range strings.Split(c.Request+"|"+c.Response, "|") {
			if own := foreign[name]; own != nil {
				schemas[name] = own
			} else if name != "" {
				addSchema(schemas, said, messages().ByName(protoreflect.Name(name)))
			}
		}
	}
	return paths, schemas
}

func messages() protoreflect.MessageDescriptors {
	return grebev1.File_grebe_v1_grebe_proto.Messages()
}

func (c *Call) describe() object {
	ok := object{"description": c.Returns}
	if c.Response != "" {
		ok = object{"description": c.Summary, "content": object{"application/json": object{"schema": oneOf(c.Response)}}}
	}
	failed := object{"description": "What is wrong, and where",
		"content": object{"application/json": object{"schema": ref("Error")}}}
	out := object{"operationId": c.Op, "tags": []string{c.tag()}, "summary": c.Summary,
		"responses": object{"2XX": ok, "4XX": failed, "5XX": failed}}
	if c.Role != "" {
		out["description"] = "Role of the key: " + c.Role + "."
	} else {
		out["description"] = "Open to everyone."
		out["security"] = []object{{}}
	}
	if c.Request != "" {
		kind := "application/json"
		if c.Lines {
			kind = "application/x-ndjson"
		}
		body := object{"schema": oneOf(c.Request)}
		if example := examples[c.Op].body; example != "" {
			body["example"] = json.RawMessage(example)
		}
		out["requestBody"] = object{"required": true, "content": object{kind: body}}
	}
	var params []object
	if strings.Contains(c.Path, "{id}") {
		params = append(params, object{"name": "id", "in": "path", "required": true, "schema": object{"type": "string"},
			"example": examples[c.Op].id})
	}
	for _, q := range c.Query {
		kind := "string"
		if q == "limit" {
			kind = "integer"
		}
		params = append(params, object{"name": q, "in": "query", "schema": object{"type": kind},
			"description": parameters[q]})
	}
	if params != nil {
		out["parameters"] = params
	}
	return out
}

// oneOf refers to one of several messages.
func oneOf(names string) object {
	all := strings.Split(names, "|")
	if len(all) == 1 {
		return ref(all[0])
	}
	var refs []object
	for _, name := range all {
		refs = append(refs, ref(name))
	}
	return object{"anyOf": refs}
}

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

func errorSchema() object {
	text := object{"type": "string"}
	return object{"type": "object", "required": []string{"error"}, "properties": object{"error": object{
		"type": "object", "required": []string{"code", "message"},
		"properties": object{"code": text, "message": text,
			"field": object{"type": "string", "description": "Path of the field in question."}}}}}
}

// addSchema adds a message and the messages in it.
func addSchema(schemas object, said map[string]string, m protoreflect.MessageDescriptor) {
	name := string(m.Name())
	if schemas[name] != nil {
		return
	}
	props := object{}
	schema := object{"type": "object", "properties": props, "description": said[name]}
	if fields := required[name]; fields != nil {
		schema["required"] = fields
	}
	schemas[name] = schema
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		p := property(schemas, said, f)
		if text := said[name+"."+string(f.Name())]; text != "" {
			p["description"] = text
		}
		props[string(f.Name())] = p
	}
}

func property(schemas object, said map[string]string, f protoreflect.FieldDescriptor) object {
	if f.IsMap() {
		return object{"type": "object", "additionalProperties": value(schemas, said, f.MapValue())}
	}
	if f.IsList() {
		return object{"type": "array", "items": value(schemas, said, f)}
	}
	return value(schemas, said, f)
}

// plain are messages that JSON has without a wrapper.
var plain = map[protoreflect.Name]func() object{
	"Values": func() object { return object{"type": "array", "items": object{"type": "string"}} },
	"Boosts": func() object { return object{"type": "object", "additionalProperties": object{"type": "number"}} },
	"Scores": func() object { return object{"type": "array", "items": object{"type": "number"}} },
	"Input": func() object {
		return object{"oneOf": []object{{"type": "string"}, {"type": "array", "items": object{"type": "integer"}}}}
	},
}

func value(schemas object, said map[string]string, f protoreflect.FieldDescriptor) object {
	switch f.Kind() {
	case protoreflect.StringKind:
		return object{"type": "string"}
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return object{"type": "number"}
	case protoreflect.MessageKind:
		if p := plain[f.Message().Name()]; p != nil {
			return p()
		}
		addSchema(schemas, said, f.Message())
		if f.Message().Name() == "Condition" {
			return object{"anyOf": []object{{"type": "array", "items": object{"type": "string"}}, ref("Condition")}}
		}
		return ref(string(f.Message().Name()))
	}
	return object{"type": "integer"}
}

var (
	messageLine = regexp.MustCompile(`^message (\w+) \{`)
	fieldLine   = regexp.MustCompile(`^\s+(?:repeated |optional )?[\w<>, ]+ (\w+) = \d+;(?: // (.*))?$`)
	rpcLine     = regexp.MustCompile(`^\s+rpc (\w+)\(`)
)

// comments returns the comments of a proto file on messages, fields and methods. The comment of a field is behind it or
// in the lines above it.
func comments(source string) map[string]string {
	out := map[string]string{}
	var above []string
	message := ""
	for s := bufio.NewScanner(strings.NewReader(source)); s.Scan(); {
		line := s.Text()
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "// "); ok {
			above = append(above, text)
			continue
		}
		said := strings.Join(above, " ")
		if m := messageLine.FindStringSubmatch(line); m != nil {
			message = m[1]
			out[message] = said
		}
		if m := fieldLine.FindStringSubmatch(line); m != nil {
			out[message+"."+m[1]] = strings.TrimSpace(said + " " + m[2])
		}
		if m := rpcLine.FindStringSubmatch(line); m != nil {
			out[m[1]] = said
		}
		above = nil
	}
	return out
}

// Paths returns the methods of each path, to check that none is missing.
func Paths() map[string][]string {
	out := map[string][]string{}
	for _, c := range Calls {
		out[c.Path] = append(out[c.Path], c.Method)
	}
	for _, p := range slices.Collect(maps.Keys(out)) {
		slices.Sort(out[p])
	}
	return out
}
