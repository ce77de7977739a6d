package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/compute/cpu"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/generate"
	"grebe/kv"
	"grebe/model"
	"grebe/model/modeltest"
	"grebe/pool"
	"grebe/prompt"
	"grebe/residency"
	"grebe/reuse"
	"grebe/serve"
)

// recommender is a small real model that generates the items of a catalog. Its models are "m"; "bare", without an
// instruction; "deep", whose codes no item has; and "ranks", without codes.
type recommender struct {
	*world
	cat   *catalog.Catalog
	past  past
	items map[string]*grebev1.Item // those that "m" can generate
	model model.Model
	do    reuse.Do
	// generator is that of model "m".
	generator *generate.Generator
}

// past records the codes of all items that can be generated, by id, at every version of a catalog.
type past struct {
	mu       sync.Mutex
	now      map[string][]int32
	versions map[string]map[string][]int32
}

func (p *past) hear(c catalog.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		p.now, p.versions = map[string][]int32{}, map[string]map[string][]int32{}
	}
	delete(p.now, c.ID)
	if c.NewItem != nil && c.NewItem.Codes != nil && c.ID != "foreign" {
		p.now[c.ID] = c.NewItem.Codes
	}
	p.versions[strconv.FormatUint(c.Version, 10)] = maps.Clone(p.now)
}

func (p *past) at(version string) map[string][]int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.versions[version]
}

// levels are the sizes of the codes; level l's tokens begin at 300 + 20 l.
var levels = []int32{6, 5, 4}

func newRecommender(t *testing.T) *recommender {
	t.Helper()
	return recommenderOf(t, codeBuilder(t, len(levels), true))
}

// recommenderOf is newRecommender with the prompts of "m".
func recommenderOf(t *testing.T, b *prompt.Builder) *recommender {
	t.Helper()
	dev, err := cpu.New(cpu.Options{Threads: 2})
	must(t, err)
	dir := t.TempDir()
	must(t, modeltest.Write(dir, modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2,
		HeadDim: 16, Inter: 96, Vocab: vocab, MaxPositions: 1000, Seed: 5}))
	m, err := model.Open(dir, dev, model.Options{DType: "f32"})
	must(t, err)
	pages, err := pool.New(16<<20, 4096)
	must(t, err)
	store := kv.New(m.Shape(), pages)
	e, err := engine.New(m, dev, engine.Options{MaxTokens: 8192, Cache: store})
	must(t, err)
	times, err := dispatch.Profile(t.Context(), e, m.MaxPositions())
	must(t, err)
	d, err := dispatch.New([]dispatch.Engine{e}, dispatch.Options{SLO: time.Minute, Model: times})
	must(t, err)
	t.Cleanup(func() {
		d.Close()
		e.Close()
		store.Close()
		must(t, pages.Close())
		m.Close()
		dev.Close()
	})
	r := &recommender{items: map[string]*grebev1.Item{}, model: m, do: d.Do}
	r.cat = catalog.New(catalog.Options{OnChange: r.past.hear}) // before the snapshots receive the change
	r.fill(t)
	must(t, store.SetHotness(residency.HotnessConfig{Users: 100, Items: 100}))
	cache := reuse.New(b, reuse.Options{Store: store, Pool: pages, Load: d, Shape: m.Shape()})
	cfg := serve.Config{Catalog: r.cat, SLO: time.Minute, Models: []serve.Model{
		r.serves("m", b, cache), r.serves("bare", codeBuilder(t, len(levels), false), nil),
		r.serves("deep", codeBuilder(t, 1, true), nil), r.serves("ranks", newBuilder(t, bytesTokenizer{}), nil)}}
	cfg.Models[3].Generate = nil
	var targets []generate.Target
	for i := range cfg.Models[:3] {
		targets = append(targets, generate.Target{Name: cfg.Models[i].Name, Generator: cfg.Models[i].Generate, Model: m})
	}
	keeper, err := generate.NewKeeper(r.cat, generate.KeeperOptions{}, targets...)
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { keeper.Run(ctx) })
	t.Cleanup(func() { stop(); wg.Wait(); must(t, keeper.Close()) })
	cfg.Versions = keeper
	r.world, r.generator = worldOf(t, cfg), cfg.Models[0].Generate
	return r
}

