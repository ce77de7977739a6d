package serve

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/model/hstu"
	"grebe/model/hstu/hstutest"
)

// featuredSpec has tables for categories, which items have, and for creators and campaigns, which events and candidates
// bring.
func featuredSpec(mlps bool) hstutest.Spec {
	return hstutest.Spec{Hidden: 32, Layers: 2, Heads: 2, HeadDim: 16, Items: 60, MaxSeqLen: 300, Seed: 3,
		Change: func(c *hstu.Config) {
			c.Content = []hstu.ContentFeature{
				{Name: "category", Table: "categories", Rows: 7, Dim: 32},
				{Name: "creator", Table: "creators", Rows: 50, Dim: 32},
				{Name: "campaign", Table: "campaigns", Rows: 5, Dim: 32, Target: true},
			}
			if mlps {
				c.TableDim, c.Preprocessor, c.ItemMLP, c.Retrieval = 16, 24, 24, false
				c.Content[0].Dim, c.Content[1].Dim, c.Content[2].Dim = 4, 8, 4
				c.Content[1].ItemMLP = true
			}
		}}
}

// put writes an item with a category to the catalog.
func (w *eventWorld) put(t *testing.T, id string, category ...string) {
	t.Helper()
	text := id
	_, err := w.catalog.PutItem(&grebev1.Item{Id: id, Text: &text,
		Attributes: map[string]*grebev1.Values{"category": {Values: category}}})
	must(t, err)
}

// Whatever features of events and attributes of items change, a returning user's scores equal those of a full
// computation to the bit, and what comes before a change is reused.
func TestChangedFeaturesNeverHitStaleKV(t *testing.T) {
	for _, mlps := range []bool{false, true} {
		t.Run(fmt.Sprint("MLPs ", mlps), func(t *testing.T) {
			dir := t.TempDir()
			must(t, hstutest.Write(dir, featuredSpec(mlps)))
			w := newEventWorld(t, dir, "f32", 3000)
			for i := range 60 {
				w.put(t, fmt.Sprint("i", i), fmt.Sprint("c", i%9))
			}
			var all []*grebev1.Event
			more := func(n int) {
				for _, e := range w.events(n) {
					if w.rand.IntN(3) > 0 {
						e.Features = map[string]float64{"creator": float64(w.rand.IntN(1000))}
					}
					all = append(all, e)
				}
			}
			more(100)
			reused := 0
			for step := range 60 {
				at := w.rand.IntN(len(all))
				switch w.rand.IntN(4) {
				case 0:
					more(1 + w.rand.IntN(3))
				case 1: // an event's creator
					changed := &grebev1.Event{Item: all[at].Item, Action: all[at].Action, Features: maps.Clone(all[at].Features)}
					if changed.Features == nil {
						changed.Features = map[string]float64{}
					}
					changed.Features["creator"]++
					all = slices.Clone(all)
					all[at] = changed
				case 2: // an item's category
					w.put(t, fmt.Sprint("i", w.rand.IntN(60)), fmt.Sprint("d", step))
				}
				id := ""
				if w.rand.IntN(2) == 0 {
					id = "u"
				}
				req := &grebev1.RankRequest{User: &grebev1.User{Id: id, Events: all}}
				for range 4 {
					req.Candidates = append(req.Candidates, &grebev1.Item{Id: fmt.Sprint("i", w.rand.IntN(60)),
						Attributes: map[string]*grebev1.Values{"creator": {Values: []string{strconv.Itoa(w.rand.IntN(99))}},
							"campaign": {Values: []string{fmt.Sprint("spring ", w.rand.IntN(9))}}}})
				}
				got, err := w.cached.Rank(t.Context(), req)
				must(t, err)
				want, err := w.plain.Rank(t.Context(), req)
				must(t, err)
				for i := range want.Results {
					if a, b := got.Results[i], want.Results[i]; a.Index != b.Index || a.Score != b.Score {
						t.Fatalf("step %d: result %d is %v, computed anew %v", step, i, a, b)
					}
				}
				reused += int(got.Usage.CachedTokens)
			}
			if reused < 1000 {
				t.Errorf("%d rows of about 6,000 were reused", reused)
			}
		})
	}
}

