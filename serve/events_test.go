package serve

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cpu"
	"grebe/embed"
	"grebe/engine"
	"grebe/internal/wire"
	"grebe/kv"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/model/hstu/hstutest"
	"grebe/pool"
	"grebe/prompt"
	"grebe/residency"
	"grebe/reuse"
	"grebe/schedule"
)

// eventWorld is a model of events behind two services, with and without a cache.
type eventWorld struct {
	model         *hstu.Model
	cached, plain *Service
	catalog       *catalog.Catalog
	rand          *rand.Rand
	users         [][]*grebev1.Event
}

// idle is a load without waiting requests.
type idle struct{}

func (idle) Backlog() (float64, int)      { return 0, 0 }
func (idle) Model() schedule.PrefillModel { return schedule.PrefillModel{} }

func newEventWorld(t *testing.T, dir, dtype string, pages int) *eventWorld {
	t.Helper()
	dev, err := cpu.New(cpu.Options{Threads: 2})
	must(t, err)
	return newEventWorldOn(t, dev, dir, dtype, pages)
}

// newEventWorldWith is newEventWorld for a model of which some tables are elsewhere.
func newEventWorldWith(t *testing.T, dir, dtype string, pages int, sources map[string]hstu.RowSource) *eventWorld {
	t.Helper()
	dev, err := cpu.New(cpu.Options{Threads: 2})
	must(t, err)
	return openEventWorld(t, dev, dir, dtype, pages, sources)
}

func newEventWorldOn(t *testing.T, dev compute.Device, dir, dtype string, pages int) *eventWorld {
	t.Helper()
	return openEventWorld(t, dev, dir, dtype, pages, nil)
}

func openEventWorld(t *testing.T, dev compute.Device, dir, dtype string, pages int,
	sources map[string]hstu.RowSource) *eventWorld {
	t.Helper()
	t.Cleanup(func() { must(t, dev.Close()) })
	m, err := hstu.OpenWith(dir, dev, model.Options{DType: dtype}, sources)
	must(t, err)
	t.Cleanup(func() { m.Close() })
	b, err := prompt.New(prompt.Config{}, nil, m.Vocab())
	must(t, err)
	w := &eventWorld{model: m, catalog: catalog.New(catalog.Options{}), rand: rand.New(rand.NewPCG(uint64(pages), 4))}
	serve := func(e *engine.Engine, c *reuse.Cache) *Service {
		s, err := New(Config{Catalog: w.catalog, SLO: time.Hour, Models: []Model{{
			Name: "m", Runner: e, Prompt: b, Cache: c, Reads: Events(m, nil), Vocab: m.Vocab(), Positions: m.MaxPositions()}}})
		must(t, err)
		s.now = func() time.Time { return time.Unix(1_700_000_000, 0) }
		return s
	}
	e, err := engine.New(m, dev, engine.Options{})
	must(t, err)
	t.Cleanup(func() { e.Close() })
	w.plain = serve(e, nil)
	if m.Config().Recomputes() != "" {
		return w
	}
	shape := m.Shape()
	memory, err := pool.Over(dev.Memory(), int64(shape.ChunkBytes(pages, false)), 256)
	must(t, err)
	store := kv.New(shape, memory)
	must(t, store.SetHotness(residency.HotnessConfig{Users: 100, Items: 100}))
	keeping, err := engine.New(m, dev, engine.Options{Cache: store})
	must(t, err)
	t.Cleanup(func() {
		keeping.Close()
		store.Close()
		must(t, memory.Close())
	})
	w.cached = serve(keeping, reuse.New(b, reuse.Options{
		Store: store, Pool: memory, Load: idle{}, Shape: shape, Policy: schedule.User, Least: m.LeastReused()}))
	return w
}

func (w *eventWorld) events(n int) []*grebev1.Event {
	out := make([]*grebev1.Event, n)
	for i := range out {
		out[i] = &grebev1.Event{Item: fmt.Sprintf("i%d", w.rand.IntN(w.model.Items())), Time: int64(1_600_000_000 + i),
			Action: int32(w.rand.IntN(8))}
	}
	return out
}