// serves returns a model that runs on the recommender's engine.
func (r *recommender) serves(name string, b *prompt.Builder, cache *reuse.Cache) serve.Model {
	m := r.model
	return serve.Model{Name: name, Runner: runnerDo(r.do), Prompt: b, Cache: cache, Vocab: vocab,
		Positions: m.MaxPositions(),
		Generate:  &generate.Generator{Prompt: b, Do: r.do, Cache: cache, Shape: m.Shape()}}
}

// runnerDo is a Runner of a function.
type runnerDo reuse.Do

func (d runnerDo) Do(ctx context.Context, j *engine.Job) (*engine.Result, error) { return d(ctx, j) }

func codeBuilder(t *testing.T, depth int, instructed bool) *prompt.Builder {
	t.Helper()
	return codeBuilderWith(t, prompt.Config{}, depth, instructed)
}

// codeBuilderWith is codeBuilder with the history of a configuration.
func codeBuilderWith(t *testing.T, cfg prompt.Config, depth int, instructed bool) *prompt.Builder {
	t.Helper()
	cfg.Preamble, cfg.Instruction = prompt.Text{Tokens: preamble}, prompt.Text{Tokens: instruction}
	cfg.User, cfg.Separator = "{text}{history}", "|"
	cfg.ChatMessage, cfg.ChatEnd, cfg.Completion = "[{role}]{text};", "[assistant]", "{text}!"
	if instructed {
		cfg.GenerateInstruction = prompt.Text{Tokens: instruction}
	}
	for l := range depth {
		cfg.Codes.FirstToken = append(cfg.Codes.FirstToken, int32(300+20*l))
		cfg.Codes.Size = append(cfg.Codes.Size, levels[l])
	}
	b, err := prompt.New(cfg, bytesTokenizer{}, vocab)
	must(t, err)
	return b
}

// fill writes thirty items, of which i7 and i8 share their codes, two items that cannot be generated, and users.
func (r *recommender) fill(t *testing.T) {
	t.Helper()
	rng := rand.New(rand.NewPCG(4, 4))
	for i := range 30 {
		r.put(t, itemWith(rng, fmt.Sprint("i", i), fmt.Sprint(i%5)))
	}
	twin := itemWith(rng, "i8", "3")
	twin.Codes = r.items["i7"].Codes
	r.put(t, twin)
	for _, it := range []*grebev1.Item{{Id: "wordless", Codes: nil}, {Id: "foreign", Codes: []int32{1, 2, 77}}} {
		_, err := r.cat.PutItem(it)
		must(t, err)
	}
	for _, u := range []*grebev1.User{
		{Id: "u1", History: []string{"i3", "gone", "i4"}},
		{Id: "u2", Events: []*grebev1.Event{{Item: "i5"}, {Item: "i6"}}},
	} {
		_, err := r.cat.PutUser(u)
		must(t, err)
	}
}

func itemWith(rng *rand.Rand, id, kind string) *grebev1.Item {
	text := "thing " + id
	it := &grebev1.Item{Id: id, Text: &text, Attributes: map[string]*grebev1.Values{
		"kind": {Values: []string{kind}}, "all": {Values: []string{"yes", id}}}}
	for _, size := range levels {
		it.Codes = append(it.Codes, rng.Int32N(size))
	}
	return it
}

func (r *recommender) put(t *testing.T, it *grebev1.Item) {
	t.Helper()
	_, err := r.cat.PutItem(it)
	must(t, err)
	r.items[it.Id] = it
}

type result struct {
	ID    string  `json:"id"`
	Codes []int32 `json:"codes"`
	Score float64 `json:"score"`
	Boost float64 `json:"boost"`
}

