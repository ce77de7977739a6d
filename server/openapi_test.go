package server

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"grebe/server/openapi"
)

// The document lists exactly the existing calls, with their roles.
func TestOpenAPIListsEveryCall(t *testing.T) {
	want := openapi.Paths()
	roles := map[string]string{}
	for _, c := range openapi.Calls {
		roles[c.Path] = c.Role
	}
	have := map[string]*route{"/v1/users/{id}/events": eventsRoute, "/v1/batches/{id}/results": resultsRoute}
	for verb, rt := range modelVerbs {
		have["/v1/models/{id}"+verb] = rt
	}
	for verb, rt := range nodeVerbs {
		have[nodes+"{id}"+verb] = rt
	}
	for path, rt := range routes {
		if rt.op != "page" && rt.op != "openapi" {
			have[path] = rt
		}
	}
	for prefix, rt := range routesByID {
		have[prefix+"{id}"] = rt
	}
	for path, rt := range have {
		methods := slices.Sorted(maps.Keys(rt.methods))
		if !slices.Equal(methods, want[path]) || roles[path] != string(rt.role) {
			t.Errorf("%s takes %v of role %q, the document says %v of role %q", path, methods, rt.role, want[path], roles[path])
		}
		delete(want, path)
	}
	for path := range want {
		t.Errorf("the document lists %s, which there is not", path)
	}
}

func TestOpenAPIDocument(t *testing.T) {
	s := listening(t, newWorld(t))
	resp, err := client(t).Get(s.url("/openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]any
		Components struct {
			Schemas map[string]struct {
				Description string
				Properties  map[string]map[string]any
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d: %v", resp.StatusCode, err)
	}
	rank := doc.Components.Schemas["RankRequest"].Properties
	if doc.OpenAPI != "3.1.0" || rank["candidates"]["type"] != "array" ||
		!strings.Contains(rank["top_k"]["description"].(string), "all") {
		t.Errorf("RankRequest is described as %v", rank)
	}
	if item := doc.Components.Schemas["Item"]; !strings.Contains(item.Description, "catalog") {
		t.Errorf("Item is described as %q", item.Description)
	}
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	for name := range doc.Components.Schemas {
		if name != "Error" && !strings.Contains(string(text), "schemas/"+name) {
			t.Errorf("nothing refers to %s", name)
		}
	}
}
