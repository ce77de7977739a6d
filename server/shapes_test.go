package server

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"grebe/prompt"
)

// recording is a request of another server's client, and the fields of the answer that the client reads.
type recording struct {
	Client string          `json:"client"`
	Path   string          `json:"path"`
	Body   json.RawMessage `json:"body"`
	Reads  []string        `json:"reads"` // paths such as results.0.index
}

// Clients of other servers get the fields that they read, for their recorded requests.
func TestRecordedClients(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "clients.json"))
	if err != nil {
		t.Fatal(err)
	}
	var recordings []recording
	if err := json.Unmarshal(raw, &recordings); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	for _, r := range recordings {
		rec := w.ask("POST", r.Path, string(r.Body))
		if rec.Code != http.StatusOK {
			t.Errorf("%s: %d %s", r.Client, rec.Code, rec.Body)
			continue
		}
		var got any
		decode(t, rec, &got)
		for _, path := range r.Reads {
			if !within(got, strings.Split(path, ".")) {
				t.Errorf("%s: the answer has no %s: %v", r.Client, path, got)
			}
		}
	}
}

// decode reads some fields of an answer.
func decode(t *testing.T, rec *httptest.ResponseRecorder, into any) {
	t.Helper()
	if err := json.Unmarshal(rec.Body.Bytes(), into); err != nil || rec.Code != http.StatusOK {
		t.Fatalf("%d %s: %v", rec.Code, rec.Body, err)
	}
}

// within reports whether a decoded value has something at a path.
func within(v any, path []string) bool {
	if len(path) == 0 {
		return v != nil
	}
	switch v := v.(type) {
	case map[string]any:
		return within(v[path[0]], path[1:])
	case []any:
		return path[0] == "0" && len(v) > 0 && within(v[0], path[1:])
	}
	return false
}

// All formats of reranking return the same scores.
func TestShapesAgree(t *testing.T) {
	w := newWorld(t)
	docs := []string{"red", "green", "blue"}
	want := make([]float64, len(docs))
	for i, d := range docs {
		seen := slices.Concat(preamble, text("colour"), text(d), instruction)
		want[i] = naiveSoftmax([]float32{logit(yes, seen), logit(no, seen)})[0]
	}
	check := func(shape string, got []float64) {
		t.Helper()
		for i := range want {
			if math.Abs(got[i]-want[i]) > 1e-9 {
				t.Errorf("%s: %v, want %v", shape, got, want)
				return
			}
		}
	}
	type result struct {
		Index     int
		Score     float64
		Relevance float64 `json:"relevance_score"`
		Text      string
	}
	ordered := func(shape string, results []result) []float64 {
		t.Helper()
		got := make([]float64, len(docs))
		for k, r := range results {
			got[r.Index] = r.Score + r.Relevance
			if k > 0 && got[results[k-1].Index] < got[r.Index] {
				t.Errorf("%s: not best first: %+v", shape, results)
			}
		}
		return got
	}

	var tei []result
	decode(t,
		w.ask("POST", "/rerank", `{"query":"colour","texts":["red","green","blue"],"raw_scores":false,"return_text":true}`),
		&tei)
	check("TEI", ordered("TEI", tei))
	if tei[0].Text != docs[tei[0].Index] {
		t.Errorf("TEI: text of %+v", tei[0])
	}
	decode(t, w.ask("POST", "/rerank", `{"query":"colour","texts":["red","green","blue"]}`), &tei)

	var cohere struct{ Results []result }
	decode(t,
		w.ask("POST", "/v2/rerank",
			`{"model":"pw","query":"colour","documents":["red","green","blue"],"max_tokens_per_doc":99}`), &cohere)
	check("Cohere v2", ordered("Cohere v2", cohere.Results))

	var jina struct{ Results []result }
	decode(t, w.ask("POST", "/v1/rerank", `{"query":"colour","documents":["red",{"text":"green"},"blue"]}`), &jina)
	check("Jina", ordered("Jina", jina.Results))

	var vllm struct{ Data []result }
	scores := func(body string) []float64 {
		decode(t, w.ask("POST", "/score", body), &vllm)
		out := make([]float64, len(vllm.Data))
		for i, r := range vllm.Data {
			if r.Index != i {
				t.Errorf("vLLM: %+v at %d", r, i)
			}
			out[i] = r.Score
		}
		return out
	}
	check("vLLM, one to many", scores(`{"model":"pw","text_1":"colour","text_2":["red","green","blue"]}`))
	check("vLLM, pairs", scores(`{"model":"pw","text_1":["colour","colour","colour"],"text_2":["red","green","blue"]}`))
	if got := scores(`{"model":"pw","text_1":["other","colour"],"text_2":["red","red"]}`); math.Abs(
		got[1]-want[0]) > 1e-9 || got[0] == got[1] {
		t.Errorf("vLLM: pairs with different queries: %v, want the second %v", got, want[0])
	}
}