type recommendBody struct {
	Model     string   `json:"model"`
	RequestID string   `json:"request_id"`
	Node      string   `json:"node"`
	Results   []result `json:"results"`
	Seed      *uint64  `json:"seed"`
	Fallback  string   `json:"fallback"`
	Notes     []string `json:"notes"`
	Parts     []struct {
		Kind   string `json:"kind"`
		Tokens int    `json:"tokens"`
		Cached int    `json:"cached"`
		Source string `json:"source"`
	} `json:"parts"`
	Short   bool   `json:"short"`
	Reason  string `json:"short_reason"`
	Version string `json:"catalog_version"`
	Usage   struct {
		Prompt      int            `json:"prompt_tokens"`
		Cached      int            `json:"cached_tokens"`
		Computed    int            `json:"computed_tokens"`
		User        int            `json:"user_tokens"`
		Item        int            `json:"item_tokens"`
		Instruction int            `json:"instruction_tokens"`
		BySource    map[string]int `json:"by_source"`
		Beams       int            `json:"beam_tokens"`
		Note        string         `json:"note"`
	} `json:"usage"`
	Timing map[string]float64 `json:"timing_ms"`
}

func (b *recommendBody) ids() []string {
	var out []string
	for _, x := range b.Results {
		out = append(out, x.ID)
	}
	return out
}

// recommend sends a request to model "m" with these further fields.
func (r *recommender) recommend(t *testing.T, fields string) *recommendBody {
	t.Helper()
	rec := r.ask("POST", "/v1/recommend", `{"model": "m", `+fields+`}`)
	if rec.Code != 200 {
		t.Fatalf("%s: %d, %s", fields, rec.Code, rec.Body)
	}
	var b recommendBody
	decodeJSON(t, rec.Body, &b)
	r.check(t, fields, &b)
	return &b
}

// check checks what must hold for every response.
func (r *recommender) check(t *testing.T, fields string, b *recommendBody) {
	t.Helper()
	seen := map[string]bool{}
	for i, x := range b.Results {
		it := r.items[x.ID]
		if it == nil || seen[x.ID] || !slices.Equal(x.Codes, it.Codes) {
			t.Errorf("%s: place %d: %v is unknown, comes twice or has other codes", fields, i, x)
		}
		if x.Score > 0 || i > 0 && x.Score > b.Results[i-1].Score {
			t.Errorf("%s: place %d has score %v", fields, i, x.Score)
		}
		seen[x.ID] = true
	}
	u := &b.Usage
	if u.Prompt != u.Cached+u.Computed || u.Prompt != u.User+u.Item+u.Instruction || u.Cached != u.BySource["host"] {
		t.Errorf("%s: the account does not add up: %+v", fields, u)
	}
}

func TestRecommend(t *testing.T) {
	r := newRecommender(t)
	first := r.recommend(t, `"user": {"id": "u1"}, "request_id": "r"`)
	_, _, version := r.cat.Counts()
	if len(first.Results) != 10 || first.Short || first.Version != version || first.RequestID != "r" ||
		first.Model != "m" || first.Node != "n0" {
		t.Errorf("ten of thirty items: %+v, catalog version %s", first, version)
	}
	if first.Usage.Cached != 0 || first.Usage.Beams == 0 || first.Timing["total"] <= 0 {
		t.Errorf("usage %+v, timing %v", first.Usage, first.Timing)
	}
	again := r.recommend(t, `"user": {"id": "u1"}, "n": 10, "beam_width": 128, "top_k": 128, "exclude": [], "filter": {}`)
	if !slices.Equal(again.ids(), first.ids()) || again.Usage.Cached == 0 {
		t.Errorf("the same with the defaults: %v, %d cached; want %v on the cached user", again.ids(), again.Usage.Cached,
			first.ids())
	}
	all := r.recommend(t, `"user": {"id": "u1"}, "n": 10000`)
	if len(all.Results) != 30 || !all.Short || !slices.Equal(all.ids()[:10], first.ids()) {
		t.Errorf("ten thousand of thirty: %d, short %v", len(all.Results), all.Short)
	}
	if i, j := slices.Index(all.ids(), "i7"), slices.Index(all.ids(), "i8"); j != i+1 ||
		all.Results[i].Score != all.Results[j].Score {
		t.Errorf("two items with the same codes stand at %d and %d", i, j)
	}
	total, paths := 0.0, map[string]bool{}
	for _, x := range all.Results {
		if path := fmt.Sprint(x.Codes); !paths[path] {
			paths[path] = true
			total += math.Exp(x.Score)
		}
	}
	if math.Abs(total-1) > 1e-5 {
		t.Errorf("the probabilities of all paths add up to %v", total)
	}
	if one := r.recommend(t, `"user": {"id": "u1"}, "n": 1, "beam_width": 1`); len(one.Results) != 1 {
		t.Errorf("one item with one beam: %v", one.ids())
	}
}