// A returning user's scores equal those of a full computation to the bit, however the history grows, whatever was
// evicted, and whether the user came for rankings or recommendations before.
func TestEventsReuseChangesNoScore(t *testing.T) {
	for _, c := range []struct {
		dtype  string
		pages  int
		window int
		far    bool // the host cannot access the device's memory
	}{{"f32", 4000, 0, false}, {"bf16", 700, 0, false}, {"bf16", 4000, 50, false}, {"bf16", 4000, 0, true}} {
		t.Run(fmt.Sprintf("%s/%d tokens/window %d/far %v", c.dtype, c.pages, c.window, c.far), func(t *testing.T) {
			dir := t.TempDir()
			must(t, hstutest.Write(dir, hstutest.Spec{Hidden: 48, Layers: 2, Heads: 2, HeadDim: 16, Items: 300, MaxSeqLen: 400,
				Window: c.window, Seed: 1}))
			dev, err := cpu.New(cpu.Options{Threads: 2})
			must(t, err)
			if c.far {
				dev = computetest.Far(dev, true)
			}
			w := newEventWorldOn(t, dev, dir, c.dtype, c.pages)
			for range 5 {
				w.users = append(w.users, w.events(1+w.rand.IntN(150)))
			}
			reused := 0
			for step := range 60 {
				u := w.rand.IntN(len(w.users))
				if w.rand.IntN(2) == 0 {
					w.users[u] = append(slices.Clone(w.users[u]), w.events(1+w.rand.IntN(60))...)
				}
				user := &grebev1.User{Id: fmt.Sprint("u", u), Events: w.users[u]}
				if w.rand.IntN(4) == 0 {
					user.Id = ""
				}
				if w.rand.IntN(3) == 0 {
					reused += w.compareRecommend(t, step, user)
				} else {
					reused += w.compareRank(t, step, user)
				}
			}
			if reused == 0 {
				t.Error("nothing was ever reused")
			}
			t.Logf("%d rows reused", reused)
		})
	}
}

func (w *eventWorld) compareRank(t *testing.T, step int, user *grebev1.User) int {
	t.Helper()
	req := &grebev1.RankRequest{User: user, Prefix: []string{"", "user", "item", "none"}[w.rand.IntN(4)], Explain: true}
	for range 1 + w.rand.IntN(20) {
		req.Candidates = append(req.Candidates, &grebev1.Item{Id: fmt.Sprintf("i%d", w.rand.IntN(w.model.Items()))})
	}
	got, err := w.cached.Rank(t.Context(), req)
	must(t, err)
	want, err := w.plain.Rank(t.Context(), req)
	must(t, err)
	for i := range want.Results {
		a, b := got.Results[i], want.Results[i]
		if a.Index != b.Index || math.Float64bits(a.Score) != math.Float64bits(b.Score) || a.Tasks["buy"] != b.Tasks["buy"] {
			t.Fatalf("step %d, prefix %q: result %d is %v with the cache, %v without", step, req.Prefix, i, a, b)
		}
	}
	cached := int32(0)
	for _, p := range got.Parts {
		cached += p.Cached
	}
	if cached != got.Usage.CachedTokens {
		t.Fatalf("step %d: the parts have %d cached rows, the request %d", step, cached, got.Usage.CachedTokens)
	}
	return int(got.Usage.CachedTokens)
}

func (w *eventWorld) compareRecommend(t *testing.T, step int, user *grebev1.User) int {
	t.Helper()
	req := &grebev1.RecommendRequest{User: user, N: 20, ExcludeSeen: w.rand.IntN(2) == 0, Explain: w.rand.IntN(4) > 0}
	got, err := w.cached.Recommend(t.Context(), req)
	must(t, err)
	want, err := w.plain.Recommend(t.Context(), req)
	must(t, err)
	for _, resp := range []*grebev1.RecommendResponse{got, want} {
		if req.Explain {
			checkPartsOf(t, step, resp.Parts, resp.Usage)
		} else if resp.Parts != nil {
			t.Fatalf("step %d: nobody asked for %v", step, resp.Parts)
		}
	}
	seen := itemsOf(user.Events)
	for i := range want.Results {
		a, b := got.Results[i], want.Results[i]
		if a.Id != b.Id || math.Float64bits(a.Score) != math.Float64bits(b.Score) {
			t.Fatalf("step %d: recommendation %d is %v with the cache, %v without", step, i, a, b)
		}
		if req.ExcludeSeen && slices.Contains(seen, a.Id) {
			t.Fatalf("step %d: %s was seen and is recommended", step, a.Id)
		}
	}
	return int(got.Usage.CachedTokens)
}

