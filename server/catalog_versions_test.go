package server

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	grebev1 "grebe/api/grebe/v1"
	"grebe/generate"
)

type catalogBody struct {
	Version string
	Models  []struct {
		Model, Version string
		Pinned         bool
		Unusable       int
		Examples       []string
	}
	Versions []struct {
		Version, Digest string
		Items           int
		Models          []string
	}
}

func (r *recommender) describe(t *testing.T, rec *httptest.ResponseRecorder) *catalogBody {
	t.Helper()
	var b catalogBody
	if err := json.Unmarshal(rec.Body.Bytes(), &b); rec.Code != 200 || err != nil {
		t.Fatalf("%d, %s, %v", rec.Code, rec.Body, err)
	}
	return &b
}

func (r *recommender) now(t *testing.T) *catalogBody {
	t.Helper()
	return r.describe(t, r.ask("GET", "/v1/catalog", ""))
}

// followed reports whether the last of the models generates the latest items.
func (b *catalogBody) followed() bool {
	return slices.Contains(b.Versions[0].Models, "deep") && b.Versions[0].Version == b.Version
}

// until waits until the catalog satisfies is.
func (r *recommender) until(t *testing.T, what string, is func(*catalogBody) bool) *catalogBody {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		b := r.now(t)
		if is(b) {
			return b
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a minute not %s: %+v", what, b)
		}
	}
}

func TestActivateAndRollBack(t *testing.T) {
	r := newRecommender(t)
	first := r.now(t)
	if len(first.Versions) != 1 || first.Versions[0].Items != 31 ||
		!slices.Equal(first.Versions[0].Models, []string{"m", "bare", "deep"}) {
		t.Fatalf("at first %+v", first)
	}
	wantError(t, r.ask("POST", "/v1/catalog:rollback", ""), 409, "conflict", "")
	_, err := r.cat.DeleteItem("i3")
	must(t, err)
	second := r.until(t, "following", (*catalogBody).followed)
	if len(second.Versions) != 2 || second.Models[0].Version != second.Version {
		t.Fatalf("after a change %+v", second)
	}
	old, oldest := second.Versions[1], `"version": "`+second.Versions[1].Version+`"`
	for _, c := range []struct {
		path, body, code, field string
		status                  int
	}{
		{"activate", `{}`, "invalid_argument", "version", 400},
		{"activate", `{"version": "12345"}`, "not_found", "version", 404},
		{"activate", `{"version": "yesterday"}`, "not_found", "version", 404},
		{"activate", `{"version": 1}`, "invalid_argument", "version", 400},
		{"activate", `{"model": "x", ` + oldest + `}`, "not_found", "model", 404},
		{"activate", `{"model": "ranks", ` + oldest + `}`, "unprocessable", "model", 422},
		{"activate", `{"digest": "00", ` + oldest + `}`, "conflict", "digest", 409},
		{"activate", `{"digest": "00", "version": "auto"}`, "invalid_argument", "digest", 400},
		{"activate", `{"versions": "1"}`, "invalid_argument", "versions", 400},
		{"rollback", `{"version": "1"}`, "invalid_argument", "version", 400},
	} {
		wantError(t, r.ask("POST", "/v1/catalog:"+c.path, c.body), c.status, c.code, c.field)
	}
	got := r.describe(t, r.ask("POST", "/v1/catalog:activate", `{"model": "m", "digest": "`+old.Digest+`", `+oldest+`}`))
	if m := got.Models; m[0].Version != old.Version || !m[0].Pinned || m[1].Version != second.Version || m[1].Pinned {
		t.Fatalf("after the activation for one model: %+v", got)
	}
	if b := r.recommend(t, `"user": {"id": "u1"}, "n": 100`); b.Version != old.Version || !slices.Contains(b.ids(), "i3") {
		t.Errorf("the activated version has i3: %v of %s", b.ids(), b.Version)
	}
	_, err = r.cat.DeleteItem("i4") // does not change what was activated
	must(t, err)
	third := r.until(t, "following", (*catalogBody).followed)
	if m := third.Models; m[0].Version != old.Version || m[1].Version != third.Version {
		t.Errorf("after another change: %+v", third)
	}
	if b := r.describe(t, r.ask("POST", "/v1/catalog:rollback",
		`{"model": "bare"}`)); b.Models[1].Version != second.Version || !b.Models[1].Pinned {
		t.Errorf("rolled back: %+v", b)
	}
	if b := r.describe(t, r.ask("POST", "/v1/catalog:activate",
		`{"version": "auto"}`)); b.Models[0].Version != third.Version || b.Models[0].Pinned || b.Models[1].Pinned {
		t.Errorf("following again: %+v", b)
	}
	if b := r.recommend(t, `"user": {"id": "u1"}, "n": 100`); slices.Contains(b.ids(), "i3") ||
		slices.Contains(b.ids(), "i4") || len(b.Results) != 28 {
		t.Errorf("the latest version has %v", b.ids())
	}
}