// A filter on an attribute that no item has is refused, and the error names the existing attributes.
func TestFilterOnAnUnknownAttribute(t *testing.T) {
	r := newRecommender(t)
	ask := func() string {
		rec := r.ask("POST", "/v1/recommend",
			`{"model": "m", "user": {"id": "u1"}, "filter": {"kindd": ["1"], "kind": ["1"]}}`)
		wantError(t, rec, 400, "invalid_argument", "filter.kindd")
		return rec.Body.String()
	}
	if text := ask(); !strings.Contains(text, `all`) || !strings.Contains(text, `kind`) || strings.Contains(text, "more") {
		t.Errorf("the error does not name the attributes: %s", text)
	}
	it := &grebev1.Item{Id: "late", Codes: []int32{0, 0, 0}, Attributes: map[string]*grebev1.Values{}}
	for i := range 30 {
		it.Attributes[fmt.Sprint("x", i)] = &grebev1.Values{Values: []string{"1"}}
	}
	r.put(t, it)
	r.until(t, "following", (*catalogBody).followed)
	if text := ask(); !strings.Contains(text, "x0") || !strings.Contains(text, "and 12 more") {
		t.Errorf("the error does not name the new attributes: %s", text)
	}
	if b := r.recommend(t, `"user": {"id": "u1"}, "filter": {"x29": ["1"]}`); !slices.Equal(b.ids(), []string{"late"}) {
		t.Errorf("a new attribute finds %v", b.ids())
	}
}

// A short answer says whether no more items are eligible or the search kept too few paths. If the client did not set
// the width, the search is widened.
func TestShortSaysWhy(t *testing.T) {
	r := newRecommender(t)
	var lines []string
	for i := range 3000 {
		lines = append(lines, fmt.Sprintf(`{"id": "x%d", "text": "t", "codes": [%d, %d, %d], "attributes": {"rare": ["%d"]}}`,
			i, i%6, i/6%5, i/30%4, i%100))
	}
	r.lines(t, "", lines...)
	ask := func(fields string) *recommendBody {
		t.Helper()
		rec := r.ask("POST", "/v1/recommend", `{"model": "m", "user": {"id": "u1"}, `+fields+`}`)
		var b recommendBody
		if err := json.Unmarshal(rec.Body.Bytes(), &b); rec.Code != 200 || err != nil {
			t.Fatalf("%d, %s, %v", rec.Code, rec.Body, err)
		}
		return &b
	}
	for _, c := range []struct {
		fields string
		n      int
		reason string
	}{
		{`"n": 40`, 40, ""},
		{`"n": 10000`, 3030, "catalog"},
		{`"n": 100, "filter": {"rare": ["7"]}`, 30, "catalog"},
		{`"n": 3000, "beam_width": 2`, -1, "beam"},
		{`"n": 31, "filter": {"rare": ["7"]}, "beam_width": 1`, -1, "beam"},
	} {
		b := ask(c.fields)
		if b.Reason != c.reason || b.Short != (c.reason != "") || c.n >= 0 && len(b.Results) != c.n {
			t.Errorf("%s: %d items, short %v because of %q; want %d and %q", c.fields, len(b.Results), b.Short, b.Reason, c.n,
				c.reason)
		}
	}
}