// The server returns what Meta's code predicts, in each of its configurations. If KV cannot be reused, the response
// says why.
func TestEventsFixtures(t *testing.T) {
	for _, name := range []string{"meta", "window", "context", "prefix", "absolute"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("..", "testdata", "fixtures", "hstu", name)
			w := newEventWorld(t, dir, "f32", 1000)
			raw, err := os.ReadFile(filepath.Join(dir, "cases.json"))
			must(t, err)
			var cases []struct {
				Order       string             `json:"order"`
				Items       []int32            `json:"items"`
				Actions     []int32            `json:"actions"`
				Times       []int64            `json:"times"`
				Candidates  []int32            `json:"candidates"`
				Query       int64              `json:"query"`
				Features    map[string][]int32 `json:"features"`
				Predictions [][]float64        `json:"predictions"`
			}
			must(t, json.Unmarshal(raw, &cases))
			if w.model.Named() == (name != "absolute") {
				t.Fatal("the checkpoint's items are named, or not")
			}
			for i := range int32(w.model.Items()) {
				_, err := w.catalog.PutItem(&grebev1.Item{Id: fmt.Sprintf("i%d", i), Identifier: &i})
				must(t, err)
			}
			for i, c := range cases {
				req := &grebev1.RankRequest{User: &grebev1.User{}, Prefix: c.Order}
				for j, item := range c.Items {
					req.User.Events = append(req.User.Events, &grebev1.Event{
						Item: fmt.Sprintf("i%d", item), Time: c.Times[j], Action: c.Actions[j]})
				}
				withFeatures(req.User, c.Features)
				for _, item := range c.Candidates {
					req.Candidates = append(req.Candidates, &grebev1.Item{Id: fmt.Sprintf("i%d", item)})
				}
				w.plain.now = func() time.Time { return time.Unix(c.Query, 0) }
				resp, err := w.plain.Rank(t.Context(), req)
				must(t, err)
				if why := w.model.Config().Recomputes(); why != "" != strings.Contains(resp.Usage.Note, "nothing is reused: "+why) {
					t.Errorf("case %d: the note is %q, the reason %q", i, resp.Usage.Note, why)
				}
				for _, r := range resp.Results {
					for k, task := range w.model.Config().Tasks {
						if got, want := r.Tasks[task.Name], c.Predictions[r.Index][k]; math.Abs(got-want) > 1e-4 {
							t.Errorf("case %d candidate %d: %s is %v, want %v", i, r.Index, task.Name, got, want)
						}
					}
				}
			}
		})
	}
}

// withFeatures adds a request's features to its events, newest first.
func withFeatures(u *grebev1.User, features map[string][]int32) {
	for name, values := range features {
		for i, v := range values {
			for len(u.Events) <= i { // an event of an unknown item is left out, but its features count
				u.Events = append([]*grebev1.Event{{Item: "unknown"}}, u.Events...)
			}
			e := u.Events[len(u.Events)-1-i]
			if e.Features == nil {
				e.Features = map[string]float64{}
			}
			e.Features[name] = float64(v)
		}
	}
}

