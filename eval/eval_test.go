package eval

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/shop"
)

// oracle is a server that knows the answers: it ranks by the true probabilities and recommends the best.
type oracle struct{ questions map[string]*Question }

func (o oracle) Rank(_ context.Context, r *grebev1.RankRequest) (*grebev1.RankResponse, error) {
	q := o.questions[r.User.Id]
	resp := &grebev1.RankResponse{Prefix: "user", Usage: &grebev1.Usage{
		UserTokens: 100, ItemTokens: int32(10 * len(r.Candidates))}}
	for _, id := range byProbability(q) {
		resp.Results = append(resp.Results, &grebev1.Ranked{Index: int32(slices.Index(q.Candidates, id))})
	}
	return resp, nil
}

func (o oracle) Recommend(_ context.Context, r *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error) {
	resp := &grebev1.RecommendResponse{}
	for _, b := range o.questions[r.User.Id].Best {
		resp.Results = append(resp.Results, &grebev1.Recommended{Id: b.ID})
	}
	return resp, nil
}

func small(t *testing.T) *shop.World {
	t.Helper()
	w, err := shop.New(5, 2000)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// A model that knows the process must reach the optimum exactly, and more than the baselines.
func TestTheOracleReachesTheOptimum(t *testing.T) {
	d := Shop(small(t), 60)
	o := oracle{map[string]*Question{}}
	for i := range d.Questions {
		o.questions[d.Questions[i].User] = &d.Questions[i]
	}
	calls := 0
	r, err := Run(t.Context(), d, o, Options{
		Ways: []Way{{Name: "oracle", Prefix: "auto"}, {Name: "oracle search", Generate: true}}, Seed: 1,
		Progress: func(_, _ int) { calls++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	if calls != 120 || r.AutoUserFirst != 1 || r.UserTokens != 100 || r.ItemTokens != 10 || r.Unreal+r.Short != 0 {
		t.Errorf("%d calls, %+v", calls, r)
	}
	ranking, generation := byWay(r.Ranking), byWay(r.Generation)
	for _, pair := range [][2]Line{{ranking["oracle"], ranking["optimum"]},
		{generation["oracle search"], generation["optimum"]}} {
		if !reflect.DeepEqual(pair[0].At, pair[1].At) {
			t.Errorf("%s: %+v, want the optimum's %+v", pair[0].Way, pair[0].At, pair[1].At)
		}
	}
	best := ranking["optimum"].Expected.Value
	for _, base := range []string{"popularity", "most recent category"} {
		if got := ranking[base].Expected.Value; got >= best {
			t.Errorf("%s reaches an expected NDCG@10 of %.3f, the optimum %.3f", base, got, best)
		}
	}
	for _, c := range r.Comparisons {
		if c.Over == "optimum" && c.Ratio.Value != 1 {
			t.Errorf("%s %s is %.3f of the optimum", c.What, c.Way, c.Ratio.Value)
		}
	}
	if got, want := ranking["chance"].At[1].Recall.Value, 0.1; math.Abs(got-want) > 1e-9 {
		t.Errorf("chance finds %.3f of the answers among the first ten of a hundred, want %.3f", got, want)
	}
}

// Lists over the whole catalog are the orders of candidate lists, taken of all items that the user does not have.
func TestShelvesAreTheOrdersOfAllItems(t *testing.T) {
	d := Shop(small(t), 40)
	s := d.shelves()
	for i := range d.Questions {
		user := d.Questions[i].User
		history := d.users[user].History
		all := slices.DeleteFunc(slices.Clone(d.order), func(id string) bool { return slices.Contains(history, id) })
		if got, want := s.first(history, nil), d.byPopularity(all)[:generated]; !slices.Equal(got, want) {
			t.Fatalf("%s: by popularity %v, want %v", user, got, want)
		}
		if got, want := s.first(history, d.category), d.byRecency(all, user)[:generated]; !slices.Equal(got, want) {
			t.Fatalf("%s: by recency %v, want %v", user, got, want)
		}
	}
}

// However many requests run at a time and however often all is asked, the answers are those of the questions, and what
// is told of a pass is told of the last one.
func TestRequestsAtATimeAndPasses(t *testing.T) {
	d := Shop(small(t), 30)
	o := oracle{map[string]*Question{}}
	for i := range d.Questions {
		o.questions[d.Questions[i].User] = &d.Questions[i]
	}
	options := Options{Ways: []Way{{Name: "oracle", Prefix: "auto"}, {Name: "oracle search", Generate: true}}, Seed: 1}
	want, err := Run(t.Context(), d, o, options)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	options.Parallel, options.Passes, options.Progress = 8, 3, func(_, _ int) { calls++ }
	got, err := Run(t.Context(), d, o, options)
	if err != nil {
		t.Fatal(err)
	}
	if calls != 180 {
		t.Errorf("%d calls for 30 users, two ways and three passes", calls)
	}
	for k := range want.Ranking {
		if !reflect.DeepEqual(got.Ranking[k].At, want.Ranking[k].At) {
			t.Errorf("%s: %+v with eight requests at a time, %+v with one", got.Ranking[k].Way, got.Ranking[k].At,
				want.Ranking[k].At)
		}
	}
	if _, err := Run(t.Context(), d, failing{o}, options); err == nil ||
		!strings.Contains(err.Error(), "eval: oracle: user") {
		t.Errorf("an error of the server became %v", err)
	}
}

// failing is a server that fails now and then.
type failing struct{ oracle }

func (f failing) Rank(ctx context.Context, r *grebev1.RankRequest) (*grebev1.RankResponse, error) {
	if strings.HasSuffix(r.User.Id, "7") {
		return nil, errors.New("out of order")
	}
	return f.oracle.Rank(ctx, r)
}

func byWay(lines []Line) map[string]Line {
	out := map[string]Line{}
	for _, l := range lines {
		out[l.Way] = l
	}
	return out
}

// Pages are read where there is no network, and from an archive years later.
func TestReportsStandAlone(t *testing.T) {
	d := Shop(small(t), 5)
	d.Notes = append(d.Notes, "<script>alert(1)</script>")
	r, err := Run(t.Context(), d, oracle{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var page, text, data bytes.Buffer
	for _, err := range []error{r.HTML(&page), r.Text(&text), r.JSON(&data)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"http:", "https:", "src=", "href=", "@import", "url(", "<script"} {
		if strings.Contains(page.String(), bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, want := range []string{"optimum", "popularity", "most recent category", "</html>"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if !strings.Contains(text.String(), "optimum") {
		t.Errorf("the text lacks the optimum:\n%s", &text)
	}
	var back Report
	if err := json.Unmarshal(data.Bytes(), &back); err != nil || len(back.Ranking) != len(r.Ranking) {
		t.Errorf("the JSON does not come back: %v", err)
	}
}

// Questions that are written and read again are the same.
func TestFilesHoldTheQuestions(t *testing.T) {
	w := small(t)
	dir := t.TempDir()
	want := Shop(w, 12)
	var items, users, requests bytes.Buffer
	if err := w.WriteItems(&items); err != nil {
		t.Fatal(err)
	}
	for n := range 12 {
		if err := w.WriteUser(&users, w.User(shop.Test, n)); err != nil {
			t.Fatal(err)
		}
		line, err := json.Marshal(want.Questions[n])
		if err != nil {
			t.Fatal(err)
		}
		requests.Write(append(line, '\n'))
	}
	f := Files{Items: write(t, dir, "items", items.Bytes()), Users: write(t, dir, "users", users.Bytes()),
		Requests: write(t, dir, "requests", requests.Bytes())}
	got, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Questions, want.Questions) || !got.Known() || !got.Texts() || got.Identifiers() {
		t.Error("the questions differ after writing and reading")
	}
	if err := want.Equip(f.Items); err != nil {
		t.Errorf("the shop's own items do not fit: %v", err)
	}
	if err := want.Equip(write(t, dir, "one", []byte(`{"id": "other"}`))); err == nil {
		t.Error("items of another catalog were taken")
	}
	for name, line := range map[string]string{
		"in the middle": `{"user": "test-0", "events": 3, "candidates": ["i00001"], "chosen": "i00001"}`,
		"unknown field": `{"user": "test-0", "candidate": []}`, "no user": `{"user": "nobody"}`,
		"no item":           `{"user": "test-0", "candidates": ["x"], "chosen": "x"}`,
		"not chosen":        `{"user": "test-0", "candidates": ["i00001"], "chosen": "i00002"}`,
		"lengths":           `{"user": "test-0", "candidates": ["i00001"], "chosen": "i00001", "probabilities": [0.5, 0.5]}`,
		"nothing is likely": `{"user": "test-0", "candidates": ["i00001"], "chosen": "i00001", "probabilities": [0]}`,
		"less than unlikely": `{"user": "test-0", "candidates": ["i00001", "i00002"], "chosen": "i00001", ` +
			`"probabilities": [-1, 2]}`,
		"more than certain": `{"user": "test-0", "candidates": ["i00001", "i00002"], "chosen": "i00001", ` +
			`"probabilities": [1e308, 1e308]}`,
	} {
		f.Requests = write(t, dir, "bad", []byte(line))
		if _, err := Read(f); err == nil || !strings.Contains(err.Error(), ":1:") {
			t.Errorf("%s: %v, want an error with the line", name, err)
		}
	}
}

func write(t *testing.T, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name+".ndjson")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Without questions the last item of each user is held out, and must be out of everything else.
func TestHoldOut(t *testing.T) {
	dir := t.TempDir()
	f := Files{Candidates: 4, Seed: 1,
		Items: write(t, dir, "items", []byte(`{"id": "a", "attributes": {"category": ["x"]}}
{"id": "b", "attributes": {"category": ["y"]}}
{"id": "c", "attributes": {"category": ["x"]}}
{"id": "d", "attributes": {"category": ["y"]}}
{"id": "e"}
{"id": "f"}
`)),
		Users: write(t, dir, "users", []byte(`{"id": "u", "history": ["a", "b", "c"]}
{"id": "v", "events": [{"item": "b", "time": 1}, {"item": "d", "time": 2}]}
{"id": "w", "history": ["a"]}
`))}
	d, err := Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Questions) != 2 {
		t.Fatalf("%d questions, want two: one user has nothing to hold out", len(d.Questions))
	}
	u, v := d.Questions[0], d.Questions[1]
	if u.Chosen != "c" || u.Next != "c" || v.Chosen != "d" || !slices.Equal(d.users["u"].History, []string{"a", "b"}) ||
		len(d.users["v"].Events) != 1 {
		t.Errorf("held out: %+v, %+v; left: %v", u, v, d.users["u"].History)
	}
	if d.counts["c"] != 0 || d.counts["b"] != 2 || d.counts["a"] != 2 {
		t.Errorf("counts %v know what was held out, or not the rest", d.counts)
	}
	for _, q := range d.Questions {
		sorted := slices.Sorted(slices.Values(q.Candidates))
		if !slices.Contains(sorted, q.Chosen) || len(slices.Compact(sorted)) != 4 {
			t.Errorf("candidates %v, want four with %s", q.Candidates, q.Chosen)
		}
		for _, id := range d.users[q.User].History {
			if slices.Contains(q.Candidates, id) {
				t.Errorf("%s has %s already", q.User, id)
			}
		}
	}
	// u took a (x) and then b (y): of the rest y comes first, then x, then what has no category.
	if got, want := d.byRecency([]string{"e", "c", "d"}, "u"), []string{"d", "c", "e"}; !slices.Equal(got, want) {
		t.Errorf("by recency %v, want %v", got, want)
	}
	if got, want := d.byPopularity([]string{"e", "d", "b", "a"}), []string{"b", "a", "e", "d"}; !slices.Equal(got, want) {
		t.Errorf("by popularity %v, want %v", got, want)
	}
}