// Exclusions and filters remove items and change no score.
func TestRecommendEligible(t *testing.T) {
	r := newRecommender(t)
	for _, c := range []struct {
		user, fields string
		eligible     func(id string) bool
	}{
		{`{"id": "u1"}`, `"exclude": ["i1", "i2", "nobody"]`, func(id string) bool { return id != "i1" && id != "i2" }},
		{`{"id": "u1"}`, `"exclude_seen": true`, func(id string) bool { return id != "i3" && id != "i4" }},
		{`{"id": "u1"}`, `"exclude_seen": false`, func(string) bool { return true }},
		{`{"id": "u2"}`, `"exclude_seen": true, "exclude": ["i7"]`,
			func(id string) bool { return id != "i5" && id != "i6" && id != "i7" }},
		{`{"history": ["i9", "i3"]}`, `"exclude_seen": true`, func(id string) bool { return id != "i9" && id != "i3" }},
		{`{"id": "u1"}`, `"filter": {"kind": ["1", "3"]}`, func(id string) bool { return kind(id) == 1 || kind(id) == 3 }},
		{`{"id": "u1"}`, `"filter": {"kind": ["1", "3"], "all": ["yes"]}, "exclude_seen": true`,
			func(id string) bool { return (kind(id) == 1 || kind(id) == 3) && id != "i3" }},
		{`{"id": "u1"}`, `"filter": {"all": ["i1", "i2", "i3", "i4", "i5", "i6", "i9", "i10", "i11", "none"], "kind": ["1"]}`,
			func(id string) bool { return id == "i1" || id == "i6" || id == "i11" }},
		{`{"id": "u1"}`, `"filter": {"kind": ["none"]}`, func(string) bool { return false }},
	} {
		all := r.recommend(t, `"n": 100, "user": `+c.user)
		got := r.recommend(t, `"n": 100, "user": `+c.user+`, `+c.fields)
		var want []string
		scores := map[string]float64{}
		for _, x := range all.Results {
			if c.eligible(x.ID) {
				want, scores[x.ID] = append(want, x.ID), x.Score
			}
		}
		if !slices.Equal(got.ids(), want) || !got.Short {
			t.Errorf("%s: %v, short %v; want %v", c.fields, got.ids(), got.Short, want)
		}
		for _, x := range got.Results {
			if math.Abs(scores[x.ID]-x.Score) > 1e-5 {
				t.Errorf("%s: %s has score %v, %v without it", c.fields, x.ID, x.Score, scores[x.ID])
			}
		}
	}
}

func kind(id string) int {
	n, err := strconv.Atoi(id[1:])
	if err != nil {
		panic(err)
	}
	return n % 5
}

