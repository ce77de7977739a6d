package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// lines sends a batch of items and returns its answer.
func (r *recommender) lines(t *testing.T, query string, lines ...string) (answer struct {
	Created, Replaced, Deleted, Failed int
	Version                            string
	Warnings                           []string
}) {
	t.Helper()
	rec := r.ask("POST", "/v1/items:batch"+query, strings.Join(lines, "\n"))
	if err := json.Unmarshal(rec.Body.Bytes(), &answer); rec.Code != 200 || err != nil {
		t.Fatalf("%d, %s, %v", rec.Code, rec.Body, err)
	}
	return answer
}

// generated returns the ids that model "m" generates.
func (r *recommender) generated(t *testing.T) []string {
	t.Helper()
	rec := r.ask("POST", "/v1/recommend", `{"model": "m", "user": {"id": "u1"}, "n": 100}`)
	var b recommendBody
	if err := json.Unmarshal(rec.Body.Bytes(), &b); rec.Code != 200 || err != nil {
		t.Fatalf("%d, %s, %v", rec.Code, rec.Body, err)
	}
	return b.ids()
}

func (r *recommender) text(t *testing.T, id string) string {
	t.Helper()
	rec := r.ask("GET", "/v1/items/"+id, "")
	var it struct{ Text string }
	if rec.Code == 404 {
		return "none"
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &it); rec.Code != 200 || err != nil {
		t.Fatalf("%d, %s, %v", rec.Code, rec.Body, err)
	}
	return it.Text
}

// An import of several requests is one version, even if other changes happen meanwhile. A rollback undoes exactly the
// import: codes, texts and attributes, for models that generate and for those that rank.
func TestAnImportIsOneVersionThatRollsBackWhole(t *testing.T) {
	r := newRecommender(t)
	before := r.now(t)
	all := r.generated(t)
	old := map[string]string{}
	for _, id := range []string{"i1", "i2", "i20"} {
		old[id] = r.text(t, id)
	}
	// The tokens of a user's segment come from the texts that the model reads.
	rank := func() int {
		rec := r.ask("POST", "/v1/recommend", `{"model": "m", "user": {"history": ["i1", "i20"]}}`)
		var got recommendBody
		if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || rec.Code != 200 {
			t.Fatalf("%d, %s, %v", rec.Code, rec.Body, err)
		}
		return got.Usage.User
	}
	ranked, theirs := rank(), "of somebody else"

	r.lines(t, "?import=a", `{"id": "i1", "text": "changed", "codes": [0, 1, 1]}`, `{"delete": "i20"}`)
	if _, err := r.cat.PutItem(&grebev1.Item{Id: "other", Text: &theirs, Codes: []int32{1, 1, 1}}); err != nil {
		t.Fatal(err)
	}
	middle := r.until(t, "the other change", func(b *catalogBody) bool {
		return len(b.Versions) == 2 && b.followedBy("deep")
	})
	if ids := r.generated(t); !slices.Contains(ids, "i20") || !slices.Contains(ids, "other") {
		t.Errorf("while the import is under way %v are generated", ids)
	}
	r.lines(t, "?import=a", `{"id": "i2", "text": "changed too", "codes": [0, 0, 1]}`,
		`{"id": "new", "text": "new", "codes": [1, 0, 1]}`)
	end := r.lines(t, "?import=a&end")
	after := r.now(t)
	if len(after.Versions) != 3 || after.Versions[0].Version != end.Version || !after.followed() {
		t.Fatalf("after the import %+v, which ended with version %s", after, end.Version)
	}
	if ids := r.generated(t); slices.Contains(ids, "i20") || !slices.Contains(ids, "new") ||
		!slices.Contains(ids, "other") {
		t.Errorf("after the import %v are generated", ids)
	}
	if r.text(t, "i1") != "changed" || r.text(t, "i20") != "none" || rank() == ranked {
		t.Errorf("the import did not change the texts")
	}

	back := r.describe(t, r.ask("POST", "/v1/catalog:rollback", ""))
	if back.Models[0].Version != middle.Versions[0].Version {
		t.Errorf("rolled back to %+v, want version %s", back.Models, middle.Versions[0].Version)
	}
	for id, text := range old {
		if got := r.text(t, id); got != text {
			t.Errorf("rolled back, %s has the text %q, want %q", id, got, text)
		}
	}
	if got := r.text(t, "new"); got != "none" {
		t.Errorf("rolled back, the imported item is there: %q", got)
	}
	if got := r.text(t, "other"); got != "of somebody else" {
		t.Errorf("rolled back, the other change is gone: %q", got)
	}
	if got := rank(); got != ranked {
		t.Errorf("rolled back, the model reads %d tokens, want %d", got, ranked)
	}
	want := append(slices.Clone(all), "other")
	got := r.generated(t)
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("rolled back, %v are generated, want %v", got, want)
	}
	// Changes after the rollback are visible, in texts and in rankings.
	if rec := r.ask("PUT", "/v1/items/i2", `{"text": "put later", "codes": [0, 0, 1]}`); rec.Code != 200 ||
		r.text(t, "i2") != "put later" {
		t.Errorf("an item that was put after the rollback has the text %q", r.text(t, "i2"))
	}
	r.describe(t, r.ask("POST", "/v1/catalog:activate", `{"version": "auto"}`))
	if r.text(t, "i1") != "changed" || r.text(t, "new") != "new" {
		t.Errorf("following again, the texts are %q and %q", r.text(t, "i1"), r.text(t, "new"))
	}
	if len(before.Versions) != 1 {
		t.Fatalf("at first %+v", before)
	}
}

