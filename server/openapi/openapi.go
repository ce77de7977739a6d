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
	Request      string // name of a message, or names separated by |; empty: no body
	Response     string // the same for the response; empty: described by Returns
	Returns      string
	Lines        bool     // the body is NDJSON
	Query        []string // parameters
	Role         string   // role that a key needs; empty: no key needed
}

// Calls are the calls of the API.
var Calls = []Call{
	{"POST", "/v1/rank", "rank", "Order candidates for a user", "RankRequest", "RankResponse", "", false, nil, "serve"},
	{"POST", "/v1/recommend", "recommend", "Generate items of the catalog for a user", "RecommendRequest", "RecommendResponse", "", false, nil, "serve"},
	{"POST", "/v1/score", "score", "Probabilities of label tokens after a query and each item (SGLang's shape), or relevance of pairs of texts (vLLM's)", "ScoreRequest|PairsRequest", "ScoreResponse|PairsResponse", "", false, nil, "serve"},
	{"POST", "/score", "score_pairs", "As /v1/score", "PairsRequest|ScoreRequest", "PairsResponse|ScoreResponse", "", false, nil, "serve"},
	{"POST", "/v1/rerank", "rerank", "Order documents by relevance to a query (Jina's and Cohere's shape, or TEI's)", "RerankRequest|TextsRequest", "RerankResponse|TextsResponse", "", false, nil, "serve"},
	{"POST", "/rerank", "rerank_texts", "As /v1/rerank", "TextsRequest|RerankRequest", "TextsResponse|RerankResponse", "", false, nil, "serve"},
	{"POST", "/v2/rerank", "rerank_v2", "Order documents by relevance to a query (the second version of Cohere's shape)", "RerankRequest", "RerankV2Response", "", false, nil, "serve"},
	{"POST", "/v1/completions", "complete", "Paths of the catalog after a prompt, best first, as choices (the shape of beam search in SGLang and FlashRec)",
		"CompletionRequest", "CompletionResponse", "", false, nil, "serve"},
	{"POST", "/v1/chat/completions", "chat", "As /v1/completions, for the messages of a chat", "ChatRequest", "ChatResponse", "", false, nil, "serve"},
	{"GET", "/v1/models", "list_models", "What is loaded", "", "ListModelsResponse", "", false, nil, "serve"},
	{"GET", "/v1/models/{id}", "get_model", "A model: its checkpoint, and how far a reload is", "", "Model", "", false, nil, "serve"},
	{"POST", "/v1/models/{id}:reload", "reload_model", "Bring up the checkpoint that the configuration names now beside the one that serves, and swap them", "ReloadModelRequest", "Model", "", false, nil, "admin"},
	{"POST", "/v1/models/{id}:rollback", "rollback_model", "Bring back the checkpoint before the one that serves, with its settings",
		"RollbackModelRequest", "Model", "", false, nil, "admin"},
	{"GET", "/v1/items", "list_items", "Some ids of items, for people who look around", "", "", "ids and whether there are more", false, []string{"prefix", "limit", "random", "q"}, "catalog"},
	{"GET", "/v1/items/{id}", "get_item", "An item", "", "Item", "", false, nil, "catalog"},
	{"PUT", "/v1/items/{id}", "put_item", "Add or replace an item", "Item", "Item", "", false, nil, "catalog"},
	{"DELETE", "/v1/items/{id}", "delete_item", "Remove an item and what is cached of it", "", "", "nothing", false, nil, "catalog"},
	{"POST", "/v1/items:batch", "put_items", `Add, replace or remove items: a line each, {"delete": "id"} to remove`, "Item", "BatchResponse", "", true, []string{"import", "end"}, "catalog"},
	{"POST", "/v1/items:check", "check_items", "Say what lines of /v1/items:batch would leave each model to generate, without a change", "Item", "", "numbers of lines, and per model of items before and after", true, nil, "catalog"},
	{"GET", "/v1/items:index", "get_index", "How far each model is with computing items before a request needs them", "", "",
		"per model: state, items, left, computed, tokens, seconds", false, nil, "catalog"},
	{"POST", "/v1/items:index", "index_items", "Have models compute all items now, in the time that requests leave", "", "",
		"as GET; 202", false, []string{"model"}, "catalog"},
	{"GET", "/v1/users", "list_users", "Some ids of users, for people who look around", "", "", "ids and whether there are more", false, []string{"prefix", "limit", "random"}, "catalog"},
	{"GET", "/v1/users/{id}", "get_user", "A user", "", "User", "", false, nil, "catalog"},
	{"PUT", "/v1/users/{id}", "put_user", "Add or replace a user", "User", "User", "", false, nil, "catalog"},
	{"DELETE", "/v1/users/{id}", "delete_user", "Remove a user and what is cached for them, everywhere", "", "", "nothing", false, nil, "catalog"},
	{"POST", "/v1/users:batch", "put_users", `Add, replace or remove users: a line each, {"delete": "id"} to remove`, "User", "BatchResponse", "", true, nil, "catalog"},
	{"POST", "/v1/users/{id}/events", "append_events", "Add what a user did", "AppendEventsRequest", "AppendEventsResponse", "", false, nil, "catalog"},
	{"POST", "/v1/users:check", "check_users", "What users:batch with these lines would change; nothing is changed", "User", "", "counts and errors", true, nil, "catalog"},
	{"POST", "/v1/events:check", "check_events", "What events:batch with these lines would change; nothing is changed", "", "", "counts and errors", true, nil, "catalog"},
	{"POST", "/v1/events:batch", "append_events_batch", `Add what many users did: a line each, {"user": "u1", "item": "i1", "time": 1700000000, "id": ".."}`,
		"", "BatchResponse", "", true, nil, "catalog"},
	{"GET", "/v1/catalog", "get_catalog", "The catalog and its versions", "", "CatalogResponse", "", false, nil, "catalog"},
	{"POST", "/v1/catalog:activate", "activate_catalog", "Have models generate the items of one version", "ActivateCatalogRequest", "CatalogResponse", "", false, nil, "catalog"},
	{"POST", "/v1/catalog:rollback", "rollback_catalog", "Have models generate the items of the version before", "RollbackCatalogRequest", "CatalogResponse", "", false, nil, "catalog"},
	{"GET", "/v1/tables/{id}", "get_rows", "Rows of a table of embeddings", "", "", `a line per key: {"key": 17, "row": [..]}`, false, []string{"key"}, "catalog"},
	{"POST", "/v1/tables/{id}", "put_rows", `Write or delete rows of a table: a line each, {"key": 17, "row": [..]} or {"key": 17, "delete": true}`, "", "", "how many were put and deleted", true, nil, "catalog"},
	{"GET", "/v1/hot", "get_hot", "Users and items that are asked for most", "", "", "ids and counts", false, nil, "admin"},
	{"GET", "/v1/history", "get_history", "Readings of the dashboard's metrics since the server started", "", "",
		"now, and readings with their time in milliseconds and metrics as text", false, nil, "admin"},
	{"POST", "/v1/batches", "create_batch", "Answer requests, one per line, in the time that others leave; op is rank or recommend",
		"RankRequest|RecommendRequest", "", "id, op, state, lines, done, created; 202", true, []string{"op", "id"}, "serve"},
	{"GET", "/v1/batches/{id}", "get_batch", "How far a batch is", "", "", "as POST /v1/batches", false, nil, "serve"},
	{"DELETE", "/v1/batches/{id}", "cancel_batch", "End a batch; its results so far stay", "", "", "as POST /v1/batches", false, nil, "serve"},
	{"GET", "/v1/batches/{id}/results", "get_results", "The results of a batch that has ended; 409 before", "", "",
		"a line per request, in order: the answer without times, or an error", false, nil, "serve"},
	{"GET", "/v1/backup", "get_backup", "A copy of items, users, versions and tables, which grebe backup receives", "", "",
		"a stream of files", false, nil, "admin"},
	{"GET", "/v1/cluster", "get_cluster", "The cluster as this process sees it; 404 if it belongs to none", "", "",
		"name, self, coordinator, epoch, routing, nodes, placement, transfers, changes", false, nil, "admin"},
	{"POST", "/v1/cluster/nodes/{id}:drain", "drain_node", "Send a node no new requests, until undrain", "", "",
		"as GET /v1/cluster", false, nil, "admin"},
	{"POST", "/v1/cluster/nodes/{id}:undrain", "undrain_node", "Send a drained node requests again", "", "",
		"as GET /v1/cluster", false, nil, "admin"},
	{"POST", "/v1/cluster/nodes/{id}:leave", "leave_cluster",
		"Prepare the process that is asked to be stopped: it is not ready, and others send it no new requests", "", "",
		"as GET /v1/cluster", false, nil, "admin"},
	{"GET", "/v2/health/live", "live", "The process answers", "", "", `{"live": true}`, false, nil, ""},
	{"GET", "/v2/health/ready", "ready", "Requests are answered; 503 while not", "", "", `{"ready": true}; "degraded" lists what is wrong all the same`, false, nil, ""},
	{"GET", "/health", "health", "As /v2/health/ready", "", "", `{"ready": true}`, false, nil, ""},
	{"GET", "/livez", "livez", "As /v2/health/live", "", "", `{"live": true}`, false, nil, ""},
	{"GET", "/readyz", "readyz", "As /v2/health/ready", "", "", `{"ready": true}`, false, nil, ""},
	{"GET", "/metrics", "metrics", "Prometheus' text format", "", "", "text", false, nil, "admin"},
}