func TestEventsRefuses(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, hstutest.Spec{Hidden: 32, Layers: 1, Heads: 2, HeadDim: 16, Items: 40, MaxSeqLen: 50}))
	w := newEventWorld(t, dir, "f32", 1000)
	s, ctx := w.cached, t.Context()
	user := &grebev1.User{Events: w.events(5)}
	item := []*grebev1.Item{{Id: "i1"}}
	for want, call := range map[string]func() error{
		"does not know item": func() error {
			_, err := s.Rank(ctx, &grebev1.RankRequest{User: user, Candidates: []*grebev1.Item{{Id: "nobody"}}})
			return err
		},
		"takes events or a history": func() error {
			_, err := s.Rank(ctx, &grebev1.RankRequest{User: &grebev1.User{Tokens: []int32{1}}, Candidates: item})
			return err
		},
		"user.text: model": func() error {
			text := "I like trains"
			_, err := s.Rank(ctx, &grebev1.RankRequest{User: &grebev1.User{Text: &text}, Candidates: item})
			return err
		},
		"is a model of events": func() error {
			_, err := s.Score(ctx, &grebev1.ScoreRequest{})
			return err
		},
		"has no events of items": func() error {
			_, err := s.Recommend(ctx, &grebev1.RecommendRequest{
				User: &grebev1.User{Events: []*grebev1.Event{{Item: "nobody"}}}})
			return err
		},
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	// Users without events, and with more events than fit, can be ranked for.
	_, err := s.Rank(ctx, &grebev1.RankRequest{User: &grebev1.User{History: []string{}, Events: []*grebev1.Event{}},
		Candidates: item})
	must(t, err)
	resp, err := s.Rank(ctx, &grebev1.RankRequest{User: &grebev1.User{Events: w.events(61)}, Candidates: item})
	must(t, err)
	if !strings.Contains(resp.Usage.Note, "the oldest 18 events were left out: the model takes 48") {
		t.Errorf("61 events where 48 fit: the note is %q", resp.Usage.Note)
	}
	resp, err = s.Rank(ctx, &grebev1.RankRequest{
		User: &grebev1.User{Events: append(w.events(61), &grebev1.Event{Item: "nobody"})}, Candidates: item})
	must(t, err)
	want := "1 item of the history was left out: it is unknown; the oldest 18"
	if !strings.Contains(resp.Usage.Note, want) {
		t.Errorf("an unknown item too: the note is %q, want %q", resp.Usage.Note, want)
	}
}

// A checkpoint with retrieval only refuses rankings before anything is computed.
func TestEventsRankWithoutTasks(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, hstutest.Spec{Hidden: 32, Layers: 1, Heads: 2, HeadDim: 16, Items: 40, MaxSeqLen: 50,
		Change: func(c *hstu.Config) { c.Tasks = nil }}))
	w := newEventWorld(t, dir, "f32", 1000)
	_, err := w.cached.Rank(t.Context(), &grebev1.RankRequest{
		User: &grebev1.User{Events: w.events(5)}, Candidates: []*grebev1.Item{{Id: "i1"}}})
	var e *Error
	if !errors.As(err, &e) || e.code != Unprocessable || !strings.Contains(err.Error(), "has no tasks") {
		t.Errorf("ranking without tasks: %v, want an unprocessable request", err)
	}
}

// A filter on an attribute that no item has is an error that names the existing ones. A value that no item has is not
// an error.
func TestEventsFilterByAnAttributeThatNoItemHas(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, hstutest.Spec{Hidden: 32, Layers: 1, Heads: 2, HeadDim: 16, Items: 40, MaxSeqLen: 50}))
	w := newEventWorld(t, dir, "f32", 1000)
	recommend := func(name, value string) (*grebev1.RecommendResponse, error) {
		return w.cached.Recommend(t.Context(), &grebev1.RecommendRequest{
			User: &grebev1.User{Events: w.events(5)}, N: 5,
			Filter: map[string]*grebev1.Condition{name: {Values: []string{value}}},
		})
	}
	var e *Error
	if _, err := recommend("departmnt", "toys"); !errors.As(err, &e) || e.code != InvalidArgument ||
		!strings.Contains(err.Error(), "no item has attributes") {
		t.Errorf("items without attributes: %v", err)
	}
	for i, department := range []string{"toys", "books", "toys"} {
		_, err := w.catalog.PutItem(&grebev1.Item{Id: fmt.Sprint("i", i),
			Attributes: map[string]*grebev1.Values{"department": {Values: []string{department}}}})
		must(t, err)
	}
	_, err := recommend("departmnt", "toys")
	if !errors.As(err, &e) || e.code != InvalidArgument ||
		!strings.Contains(err.Error(), `filter.departmnt: no item has this attribute; items have "department"`) {
		t.Errorf("an attribute that no item has: %v", err)
	}
	resp, err := recommend("department", "toys")
	must(t, err)
	if len(resp.Results) != 2 {
		t.Errorf("%v are recommended, want the two toys", resp.Results)
	}
	resp, err = recommend("department", "food")
	must(t, err)
	if len(resp.Results) != 0 || !resp.Short {
		t.Errorf("a value that no item has: %v, short %v", resp.Results, resp.Short)
	}
}