// followedBy reports whether a model generates the newest version of the list.
func (b *catalogBody) followedBy(model string) bool {
	return slices.Contains(b.Versions[0].Models, model)
}

// A request without an import's name is an import of its own.
func TestABatchIsOneVersion(t *testing.T) {
	r := newRecommender(t)
	var lines []string
	for i := range 2000 { // more than are made durable together
		lines = append(lines, fmt.Sprintf(`{"id": "x%d", "text": "t", "codes": [%d, %d, %d]}`, i, i%6, i/7%5, i/3%4))
	}
	answer := r.lines(t, "", lines...)
	if now := r.now(t); len(now.Versions) != 2 || now.Versions[0].Version != answer.Version || !now.followed() {
		t.Errorf("2000 lines made %+v", now.Versions)
	}
	wantError(t, r.ask("POST", "/v1/items:batch?import=", ""), 400, "invalid_argument", "import")
	wantError(t, r.ask("POST", "/v1/items:batch?import="+strings.Repeat("x", 65), ""), 400, "invalid_argument", "import")
	for i := range 64 {
		r.lines(t, fmt.Sprint("?import=", i))
	}
	wantError(t, r.ask("POST", "/v1/items:batch?import=one-more", ""), 429, "resource_exhausted", "")
	r.lines(t, "?import=7&end")
	r.lines(t, "?import=one-more")
}

// Codes that a model does not have are reported with counts and examples: for a batch, for a single item, and by a
// check before anything changes.
func TestUnusableCodesAreReported(t *testing.T) {
	r := newRecommender(t)
	bad := []string{`{"id": "b1", "text": "t", "codes": [0, 0, 0, 0]}`, `{"id": "b2", "text": "t", "codes": [0, 99, 0]}`,
		`{"id": "i1", "text": "t"}`}
	rec := r.ask("POST", "/v1/items:check", strings.Join(
		append(bad, `{`, ``, `{"delete": "i2"}`, `{"delete": "i2"}`, `{"id": "b1", "codes": [0, 0, 0]}`), "\n"))
	var checked struct {
		Lines, Failed int
		Models        []struct {
			Model    string
			Before   int `json:"items_before"`
			After    int `json:"items_after"`
			Unusable int
			Examples []string
		}
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &checked); err != nil || rec.Code != 200 {
		t.Fatalf("%d, %s, %v", rec.Code, rec.Body, err)
	}
	m := checked.Models[0]
	if checked.Lines != 7 || checked.Failed != 1 || m.Model != "m" || m.Before != 30 || m.After != 29 || m.Unusable != 2 ||
		!strings.Contains(strings.Join(m.Examples, " "), `"b1": 4 codes, but the model has 3 levels`) {
		t.Errorf("checked: %+v", checked)
	}
	if _, ok := r.cat.Item("b1"); ok {
		t.Error("a check has changed the catalog")
	}
	answer := r.lines(t, "", bad...)
	if len(answer.Warnings) != 3 || !strings.Contains(answer.Warnings[0],
		`model "m" does not have the codes of 2 items`) || !strings.Contains(answer.Warnings[0], `"b2": codes[1]: 99`) {
		t.Errorf("the batch warns %q", answer.Warnings)
	}
	if now := r.now(t); now.Models[0].Unusable != 3 || len(now.Models[0].Examples) != 3 { // one existed before
		t.Errorf("the catalog says %+v", now.Models[0])
	}
	rec = r.ask("PUT", "/v1/items/b3", `{"text": "t", "codes": [9, 9, 9, 9]}`)
	if rec.Code != 201 || strings.Count(rec.Body.String(), "never generates the item: 4 codes") != 3 {
		t.Errorf("%d, %s", rec.Code, rec.Body)
	}
	if rec = r.ask("PUT", "/v1/items/b4", `{"text": "t", "codes": [0]}`); strings.Contains(rec.Body.String(), `deep`) {
		t.Errorf("the one model that has the code is warned of: %s", rec.Body)
	}
}

// A search finds items by words of their ids and texts.
func TestSearchItems(t *testing.T) {
	r := newRecommender(t)
	r.lines(t, "", `{"id": "tent-2", "text": "Two-person TENT, green"}`,
		`{"id": "tent-1", "text": "One-person tent, red"}`, `{"id": "s", "text": "Stove"}`)
	for query, want := range map[string]string{
		"q=tent": `["tent-1","tent-2"]`, "q=Tent+GREEN": `["tent-2"]`, "q=tent&limit=1": `["tent-1"]`,
		"q=person+red": `["tent-1"]`, "q=nothing+like+it": `[]`,
	} {
		rec := r.ask("GET", "/v1/items?"+query, "")
		var got struct {
			IDs   json.RawMessage
			More  bool
			Items []struct{ ID, Text string }
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil || rec.Code != 200 || string(got.IDs) != want ||
			got.More != (query == "q=tent&limit=1") {
			t.Errorf("%s: %d %s, want %s", query, rec.Code, rec.Body, want)
		}
		if len(got.Items) > 0 && !strings.Contains(got.Items[0].Text, "person") {
			t.Errorf("%s: %s", query, rec.Body)
		}
	}
	wantError(t, r.ask("GET", "/v1/items?q="+strings.Repeat("x", 257), ""), 400, "invalid_argument", "q")
	wantError(t, r.ask("GET", "/v1/items?q=x&prefix=y", ""), 400, "invalid_argument", "q")
	wantError(t, r.ask("GET", "/v1/users?q=x", ""), 400, "invalid_argument", "q")
}