// Each feature of a candidate, from the request or from the catalog, and of an event changes the scores; the request's
// comes before the catalog's, and ids meet the table's rows modulo their number.
func TestFeaturesOfCandidates(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, featuredSpec(true)))
	w := newEventWorld(t, dir, "f32", 3000)
	events := w.events(10)
	score := func(event map[string]float64, candidate map[string]string) float64 {
		t.Helper()
		own := slices.Clone(events)
		own[9] = &grebev1.Event{Item: own[9].Item, Features: event}
		c := &grebev1.Item{Id: "i3", Attributes: map[string]*grebev1.Values{}}
		for name, v := range candidate {
			c.Attributes[name] = &grebev1.Values{Values: []string{v}}
		}
		resp, err := w.plain.Rank(t.Context(), &grebev1.RankRequest{User: &grebev1.User{Events: own},
			Candidates: []*grebev1.Item{c}})
		must(t, err)
		return resp.Results[0].Score
	}
	none := score(nil, nil)
	category := score(nil, map[string]string{"category": "2"})
	for what, differ := range map[string]bool{
		"a candidate's creator":       score(nil, map[string]string{"creator": "3"}) != none,
		"a candidate's campaign":      score(nil, map[string]string{"campaign": "3"}) != none,
		"a candidate's category":      category != none,
		"an event's creator":          score(map[string]float64{"creator": 3}, nil) != none,
		"not an event's campaign":     score(map[string]float64{"campaign": 3}, nil) == none,
		"not a feature without table": score(map[string]float64{"weather": 3}, nil) == none,
		"not half a creator":          score(map[string]float64{"creator": 3.5}, nil) == none,
		"not the multiple of an id": score(map[string]float64{"creator": 53}, nil) ==
			score(map[string]float64{"creator": 3}, nil),
	} {
		if !differ {
			t.Errorf("%s matters: it does not hold", what)
		}
	}
	w.put(t, "i3", "2", "5")
	if got := score(nil, nil); got != category {
		t.Errorf("with the category of the catalog the score is %v, with that of the request %v", got, category)
	}
	if a, b := score(nil, map[string]string{"category": "1"}), category; a == b {
		t.Error("the catalog's category comes before the request's")
	}
	_, err := w.plain.Rank(t.Context(), &grebev1.RankRequest{User: &grebev1.User{Events: events}, Prefix: "item",
		Candidates: []*grebev1.Item{{Id: "i3"}}})
	var e *Error
	if !errors.As(err, &e) || e.code != Unprocessable {
		t.Errorf("candidates with features before the history: %v", err)
	}
}

// Contextual features are rows modulo the table's number.
func TestContextRows(t *testing.T) {
	cfg := &hstu.Config{Features: []hstu.Feature{{Name: "group", Rows: 10}, {Name: "tag", Rows: 3}}}
	got := contextOf(cfg, []*grebev1.Event{
		{Features: map[string]float64{"group": 4, "other": 1}},
		{Features: map[string]float64{"group": 13, "tag": 0.5}},
		{Features: map[string]float64{"group": -1}}})
	if want := map[string][]int32{"group": {3, 4}}; !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("rows are %v, want %v", got, want)
	}
}

// Tokens that are hashes have 2³¹ values, one more than the field of the answer holds.
func TestFeaturedVocabularyIsNotNegative(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, featuredSpec(false)))
	got, err := newEventWorld(t, dir, "f32", 300).plain.Model("m")
	must(t, err)
	if got.VocabSize != math.MaxInt32 {
		t.Errorf("vocab_size is %d", got.VocabSize)
	}
}