// A recommendation with too few items has a note for each value of its filter that no item has. Excluded items have
// their values still.
func TestEventsFilterByValuesThatNoItemHas(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, hstutest.Spec{Hidden: 32, Layers: 1, Heads: 2, HeadDim: 16, Items: 40, MaxSeqLen: 50}))
	w := newEventWorld(t, dir, "f32", 1000)
	for i := range 40 {
		kind := []string{"toys", "books", "games"}[i%3]
		_, err := w.catalog.PutItem(&grebev1.Item{Id: fmt.Sprint("i", i), Attributes: map[string]*grebev1.Values{
			"kind": {Values: []string{"all", kind}}, "size": {Values: []string{fmt.Sprint(i % 2)}}}})
		must(t, err)
	}
	_, err := w.catalog.PutItem(&grebev1.Item{Id: "unknown", Attributes: map[string]*grebev1.Values{
		"kind": {Values: []string{"unknown"}}}}) // the model does not know it
	must(t, err)
	many := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"}
	for _, c := range []struct {
		filter  map[string][]string
		n       int32
		exclude string
		notes   []string
	}{
		{map[string][]string{"kind": {"toys"}}, 40, "", nil},
		{map[string][]string{"kind": {"toy", "books", "game"}}, 40, "", []string{`filter.kind: no item has "toy", "game"`}},
		{map[string][]string{"kind": {"toy"}, "size": {"0", "2"}}, 3, "",
			[]string{`filter.kind: no item has "toy"`, `filter.size: no item has "2"`}},
		{map[string][]string{"kind": {"toy", "books"}}, 2, "", nil}, // there are enough
		{map[string][]string{"kind": {"toys"}}, 40, "toys", nil},
		{map[string][]string{"kind": {"unknown"}}, 40, "", []string{`filter.kind: no item has "unknown"`}},
		{map[string][]string{"kind": many[:8]}, 1, "", []string{
			`filter.kind: no item has "a", "b", "c", "d", "e", "f", "g", "h"`}},
		{map[string][]string{"kind": many}, 1, "", nil}, // too many to check
	} {
		req := &grebev1.RecommendRequest{User: &grebev1.User{Events: w.events(5)}, N: c.n,
			Filter: map[string]*grebev1.Condition{}}
		for name, values := range c.filter {
			req.Filter[name] = &grebev1.Condition{Values: values}
		}
		for i := 0; i < 40 && c.exclude == "toys"; i += 3 {
			req.Exclude = append(req.Exclude, fmt.Sprint("i", i))
		}
		resp, err := w.cached.Recommend(t.Context(), req)
		must(t, err)
		if !slices.Equal(resp.Notes, c.notes) || c.notes != nil && !resp.Short {
			t.Errorf("%v, excluding %q: notes %q, short %v; want %q", c.filter, c.exclude, resp.Notes, resp.Short, c.notes)
		}
	}
}