func TestVersionsOverGRPC(t *testing.T) {
	r := newRecommender(t)
	_, err := r.cat.DeleteItem("i3")
	must(t, err)
	r.until(t, "following", (*catalogBody).followed)
	c := grebev1.NewGrebeClient(overPipe(t, r.world))
	got, err := c.RollbackCatalog(t.Context(), &grebev1.RollbackCatalogRequest{})
	must(t, err)
	if old := got.Versions[1]; got.Models[0].Version != old.Version || !got.Models[2].Pinned || old.Items != 31 ||
		len(old.Models) != 3 {
		t.Errorf("rolled back: %v", got)
	}
	if _, err := c.RollbackCatalog(t.Context(), &grebev1.RollbackCatalogRequest{}); status.Code(
		err) != codes.FailedPrecondition {
		t.Errorf("rolled back once more: %v", err)
	}
	if _, err := c.ActivateCatalog(t.Context(), &grebev1.ActivateCatalogRequest{Version: "0"}); status.Code(
		err) != codes.NotFound {
		t.Errorf("no such version: %v", err)
	}
	_, err = c.ActivateCatalog(t.Context(), &grebev1.ActivateCatalogRequest{Version: generate.Auto})
	must(t, err)
	again, err := c.GetCatalog(t.Context(), &grebev1.GetCatalogRequest{})
	must(t, err)
	if again.Models[0].Version != again.Version || again.Models[0].Pinned {
		t.Errorf("following again: %v", again)
	}
}

// While items change and versions are activated and rolled back, no request fails, and each gets exactly the items of
// the version in its answer.
func TestVersionsChangeUnderLoad(t *testing.T) {
	r := newRecommender(t)
	const switches = 40
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	answered := make(chan string)
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				rec := r.ask("POST", "/v1/recommend", `{"model": "m", "user": {"id": "u1"}, "n": 10000, "beam_width": 1024}`)
				select {
				case answered <- r.consistent(t, rec):
				case <-ctx.Done():
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(2, 2))
	seen := map[string]int{}
	back := 0 // answers with an older version than the answer before
	last := ""
	for i := 0; i < switches && !t.Failed(); i++ {
		if i%3 == 0 {
			r.change(t, rng, answered)
		}
		if i%3 != 0 {
			all := r.now(t).Versions
			body := fmt.Sprintf(`{"version": %q}`, all[rng.IntN(len(all))].Version)
			path := "activate"
			if i%6 == 2 {
				path, body = "rollback", ""
			}
			if rec := r.ask("POST", "/v1/catalog:"+path, body); rec.Code != 200 && rec.Code != 409 &&
				!strings.Contains(rec.Body.String(), "is kept") {
				t.Errorf("%s %s: %d, %s", path, body, rec.Code, rec.Body)
			}
		} else if rec := r.ask("POST", "/v1/catalog:activate", `{"version": "auto"}`); rec.Code != 200 {
			t.Errorf("auto: %d, %s", rec.Code, rec.Body)
		}
		for range 6 {
			v := <-answered
			seen[v]++
			if len(v) < len(last) || len(v) == len(last) && v < last {
				back++
			}
			last = v
		}
	}
	stop()
	wg.Wait()
	if len(seen) < 5 || back < 3 {
		t.Errorf("only %d versions were seen, %d times an earlier one after a later one: the test tests little", len(seen),
			back)
	}
}

// change makes a random change and waits, while requests are answered, until a version has it.
func (r *recommender) change(t *testing.T, rng *rand.Rand, answered <-chan string) {
	t.Helper()
	id := fmt.Sprint("i", rng.IntN(60))
	before := r.now(t).Versions[0].Version
	_, err := r.cat.PutItem(itemWith(rng, id, "0"))
	if rng.IntN(3) == 0 {
		_, err = r.cat.DeleteItem(id)
	}
	must(t, err)
	r.until(t, "a new version", func(b *catalogBody) bool {
		select {
		case <-answered:
		default:
		}
		// An item that was added and deleted makes no version.
		_, there := r.cat.Item(id)
		return b.Versions[0].Version != before || !there
	})
}