// Document returns the description as JSON.
func Document(version string) []byte {
	said := comments(grebev1.Source)
	schemas := object{"Error": errorSchema()}
	paths := object{}
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
	doc, err := json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{"title": "Grebe", "version": version, "license": object{"name": "Apache 2.0", "identifier": "Apache-2.0"},
			"description": "A server for generative recommenders: ranks candidates with language models and generates items of a catalog."},
		"servers":  []object{{"url": "/", "description": "The server that this document came from."}},
		"tags":     tags,
		"paths":    paths,
		"security": []object{{}, {"key": []string{}}},
		"components": object{
			"schemas":         schemas,
			"securitySchemes": object{"key": object{"type": "http", "scheme": "bearer", "description": "Where the server has keys; see `grebe key`."}},
		},
	}, "", " ")
	if err != nil {
		panic(err) // cannot fail: maps of strings and lists
	}
	return append(doc, '\n')
}

func messages() protoreflect.MessageDescriptors {
	return grebev1.File_grebe_v1_grebe_proto.Messages()
}

func (c *Call) describe() object {
	ok := object{"description": c.Returns}
	if c.Response != "" {
		ok = object{"description": c.Summary, "content": object{"application/json": object{"schema": oneOf(c.Response)}}}
	}
	failed := object{"description": "What is wrong, and where", "content": object{"application/json": object{"schema": ref("Error")}}}
	out := object{"operationId": c.Op, "tags": []string{c.tag()}, "summary": c.Summary, "responses": object{"2XX": ok, "4XX": failed, "5XX": failed}}
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
		if example := examples[c.Op]; example != "" {
			body["example"] = json.RawMessage(example)
		}
		out["requestBody"] = object{"required": true, "content": object{kind: body}}
	}
	var params []object
	if strings.Contains(c.Path, "{id}") {
		params = append(params, object{"name": "id", "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for _, q := range c.Query {
		params = append(params, object{"name": q, "in": "query", "schema": object{"type": map[bool]string{true: "integer", false: "string"}[q == "limit"]}})
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
		"properties": object{"code": text, "message": text, "field": object{"type": "string", "description": "Path of the field in question."}}}}}
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
		return ref(string(f.Message().Name()))
	}
	return object{"type": "integer"}
}

var (
	messageLine = regexp.MustCompile(`^message (\w+) \{`)
	fieldLine   = regexp.MustCompile(`^\s+(?:repeated |optional )?[\w<>, ]+ (\w+) = \d+; // (.*)$`)
)

// comments returns the comments of a proto file on messages and fields.
func comments(source string) map[string]string {
	out := map[string]string{}
	var above []string
	message := ""
	for s := bufio.NewScanner(strings.NewReader(source)); s.Scan(); {
		line := s.Text()
		if text, ok := strings.CutPrefix(line, "// "); ok {
			above = append(above, text)
			continue
		}
		if m := messageLine.FindStringSubmatch(line); m != nil {
			message = m[1]
			out[message] = strings.Join(above, " ")
		}
		if m := fieldLine.FindStringSubmatch(line); m != nil {
			out[message+"."+m[1]] = m[2]
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