// exclude_seen covers events that the model no longer reads, and the history beside events.
func TestEventsExcludeAllThatWasSeen(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, hstutest.Spec{Hidden: 32, Layers: 1, Heads: 2, HeadDim: 16, Items: 70, MaxSeqLen: 20}))
	w := newEventWorld(t, dir, "f32", 1000)
	user := &grebev1.User{}
	for i := range 50 {
		user.Events = append(user.Events, &grebev1.Event{Item: fmt.Sprintf("i%d", i)})
	}
	for i := 50; i < 60; i++ {
		user.History = append(user.History, fmt.Sprintf("i%d", i))
	}
	resp, err := w.cached.Recommend(t.Context(), &grebev1.RecommendRequest{User: user, N: 70, ExcludeSeen: true})
	must(t, err)
	seen := append(itemsOf(user.Events), user.History...)
	for _, r := range resp.Results {
		if slices.Contains(seen, r.Id) {
			t.Errorf("%s was seen and is recommended", r.Id)
		}
	}
	if len(resp.Results) != 10 {
		t.Errorf("%d items are recommended, want the 10 that were not seen", len(resp.Results))
	}
}

// nans are rows that make every answer NaN.
type nans struct{}

func (nans) Dim() int { return 32 }

func (nans) Gather(_ []int32, out []float32) error {
	for i := range out {
		out[i] = float32(math.NaN())
	}
	return nil
}

// A state that is NaN is an error, never an answer without items.
func TestEventsNotFinite(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, hstutest.Spec{Hidden: 32, Layers: 1, Heads: 2, HeadDim: 16, Items: 40, MaxSeqLen: 50,
		Change: func(c *hstu.Config) {
			c.Content = []hstu.ContentFeature{{Name: "creator", Table: "creators", Rows: 9, Dim: 32}}
		}}))
	w := newEventWorldWith(t, dir, "f32", 1000, map[string]hstu.RowSource{"creators": nans{}})
	user := &grebev1.User{Events: w.events(5)}
	for _, e := range user.Events {
		e.Features = map[string]float64{"creator": 3}
	}
	resp, err := w.plain.Recommend(t.Context(), &grebev1.RecommendRequest{User: user})
	var e *Error
	if !errors.As(err, &e) || e.code != Internal {
		t.Errorf("recommending from a state of NaN: %v, %v, want an internal error", resp, err)
	}
	_, err = w.plain.Rank(t.Context(), &grebev1.RankRequest{User: user, Candidates: []*grebev1.Item{{Id: "i1"}}})
	if !errors.As(err, &e) || e.code != Internal {
		t.Errorf("ranking from a state of NaN: %v, want an internal error", err)
	}
}

// outage is a store that can be unreachable.
type outage struct {
	embed.Store
	away bool
}

func (o *outage) Gather(ctx context.Context, keys []uint64, rows []byte, found []bool) error {
	if o.away {
		return errors.New("the store is away")
	}
	return o.Store.Gather(ctx, keys, rows, found)
}

// While the store of the items' rows is unreachable, requests are answered but their KV is not kept. The first answer
// afterwards equals a full computation.
func TestEventsKeepNothingOfAnOutage(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, hstutest.Spec{Hidden: 32, Layers: 2, Heads: 2, HeadDim: 16, Items: 40, MaxSeqLen: 500,
		Change: func(c *hstu.Config) { c.Retrieval = false }}))
	store := &outage{Store: embed.NewMemory(40, 4*32)}
	drawn := rand.New(rand.NewPCG(1, 1))
	for item := range uint64(40) {
		var row []byte
		for range 32 {
			row = binary.LittleEndian.AppendUint32(row, math.Float32bits(float32(drawn.NormFloat64())))
		}
		must(t, store.Put(t.Context(), []uint64{item}, row))
	}
	table, err := embed.NewTable(store, nil, embed.TableConfig{})
	must(t, err)
	w := newEventWorldWith(t, dir, "f32", 2000, map[string]hstu.RowSource{"item_id": hstu.FromTable(table)})
	all := w.events(90)
	rank := func(s *Service, n int) *grebev1.RankResponse {
		t.Helper()
		resp, err := s.Rank(t.Context(), &grebev1.RankRequest{
			User: &grebev1.User{Id: "u", Events: all[:n]}, Candidates: []*grebev1.Item{{Id: "i3"}}})
		must(t, err)
		return resp
	}
	for _, step := range []struct {
		events, cached int
		away           bool
	}{{50, 0, true}, {50, 0, false}, {70, 50, true}, {70, 50, false}, {90, 70, false}} {
		store.away = step.away
		got := rank(w.cached, step.events)
		if int(got.Usage.CachedTokens) != step.cached {
			t.Errorf("%+v: %d rows were cached", step, got.Usage.CachedTokens)
		}
		if len(got.Notes) > 0 != step.away || step.away != strings.Contains(string(wire.EncodeRank(got)),
			`"notes":["rows of`) {
			t.Errorf("%+v: notes %q", step, got.Notes)
		}
		if want := rank(w.plain, step.events); !step.away && got.Results[0].Score != want.Results[0].Score {
			t.Errorf("%+v: the score is %v, computed anew %v", step, got.Results[0].Score, want.Results[0].Score)
		}
	}
}