func TestPairErrors(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ body, field string }{
		{`{"model":"pw","text_1":"q"}`, "text_2"},
		{`{"model":"pw","text_2":"q"}`, "text_1"},
		{`{"model":"pw","text_1":["a","b"],"text_2":["a","b","c"]}`, "text_1"},
		{`{"model":"pw","text_1":["a",""],"text_2":["a","b"]}`, "text_1[1]"},
		{`{"model":"pw","text_1":"q","text_2":["a",""]}`, "text_2[1]"},
	} {
		wantError(t, w.ask("POST", "/v1/score", c.body), 400, "invalid_argument", c.field)
	}
	wantError(t, w.ask("POST", "/score", `{"model":"id","text_1":"q","text_2":"a"}`), 422, "unprocessable", "model")
}

// A query that the prompt would not show is refused. If the model has a query template, it is read.
func TestQueryIsNeverDropped(t *testing.T) {
	pointwise := func(user, query string) func(*setup) {
		return func(c *setup) {
			b, err := prompt.New(prompt.Config{User: user, Query: query,
				Instruction: prompt.Text{Tokens: instruction}}, bytesTokenizer{}, vocab)
			if err != nil {
				t.Fatal(err)
			}
			c.Models[1].Prompt = b
		}
	}
	w := newWorld(t, pointwise("bought {history}", ""))
	rec := w.ask("POST", "/v1/rerank", `{"model":"pw","query":"colour","documents":["red"]}`)
	wantError(t, rec, 422, "unprocessable", "query")
	if !strings.Contains(rec.Body.String(), "{text}") {
		t.Errorf("the error does not name {text}: %s", rec.Body)
	}
	rec = w.ask("POST", "/v1/rank", `{"model":"pw","user":{"text":"colour"},"candidates":[{"text":"red"}]}`)
	wantError(t, rec, 422, "unprocessable", "user.text")
	w = newWorld(t, pointwise("{text}", ""))
	rec = w.ask("POST", "/v1/rank", `{"model":"pw","user":{"history":["i1"]},"candidates":[{"id":"i1"}]}`)
	wantError(t, rec, 422, "unprocessable", "user.history")
	rec = w.ask("POST", "/v1/rank", `{"model":"pw","user":{"text":"colour","history":["i1"]},"candidates":[{"id":"i1"}]}`)
	if rec.Code != 200 { // the text is read; a recommendation may need the history for exclude_seen
		t.Errorf("a history beside a text: %d %s", rec.Code, rec.Body)
	}

	w = newWorld(t, pointwise("bought {history}", "wants {text}"))
	var got rerankBody
	decode(t, w.ask("POST", "/v1/rerank", `{"model":"pw","query":"colour","documents":["red"]}`), &got)
	seen := slices.Concat(text("wants colour"), text("red"), instruction)
	if want := naiveSoftmax([]float32{logit(yes, seen), logit(no, seen)})[0]; math.Abs(got.Results[0].Score-want) > 1e-9 {
		t.Errorf("score %v, want %v", got.Results[0].Score, want)
	}
}

func TestHealthAsOtherServersHaveIt(t *testing.T) {
	if rec := newWorld(t).ask("GET", "/health", ""); rec.Code != http.StatusOK {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// Reflection lists the service to clients with a key, as grpcurl list does.
func TestReflection(t *testing.T) {
	s, keys := guardedWorld(t)
	list := func(key string) ([]string, error) {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+key)
		conn := dial(t, s.grpc.Addr().String())
		stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
		if err != nil {
			return nil, err
		}
		err = stream.Send(&reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
		if err != nil && !errors.Is(err, io.EOF) { // EOF: the call was refused, and Recv returns the reason
			return nil, err
		}
		resp, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		var names []string
		for _, svc := range resp.GetListServicesResponse().GetService() {
			names = append(names, svc.Name)
		}
		return names, nil
	}
	names, err := list(keys["asks"])
	if err != nil || !slices.Contains(names, "grebe.v1.Grebe") {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := list(keys["stranger"]); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a key: %v", err)
	}
}