func TestRecommendErrors(t *testing.T) {
	r := newRecommender(t)
	long := strings.Repeat("x", 600)
	for _, c := range []struct {
		body   string
		status int
		code   string
		field  string
	}{
		{`{"model": "m"}`, 400, "invalid_argument", "user"},
		{`{"model": "m", "user": {}}`, 400, "invalid_argument", "user"},
		{`{"model": "m", "user": {"id": "nobody"}}`, 400, "invalid_argument", "user.id"},
		{`{"model": "m", "user": {"tokens": [400]}}`, 400, "invalid_argument", "user.tokens[0]"},
		{`{"user": {"id": "u1"}}`, 400, "invalid_argument", "model"},
		{`{"model": "x", "user": {"id": "u1"}}`, 404, "not_found", "model"},
		{`{"model": "m", "user": {"id": "u1"}, "n": 0}`, 400, "invalid_argument", "n"},
		{`{"model": "m", "user": {"id": "u1"}, "n": 10001}`, 400, "invalid_argument", "n"},
		{`{"model": "m", "user": {"id": "u1"}, "beam_width": 0}`, 400, "invalid_argument", "beam_width"},
		{`{"model": "m", "user": {"id": "u1"}, "beam_width": 8193}`, 400, "invalid_argument", "beam_width"},
		{`{"model": "m", "user": {"id": "u1"}, "top_k": -1}`, 400, "invalid_argument", "top_k"},
		{`{"model": "m", "user": {"id": "u1"}, "exclude": ["a", ""]}`, 400, "invalid_argument", "exclude[1]"},
		{`{"model": "m", "user": {"id": "u1"}, "exclude": ["a", "b", "` + long + `"]}`, 400, "invalid_argument",
			"exclude[2]"},
		{`{"model": "m", "user": {"id": "u1"}, "exclude": "a"}`, 400, "invalid_argument", "exclude"},
		{`{"model": "m", "user": {"id": "u1"}, "exclude_seen": 1}`, 400, "invalid_argument", "exclude_seen"},
		{`{"model": "m", "user": {"id": "u1"}, "filter": {"kind": []}}`, 400, "invalid_argument", "filter.kind"},
		{`{"model": "m", "user": {"id": "u1"}, "filter": {"kind": "1"}}`, 400, "invalid_argument", "filter.kind"},
		{`{"model": "m", "user": {"id": "u1"}, "filter": {"": ["1"]}}`, 400, "invalid_argument", `filter.""`},
		{`{"model": "m", "user": {"id": "u1"}, "deadline_ms": 100000}`, 400, "invalid_argument", "deadline_ms"},
		{`{"model": "m", "user": {"id": "u1"}, "request_id": "\n"}`, 400, "invalid_argument", "request_id"},
		{`{"model": "m", "user": {"id": "u1"}, "candidates": []}`, 400, "invalid_argument", "candidates"},
		{`{"model": "m", "user": {"tokens": [` + strings.Repeat("1,", 1000) + `1]}}`, 413, "too_large", ""},
		{`{"model": "ranks", "user": {"id": "u1"}}`, 422, "unprocessable", ""},
		{`{"model": "deep", "user": {"id": "u1"}}`, 422, "unprocessable", ""},
		{`{"model": "bare", "user": {"tokens": []}}`, 422, "unprocessable", "user"},
	} {
		wantError(t, r.ask("POST", "/v1/recommend", c.body), c.status, c.code, c.field)
	}
	if rec := r.ask("GET", "/v1/recommend", ""); rec.Code != 405 || rec.Header().Get("Allow") != "POST" {
		t.Errorf("GET is %d, allowed %q", rec.Code, rec.Header().Get("Allow"))
	}
	if r.recommend(t, `"user": {"tokens": []}`); t.Failed() {
		t.Error("a user without tokens, where there is an instruction")
	}
}

// Failures behind the search become the documented statuses.
func TestRecommendWhenTheEngineFails(t *testing.T) {
	r := newRecommender(t)
	b := codeBuilder(t, len(levels), true)
	var fails error
	var value float32
	do := func(_ context.Context, j *engine.Job) (*engine.Result, error) {
		for i := range j.Into {
			j.Into[i] = value
		}
		return &engine.Result{}, fails
	}
	m := r.serves("broken", b, nil)
	m.Generate = &generate.Generator{Prompt: b, Do: do}
	m.Generate.Use(r.generator.Snapshot())
	w := worldOf(t, serve.Config{Catalog: r.cat, Models: []serve.Model{m}})
	for _, c := range []struct {
		err    error
		value  float32
		status int
		code   string
	}{
		{dispatch.ErrShed, 0, 429, "resource_exhausted"},
		{dispatch.ErrExpired, 0, 504, "deadline_exceeded"},
		{context.DeadlineExceeded, 0, 504, "deadline_exceeded"},
		{context.Canceled, 0, 499, "canceled"},
		{engine.ErrTooLarge, 0, 413, "too_large"},
		{engine.ErrClosed, 0, 503, "unavailable"},
		{errors.New("the roof is on fire"), 0, 500, "internal"},
		{nil, float32(math.NaN()), 500, "internal"},
	} {
		fails, value = c.err, c.value
		rec := w.ask("POST", "/v1/recommend", `{"user": {"id": "u1"}, "deadline_ms": 57777}`)
		if c.err == dispatch.ErrShed && !strings.Contains(rec.Body.String(), "57777 ms") {
			t.Errorf("a request that is shed is not told its deadline: %s", rec.Body)
		}
		wantError(t, rec, c.status, c.code, "")
	}
}

