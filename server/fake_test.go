package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/engine"
	"grebe/plan"
	"grebe/prompt"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	vocab     = 400 // bytes, then tokens without a text
	positions = 5000
	yes, no   = 301, 302
)

var instruction = []int32{390, 391}
var preamble = []int32{399}

// bytesTokenizer has a token per byte.
type bytesTokenizer struct{}

func (bytesTokenizer) AppendEncode(dst []int32, text string) []int32 {
	for _, b := range []byte(text) {
		dst = append(dst, int32(b))
	}
	return dst
}

func (bytesTokenizer) TokenID(string) (int32, bool) { return 0, false }

// logit is the model of these tests: a number in (−4, 4) that depends on every token that an answer
// sees, in order, and on the token asked for.
func logit(id int32, seen ...[]int32) float32 {
	h := fnv.New64a()
	for _, tokens := range append(seen, []int32{-1, id}) {
		for _, t := range tokens {
			var b [4]byte
			binary.LittleEndian.PutUint32(b[:], uint32(t))
			h.Write(b[:])
		}
	}
	return float32(h.Sum64()>>11)/(1<<53)*8 - 4
}

// fakeRunner answers with logit. before, if set, runs first and may fail or panic.
type fakeRunner struct {
	mu     sync.Mutex
	before func(context.Context, *engine.Job) error
}

func (f *fakeRunner) set(before func(context.Context, *engine.Job) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

func (f *fakeRunner) Do(ctx context.Context, j *engine.Job) (*engine.Result, error) {
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	if before != nil {
		if err := before(ctx, j); err != nil {
			return nil, err
		}
	}
	if err := j.Plan.Validate(vocab, positions); err != nil {
		return nil, err
	}
	res := &engine.Result{Computed: j.Plan.Tokens(), Queue: 1500 * time.Microsecond, Compute: 2 * time.Millisecond, BatchTokens: 64}
	for _, w := range j.Want {
		s := &j.Plan.Segments[w.Segment]
		if len(s.Tokens) == 0 {
			panic("an answer is wanted of an empty segment")
		}
		logits := make([]float32, len(w.IDs))
		for i, id := range w.IDs {
			logits[i] = logit(id, seenBy(j.Plan, w.Segment)...)
		}
		res.Logits = append(res.Logits, logits)
	}
	return res, nil
}

func seenBy(p *plan.Plan, segment int) [][]int32 {
	var out [][]int32
	for _, i := range p.Segments[segment].Sees {
		out = append(out, p.Segments[i].Tokens)
	}
	return append(out, p.Segments[segment].Tokens)
}

func newBuilder(t testing.TB, tok prompt.Tokenizer) *prompt.Builder {
	t.Helper()
	b, err := prompt.New(prompt.Config{
		Preamble: prompt.Text{Tokens: preamble}, Instruction: prompt.Text{Tokens: instruction},
		User: "{text}{history}", Separator: "|",
	}, tok, vocab)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// world is a server with models "id" (identifier), "pw" (pointwise) and "raw" (no tokenizer), and a
// small catalog.
type world struct {
	*Server
	runner  *fakeRunner
	handler http.Handler
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	t.Helper()
	cat := catalog.New(catalog.Options{})
	for i, text := range []string{"anvil", "bolt", "crate"} {
		id := int32(310 + i)
		if _, err := cat.PutItem(&grebev1.Item{Id: "i" + string(rune('1'+i)), Text: &text, Identifier: &id}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cat.PutUser(&grebev1.User{Id: "u1", History: []string{"i1", "gone", "i3"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := cat.PutItem(&grebev1.Item{Id: "plain/1", Tokens: []int32{7, 8}}); err != nil {
		t.Fatal(err)
	}
	f := &fakeRunner{}
	b := newBuilder(t, bytesTokenizer{})
	cfg := Config{
		Models: []Model{
			{Name: "id", Runner: f, Prompt: b, Vocab: vocab, Positions: positions, Architecture: "Qwen3ForCausalLM", DType: "bf16"},
			{Name: "pw", Runner: f, Prompt: b, Vocab: vocab, Positions: positions, Scoring: Scoring{Kind: Pointwise, Yes: yes, No: no}},
			{Name: "raw", Runner: f, Prompt: newBuilder(t, nil), Vocab: vocab},
		},
		Catalog: cat,
		SLO:     10 * time.Second, // the machine may be slow; deadlines are tested with their own
		MaxBody: 1 << 20,
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.SetReady(true)
	return &world{Server: s, runner: f, handler: s.Handler()}
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

// decodeJSON reads a response strictly, so that fields that a test does not know are told.
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

// bareBuilder has no preamble and no instruction.
func bareBuilder(t testing.TB) *prompt.Builder {
	t.Helper()
	b, err := prompt.New(prompt.Config{}, bytesTokenizer{}, vocab)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// constantRunner costs next to nothing.
var constantRunner = runnerFunc(func(j *engine.Job) *engine.Result {
	res := &engine.Result{Logits: make([][]float32, len(j.Want))}
	for i, w := range j.Want {
		res.Logits[i] = make([]float32, len(w.IDs))
	}
	return res
})
