package openapi

import (
	"maps"
	"strings"
)

// tags group the calls.
var tags = []object{
	{"name": "serving", "description": "Rank candidates and recommend items."},
	{"name": "compatible", "description": "The same in the shapes of other servers. Unknown fields are ignored."},
	{"name": "catalog", "description": "Items, users, their events, and versions of the catalog."},
	{"name": "tables", "description": "Tables of embeddings."},
	{"name": "models", "description": "Loaded models."},
	{"name": "operations", "description": "Health, metrics, what is asked for most, backups and the cluster."},
}

// tag returns the group of a call.
func (c *Call) tag() string {
	for _, g := range []struct{ part, tag string }{
		{"rerank", "compatible"}, {"score", "compatible"}, {"completions", "compatible"},
		{"/v1/models", "models"}, {"/v1/tables", "tables"}, {"/v1/cluster", "operations"},
		{"/v1/backup", "operations"}, {"/v1/hot", "operations"}, {"/v1/history", "operations"}, {"/v1/batches", "serving"},
		{"/v1/rank", "serving"}, {"/v1/recommend", "serving"}, {"/v1/", "catalog"},
	} {
		if strings.Contains(c.Path, g.part) {
			return g.tag
		}
	}
	return "operations"
}

// required lists the fields that every message of a type has.
var required = map[string][]string{
	"RankRequest":            {"user", "candidates"},
	"RankResponse":           {"model", "request_id", "prefix", "node", "results", "usage", "timing_ms"},
	"RecommendRequest":       {"user"},
	"RecommendResponse":      {"model", "request_id", "node", "results", "catalog_version", "usage", "timing_ms"},
	"ScoreRequest":           {"query", "items", "label_token_ids"},
	"ScoreResponse":          {"object", "model", "scores", "usage"},
	"RerankRequest":          {"query", "documents"},
	"RerankResponse":         {"object", "id", "model", "results", "usage"},
	"Relevance":              {"index", "relevance_score"},
	"ListModelsResponse":     {"object", "data"},
	"Model":                  {"id", "object", "created", "owned_by"},
	"AppendEventsRequest":    {"events"},
	"ActivateCatalogRequest": {"version"},
}

var (
	text  = object{"type": "string"}
	texts = object{"type": "array", "items": text}
	count = object{"type": "integer"}
	usage = ref("CompatibleUsage")
)

func shape(description string, fields []string, properties object) object {
	return object{"type": "object", "description": description, "required": fields, "properties": properties}
}

// foreign are messages of other servers' clients.
var foreign = map[string]object{
	"PairsRequest": shape("Pairs of texts, as vLLM takes them.", []string{"text_1", "text_2"}, object{
		"model":  text,
		"text_1": object{"oneOf": []object{text, texts}, "description": "One text for all of text_2, or one for each."},
		"text_2": object{"oneOf": []object{text, texts}},
	}),
	"PairsResponse": shape("Relevance of each pair.", listFields("data"), object{
		"id": text, "object": text, "created": count, "model": text, "usage": usage,
		"data": object{"type": "array", "items": object{"type": "object", "required": []string{"index", "object", "score"},
			"properties": object{"index": count, "object": text, "score": object{"type": "number"}}}},
	}),
	"TextsRequest": shape("Texts to rerank, as TEI takes them.", []string{"query", "texts"}, object{
		"query": text, "texts": texts, "return_text": object{"type": "boolean"},
	}),
	"TextsResponse": {"type": "array", "description": "Texts, best first.", "items": object{"type": "object",
		"required":   []string{"index", "score"},
		"properties": object{"index": count, "score": object{"type": "number"}, "text": text}}},
	"CompletionRequest": shape("A prompt, in the form of OpenAI's API.", []string{"prompt"}, sampled(object{
		"prompt": object{"oneOf": []object{text, {"type": "array", "items": count}},
			"description": "A text or its tokens: the whole prompt."},
	})),
	"ChatRequest": shape("A chat, in the form of OpenAI's API.", []string{"messages"}, sampled(object{
		"messages": object{"type": "array", "items": object{"type": "object", "required": []string{"role", "content"},
			"properties": object{"content": text,
				"role": object{"type": "string", "enum": []string{"system", "user", "assistant"}}}}},
		"chat_template_kwargs": object{"type": "object",
			"description": "Variables of the checkpoint's chat template: texts, numbers, booleans or null."},
	})),
	"ChatResponse": completions(object{
		"message": object{"type": "object", "properties": object{"role": text, "content": text}}}),
	"CompletionResponse": completions(object{"text": text}),
	"RerankV2Response": shape("Documents, best first.", []string{"id", "results", "meta"}, object{
		"id": text, "results": object{"type": "array", "items": ref("Relevance")},
		"meta": object{"type": "object", "properties": object{
			"api_version": object{"type": "object", "properties": object{"version": text}}}},
	}),
}

// listFields returns the fields that a response with a list always has.
func listFields(list string) []string {
	return []string{"id", "object", "created", "model", list, "usage"}
}

// sampled adds the fields that requests for completions have in common.
func sampled(fields object) object {
	for name, field := range (object{
		"model":      text,
		"n":          described(count, "Choices, 1 to 10000; 1."),
		"best_of":    described(count, "Beams, at least n; as beam_width of /v1/recommend."),
		"max_tokens": described(count, "At least the codes of a path."),
		"temperature": described(object{"type": "number"},
			"0: the best paths; above: paths are sampled without replacement. 0."),
		"seed": count, "deadline_ms": described(count, "As of /v1/recommend."),
	}) {
		fields[name] = field
	}
	return fields
}

func described(schema object, description string) object {
	out := maps.Clone(schema)
	out["description"] = description
	return out
}

// completions describes a response whose choices have the content.
func completions(content object) object {
	choice := object{"index": count, "finish_reason": text, "logprobs": object{"type": "null"},
		"item":  described(text, "The first item with these codes."),
		"codes": object{"type": "array", "items": count},
		"sglext": object{"type": "object", "properties": object{
			"sequence_score": described(object{"type": "number"}, "Log-probability of the path.")}}}
	maps.Copy(choice, content)
	return shape("Paths of the catalog, best first.", listFields("choices"), object{
		"id": text, "object": text, "created": count, "model": text, "usage": usage, "seed": count, "notes": texts,
		"choices": object{"type": "array", "items": object{"type": "object", "properties": choice}},
	})
}