func TestRecommendOverGRPC(t *testing.T) {
	r := newRecommender(t)
	c := grebev1.NewGrebeClient(overPipe(t, r.world))
	want := r.recommend(t,
		`"user": {"id": "u1"}, "n": 7, "exclude_seen": true, "filter": {"all": ["yes"]}, "beam_width": 16, "top_k": 4`)
	request := func() *grebev1.RecommendRequest {
		return &grebev1.RecommendRequest{Model: "m", User: &grebev1.User{Id: "u1"}, N: 7, ExcludeSeen: true, BeamWidth: 16,
			TopK:   4,
			Filter: map[string]*grebev1.Condition{"all": {Values: []string{"yes"}}}}
	}
	got, err := c.Recommend(t.Context(), request())
	must(t, err)
	for i, x := range got.Results {
		if w := want.Results[i]; x.Id != w.ID || !slices.Equal(x.Codes, w.Codes) || x.Score != w.Score {
			t.Errorf("place %d: %v, over HTTP %v", i, x, w)
		}
	}
	if len(got.Results) != len(want.Results) || got.CatalogVersion != want.Version || got.Short != want.Short {
		t.Errorf("got %v, over HTTP %+v", got, want)
	}
	if got, err := c.Recommend(t.Context(), &grebev1.RecommendRequest{
		Model: "m", User: &grebev1.User{Id: "u1"}}); err != nil || len(got.Results) != 10 {
		t.Errorf("defaults: %v, %v", got, err)
	}
	for field, change := range map[string]func(*grebev1.RecommendRequest){
		"n":           func(q *grebev1.RecommendRequest) { q.N = -1 },
		"beam_width":  func(q *grebev1.RecommendRequest) { q.BeamWidth = 9000 },
		"top_k":       func(q *grebev1.RecommendRequest) { q.TopK = -3 },
		"exclude":     func(q *grebev1.RecommendRequest) { q.Exclude = make([]string, 100001) },
		"exclude[0]":  func(q *grebev1.RecommendRequest) { q.Exclude = []string{""} },
		"filter.kind": func(q *grebev1.RecommendRequest) { q.Filter["kind"] = nil },
		"filter.much": func(q *grebev1.RecommendRequest) {
			q.Filter["much"] = &grebev1.Condition{Values: make([]string, 5000)}
		},
		"filter": func(q *grebev1.RecommendRequest) {
			for i := range 100 {
				q.Filter[fmt.Sprint(i)] = &grebev1.Condition{Values: []string{""}}
			}
		},
	} {
		q := request()
		change(q)
		_, err := c.Recommend(t.Context(), q)
		if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	q := request()
	q.Model = "ranks"
	if _, err := c.Recommend(t.Context(), q); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a model without codes: %v", err)
	}
}

func TestRecommendIsCountedAndShown(t *testing.T) {
	r := newRecommender(t)
	r.recommend(t, `"user": {"id": "u1"}`)
	r.recommend(t, `"user": {"id": "u1"}`)
	r.ask("POST", "/v1/recommend", `{`)
	text := r.ask("GET", "/metrics", "").Body.String()
	for _, line := range []string{
		`grebe_requests_total{code="200",op="recommend"} 2`,
		`grebe_requests_total{code="400",op="recommend"} 1`,
		`grebe_slo_ok_total{op="recommend"} 2`,
		`grebe_beam_rows_count 2`,
		`grebe_tokens_total{op="recommend",source="computed"} `,
		`grebe_tokens_total{op="recommend",source="host"} `,
		`grebe_catalog_version_age_seconds `,
		`grebe_catalog_versions 1`,
		`grebe_catalog_damaged_total 0`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("metrics lack %q", line)
		}
	}
	var got struct {
		Items, Users    int
		Version, Digest string
		ID              string
		MemoryBytes     int64 `json:"memory_bytes"`
		Durable         bool
		Models          []struct {
			Model, Version, Digest string
			Items, Skipped         int
			Age                    float64 `json:"age_seconds"`
			Pinned                 bool
			Unusable               int
			Examples               []string
		}
		Versions []any
	}
	decodeJSON(t, r.ask("GET", "/v1/catalog", "").Body, &got)
	if len(got.Models) != 3 || got.Items != 32 {
		t.Fatalf("%+v, want 32 items and three models that have codes", got)
	}
	if m := got.Models[0]; m.Model != "m" || m.Version != got.Version || m.Digest == "" || m.Items != 30 ||
		m.Skipped != 2 || m.Age < 0 {
		t.Errorf("model m: %+v of %+v", m, got)
	}
	if m := got.Models[2]; m.Model != "deep" || m.Digest != "" || m.Items != 0 || m.Skipped != 32 || m.Unusable != 31 ||
		len(m.Examples) != 3 {
		t.Errorf("model deep: %+v", m)
	}
}

