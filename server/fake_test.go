package server

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"grebe/engine"
	"grebe/serve"
	"grebe/serve/servetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	vocab     = servetest.Vocab
	positions = servetest.Positions
	yes, no   = servetest.Yes, servetest.No
)

var (
	instruction = servetest.Instruction
	preamble    = servetest.Preamble
	logit       = servetest.Logit
	newBuilder  = servetest.NewBuilder
	bareBuilder = servetest.BareBuilder
)

type bytesTokenizer = servetest.Tokenizer

// limits configures a Server. setup also configures its service.
type (
	limits = Config
	setup  struct {
		serve.Config
		limits
	}
)

// world is a server with models "id" (identifier), "pw" (pointwise) and "raw" (no tokenizer), and a
// small catalog.
type world struct {
	*Server
	*serve.Service
	runner  *servetest.Runner
	handler http.Handler
}

func newWorld(t testing.TB, change ...func(*setup)) *world {
	t.Helper()
	f := &servetest.Runner{}
	b := newBuilder(t, bytesTokenizer{})
	var cfg setup
	cfg.Models = []serve.Model{
		{Name: "id", Runner: f, Prompt: b, Vocab: vocab, Positions: positions,
			Architecture: "Qwen3ForCausalLM", DType: "bf16"},
		{Name: "pw", Runner: f, Prompt: b, Vocab: vocab, Positions: positions,
			Scoring: serve.Scoring{Kind: serve.Pointwise, Yes: yes, No: no}},
		{Name: "raw", Runner: f, Prompt: newBuilder(t, nil), Vocab: vocab},
	}
	cfg.Catalog = servetest.NewCatalog(t)
	cfg.SLO = 10 * time.Second // the machine may be slow; deadlines are tested with their own
	cfg.MaxBody = 1 << 20
	for _, c := range change {
		c(&cfg)
	}
	w := opened(t, cfg)
	w.runner = f
	return w
}

// worldOf returns a server of other models.
func worldOf(t testing.TB, cfg serve.Config) *world { return opened(t, setup{Config: cfg}) }

// opened returns a world that is ready.
func opened(t testing.TB, cfg setup) *world {
	t.Helper()
	service, err := serve.New(cfg.Config)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(service, cfg.limits)
	if err != nil {
		t.Fatal(err)
	}
	s.SetReady(true)
	return &world{Server: s, Service: service, handler: s.Handler()}
}

// ask sends a request to the handler.
func (w *world) ask(method, target, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	return rec
}

// decodeJSON decodes a response strictly, so that unknown fields fail the test.
func decodeJSON(t testing.TB, body io.Reader, into any) {
	t.Helper()
	raw, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("response %s: %v", raw, err)
	}
}

type errorBody struct {
	Error struct{ Code, Message, Field string }
}

// wantError checks a response's status, code and field.
func wantError(t testing.TB, rec *httptest.ResponseRecorder, status int, code, field string) {
	t.Helper()
	var e errorBody
	if got := rec.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q of an error", got)
	}
	body := rec.Body.String()
	decodeJSON(t, strings.NewReader(body), &e)
	if rec.Code != status || e.Error.Code != code || e.Error.Field != field {
		t.Errorf("status %d, body %s; want %d, code %q, field %q", rec.Code, body, status, code, field)
	}
	if field != "" && !strings.HasPrefix(e.Error.Message, field+": ") {
		t.Errorf("message %q does not begin with the field %q", e.Error.Message, field)
	}
}

// constantRunner costs next to nothing.
var constantRunner = runnerFunc(func(j *engine.Job) *engine.Result {
	res := &engine.Result{Logits: make([][]float32, len(j.Want))}
	for i, w := range j.Want {
		res.Logits[i] = make([]float32, len(w.IDs))
	}
	return res
})

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