// Events that are appended to a user of the catalog count in the next ranking, and only they are computed.
func TestEventsOfTheCatalog(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, hstutest.Spec{Hidden: 32, Layers: 2, Heads: 2, HeadDim: 16, Items: 40, MaxSeqLen: 500}))
	w := newEventWorld(t, dir, "f32", 2000)
	all := w.events(130)
	rank := func(s *Service, u *grebev1.User) *grebev1.RankResponse {
		t.Helper()
		resp, err := s.Rank(t.Context(), &grebev1.RankRequest{User: u, Candidates: []*grebev1.Item{{Id: "i3"}, {Id: "i5"}}})
		must(t, err)
		return resp
	}
	appendEvents := func(events []*grebev1.Event) {
		t.Helper()
		_, _, _, err := w.catalog.AppendEvents("u", events)
		must(t, err)
	}
	appendEvents(all[:100])
	first := rank(w.cached, &grebev1.User{Id: "u"})
	appendEvents(all[100:])
	second := rank(w.cached, &grebev1.User{Id: "u"})
	want := rank(w.plain, &grebev1.User{Events: all})
	if first.Usage.ComputedTokens != 102 || second.Usage.ComputedTokens != 32 || second.Usage.CachedTokens != 100 {
		t.Errorf("computed %d rows, then %d with %d cached, want 102, 32 and 100", first.Usage.ComputedTokens,
			second.Usage.ComputedTokens, second.Usage.CachedTokens)
	}
	for i := range want.Results {
		if a, b := second.Results[i], want.Results[i]; a.Index != b.Index || a.Score != b.Score {
			t.Errorf("result %d is %v, want %v", i, a, b)
		}
	}
}

// Fifteen thousand events fit the catalog, the model and a pool of hardly more rows. The next request computes only
// new events.
func TestFifteenThousandEvents(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, hstutest.Spec{Hidden: 32, Layers: 2, Heads: 1, HeadDim: 16, Items: 500, MaxSeqLen: 16384}))
	w := newEventWorld(t, dir, "bf16", 15200)
	all := w.events(15020)
	for from := 0; from < 15000; from += 1000 {
		_, _, dropped, err := w.catalog.AppendEvents("u", all[from:from+1000])
		must(t, err)
		if dropped > 0 {
			t.Fatalf("the catalog dropped %d events", dropped)
		}
	}
	req := &grebev1.RankRequest{User: &grebev1.User{Id: "u"},
		Candidates: []*grebev1.Item{{Id: "i1"}, {Id: "i2"}, {Id: "i3"}}}
	first, err := w.cached.Rank(t.Context(), req)
	must(t, err)
	_, _, _, err = w.catalog.AppendEvents("u", all[15000:])
	must(t, err)
	second, err := w.cached.Rank(t.Context(), req)
	must(t, err)
	if first.Usage.ComputedTokens != 15003 || second.Usage.ComputedTokens != 23 || second.Usage.Note != "" {
		t.Errorf("computed %d rows, then %d; note %q", first.Usage.ComputedTokens, second.Usage.ComputedTokens,
			second.Usage.Note)
	}
	want, err := w.plain.Rank(t.Context(), req)
	must(t, err)
	for i := range want.Results {
		if a, b := second.Results[i], want.Results[i]; a.Id != b.Id || a.Score != b.Score {
			t.Errorf("result %d is %v with the cache, %v without", i, a, b)
		}
	}
}