// While items are added, changed and deleted, no request fails, and each gets exactly the items of the version in its
// answer.
func TestSnapshotsChangeUnderLoad(t *testing.T) {
	r := newRecommender(t)
	const swaps = 4
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	versions := map[string]bool{}
	answered := make(chan struct{}, 1) // paces the changes
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				rec := r.ask("POST", "/v1/recommend", `{"model": "m", "user": {"id": "u1"}, "n": 10000, "beam_width": 1024}`)
				version := r.consistent(t, rec)
				mu.Lock()
				versions[version] = true
				if len(versions) > swaps || t.Failed() {
					stop()
				}
				mu.Unlock()
				select {
				case answered <- struct{}{}:
				default:
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for ctx.Err() == nil {
		select {
		case <-answered:
		case <-ctx.Done():
		}
		id := fmt.Sprint("i", rng.IntN(60))
		var err error
		if rng.IntN(3) == 0 {
			_, err = r.cat.DeleteItem(id)
		} else {
			_, err = r.cat.PutItem(itemWith(rng, id, "0"))
		}
		must(t, err)
	}
	wg.Wait()
}

// consistent checks that a response has all items of its version, as they were then.
func (r *recommender) consistent(t *testing.T, rec *httptest.ResponseRecorder) string {
	if rec.Code != 200 {
		t.Errorf("a request failed: %d, %s", rec.Code, rec.Body)
		return ""
	}
	var b recommendBody
	if err := json.Unmarshal(rec.Body.Bytes(), &b); err != nil {
		t.Errorf("%s: %v", rec.Body, err)
	}
	want := r.past.at(b.Version)
	got := map[string][]int32{}
	for _, x := range b.Results {
		got[x.ID] = x.Codes
	}
	if want == nil || len(got) != len(b.Results) || !maps.EqualFunc(got, want, slices.Equal[[]int32]) {
		t.Errorf("version %s: %v, want %v", b.Version, got, want)
	}
	return b.Version
}

// A recommendation for a user without an id reuses a prefix that another left, and is the same.
func TestRecommendFromKnownPrefix(t *testing.T) {
	warm, cold := newRecommender(t), newRecommender(t)
	user := func(tokens ...int32) string {
		return fmt.Sprintf(`"user": {"tokens": %s}`, strings.ReplaceAll(
			fmt.Sprint(slices.Concat(slices.Repeat([]int32{5, 9, 30}, 30), tokens)), " ", ","))
	}
	warm.recommend(t, user(7, 8))
	for _, last := range [][]int32{{1, 2, 3}, {7, 8}, nil} {
		got, want := warm.recommend(t, user(last...)), cold.recommend(t, user(last...))
		if len(want.Results) == 0 || !reflect.DeepEqual(got.Results, want.Results) {
			t.Errorf("tokens that end with %v: %v, want %v", last, got.Results, want.Results)
		}
		if got.Usage.Cached < 90 {
			t.Errorf("tokens that end with %v: %d tokens were reused, want those that are known", last, got.Usage.Cached)
		}
	}
}
