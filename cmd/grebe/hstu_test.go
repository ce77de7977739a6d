package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/app/apptest"
	"grebe/internal/cli"
	"grebe/model/safetensors"
)

// A checkpoint of HSTU is served like any other: events come in, rankings and recommendations go out, and a
// returning user costs the new events.
func TestServeEvents(t *testing.T) {
	model := filepath.Join("..", "..", "testdata", "fixtures", "hstu", "absolute")
	r := start(t, "serve", "--model", model, "--device", "cpu", "--set", "data_dir="+t.TempDir(),
		"--listen", "127.0.0.1:0", "--admin-listen=", "--grpc-listen=", "--slo-ms", "30000")
	ask := func(path, body string) (out struct {
		Results []struct {
			ID    string
			Score float64
			Tasks map[string]float64
		}
		Usage struct {
			Cached   int `json:"cached_tokens"`
			Computed int `json:"computed_tokens"`
		}
	}) {
		t.Helper()
		status, text := r.get(t, http.MethodPost, path, body)
		if status/100 != 2 {
			t.Fatalf("%s answers %d: %s", path, status, text)
		}
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	ask("/v1/users/u/events", `{"events":[{"item":"i3","time":1,"action":1},{"item":"i7","time":2,"action":2}]}`)
	first := ask("/v1/rank", `{"user":{"id":"u"},"candidates":[{"id":"i5"},{"id":"i9"}]}`)
	ask("/v1/users/u/events", `{"events":[{"item":"i4","time":3,"action":4}]}`)
	second := ask("/v1/rank", `{"user":{"id":"u"},"candidates":[{"id":"i5"},{"id":"i9"}]}`)
	if len(first.Results) != 2 || first.Results[0].Tasks["click"] <= 0 || first.Usage.Computed != 4 ||
		second.Usage.Cached != 2 || second.Usage.Computed != 3 {
		t.Errorf("the first ranking is %+v, the second %+v", first, second)
	}
	found := ask("/v1/recommend", `{"user":{"id":"u"},"n":4,"exclude":["i1"],"exclude_seen":true}`)
	for _, f := range found.Results {
		if strings.Contains("i1 i3 i4 i7", f.ID) {
			t.Errorf("%s is recommended, but excluded", f.ID)
		}
	}
	if len(found.Results) != 4 || found.Usage.Computed != 1 {
		t.Errorf("recommended %+v", found)
	}
	if status, text := r.get(t, http.MethodGet, "/v1/models", ""); status != http.StatusOK ||
		!strings.Contains(text, `"scoring":"tasks"`) {
		t.Errorf("/v1/models answers %d: %s", status, text)
	}
	if code := r.stop(t); code != cli.Done {
		t.Errorf("exits with %d", code)
	}
}

// Items whose rows are in a table of embeddings score as those of the checkpoint do.
func TestServeEventsFromATable(t *testing.T) {
	fixture, err := filepath.Abs(filepath.Join("..", "..", "testdata", "fixtures", "hstu", "absolute"))
	if err != nil {
		t.Fatal(err)
	}
	weights, err := safetensors.Open(fixture)
	if err != nil {
		t.Fatal(err)
	}
	defer weights.Close()
	items, err := weights.Tensor("_embedding_collection.embeddings.item_id.weight")
	if err != nil {
		t.Fatal(err)
	}
	dir, checkpoint := t.TempDir(), apptest.WithoutRetrieval(t, fixture)
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("rows.f32", string(items.Data))
	file := write("grebe.yaml", fmt.Sprintf(`listen: 127.0.0.1:0
grpc_listen: ""
admin_listen: ""
device: cpu
slo_ms: 30000
data_dir: %s
tables:
  - {name: items, store: file, file: rows.f32, dim: 32}
models:
  - {name: own, path: %s}
  - {name: table, path: %s, item_table: items}
`, filepath.Join(dir, "data"), fixture, checkpoint))
	r := start(t, "serve", "-c", file)
	answer := func(model string) (results string) {
		status, text := r.get(t, http.MethodPost, "/v1/rank",
			`{"model":"`+model+
				`","user":{"events":[{"item":"i3","action":1},{"item":"i7","action":2}]},"candidates":[{"id":"i5"},{"id":"i9"}]}`)
		if status != http.StatusOK {
			t.Fatalf("model %s answers %d: %s", model, status, text)
		}
		_, results, _ = strings.Cut(text, `"results":`)
		results, _, _ = strings.Cut(results, `"usage"`)
		return results
	}
	if own, table := answer("own"), answer("table"); own != table || own == "" {
		t.Errorf("with rows of the checkpoint %s, of the table %s", own, table)
	}
	if code := r.stop(t); code != cli.Done {
		t.Errorf("exits with %d", code)
	}
}
