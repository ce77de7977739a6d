package serve

import (
	"fmt"
	"slices"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/model/hstu/hstutest"
)

// A request with new events does not look at the stored ones again: they are spoilt behind the catalog's back, and the
// answer stays. Of a user that grew only the events behind are read, and of one that changed otherwise all. Deleted
// users are forgotten.
func TestStoredEventsAreReadOnce(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, hstutest.Spec{Hidden: 48, Layers: 1, Heads: 2, HeadDim: 16, Items: 300, MaxSeqLen: 600,
		Seed: 1}))
	w := newEventWorld(t, dir, "f32", 4000)
	store := func(n, first int) {
		t.Helper()
		more := w.events(n)
		for i := range more {
			more[i].Time = int64(first + i)
		}
		must(t, w.catalog.Apply([]catalog.Op{{AppendEvents: &grebev1.AppendEventsRequest{Id: "u", Events: more}}})[0].Err)
	}
	req := &grebev1.RankRequest{User: &grebev1.User{Id: "u", NewEvents: w.events(3)}}
	for i := range 5 {
		req.Candidates = append(req.Candidates, &grebev1.Item{Id: fmt.Sprint("i", i)})
	}
	rank := func() *grebev1.RankResponse {
		t.Helper()
		resp, err := w.cached.Rank(t.Context(), req)
		must(t, err)
		return resp
	}
	store(400, 1_600_000_000)
	want := rank()
	known, _ := w.catalog.User("u")
	for _, e := range known.Events {
		e.Item = "spoilt"
	}
	got := rank()
	for i, b := range want.Results {
		if a := got.Results[i]; a.Id != b.Id || a.Score != b.Score {
			t.Fatalf("result %d is %v, want %v: stored events were read again", i, a, b)
		}
	}
	store(7, 2_000_000_000)
	if n := rank().Usage.UserTokens; n != 400+7+3 {
		t.Errorf("with events appended the user has %d, want 410", n)
	}
	store(1, 1_500_000_000)
	if n := rank().Usage.UserTokens; n != 7+1+3 { // the spoilt ones are unknown now
		t.Errorf("with an event ahead of the others the user has %d, want 11: those that are known", n)
	}
	if r := w.cached.models["m"].serving().reads().(*events); len(r.known.byUser) != 1 || r.known.events != 7+1+perUser {
		t.Errorf("%d users with a size of %d are remembered, want one with 8 events", len(r.known.byUser), r.known.events)
	}
	must(t, w.cached.ForgetUser("u"))
	if r := w.cached.models["m"].serving().reads().(*events); len(r.known.byUser) != 0 || r.known.events != 0 {
		t.Error("a deleted user is remembered")
	}
}

// Whatever happens to items and users, features of stored events are those that a request with the same events in its
// body reads from the catalog. They are read again only if an item of theirs changed.
func TestFeaturesOfStoredEvents(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, featuredSpec(false)))
	w := newEventWorld(t, dir, "f32", 3000)
	e := w.plain.models["m"].serving().reads().(*events)
	for i := range 60 {
		w.put(t, fmt.Sprint("i", i), fmt.Sprint("c", i%9))
	}
	users := []string{"u", "v"}
	append := func(id string, n int) {
		more := &grebev1.AppendEventsRequest{Id: id, Events: w.events(n)}
		must(t, w.catalog.Apply([]catalog.Op{{AppendEvents: more}})[0].Err)
	}
	for _, id := range users {
		append(id, 40)
	}
	kept, again := 0, 0
	for step := range 300 {
		id := users[w.rand.IntN(2)]
		before, _ := w.catalog.User(id)
		was, _, _ := e.known.get(before)
		switch w.rand.IntN(6) {
		case 0:
			append(id, 1+w.rand.IntN(3))
		case 1, 2:
			w.put(t, fmt.Sprint("i", w.rand.IntN(60)), fmt.Sprint("d", step))
		case 3:
			_, err := w.catalog.DeleteItem(fmt.Sprint("i", w.rand.IntN(60)))
			must(t, err)
		case 4:
			w.put(t, "nobody's", fmt.Sprint("d", step))
		default:
			if step%10 == 0 {
				for i := range rememberedChanges + 1 {
					w.put(t, fmt.Sprint("other", i), fmt.Sprint("d", step))
				}
			}
		}
		stored, _ := w.catalog.User(id)
		fresh := &grebev1.User{Events: w.events(w.rand.IntN(3))}
		got := e.sequence(w.plain, &call{stored: stored},
			&grebev1.User{Id: id, Events: stored.Events, NewEvents: fresh.Events})
		want := e.sequence(w.plain, &call{}, &grebev1.User{Events: slices.Concat(stored.Events, fresh.Events)})
		if !slices.Equal(got.content, want.content) || !slices.Equal(got.identity.Tokens(), want.identity.Tokens()) {
			t.Fatalf("step %d: %s has content\n%v\nand tokens %v, want\n%v\nand %v", step, id, got.content,
				got.identity.Tokens(), want.content, want.identity.Tokens())
		}
		if now, _, ok := e.known.get(stored); !ok {
			t.Fatalf("step %d: %s is not remembered", step, id)
		} else if was != nil && &now.content[0] == &was.content[0] {
			kept++
		} else {
			again++
		}
	}
	if kept < 60 || again < 60 {
		t.Errorf("features were kept %d times and read again %d times", kept, again)
	}
}

// What it takes to read a request's events does not grow with the stored ones.
func TestReadingNewEventsAllocatesTheSame(t *testing.T) {
	for _, spec := range []hstutest.Spec{{Hidden: 32, Layers: 1, Heads: 2, HeadDim: 16, Items: 300, Seed: 1},
		featuredSpec(false)} {
		spec.MaxSeqLen = 20_000
		t.Run(fmt.Sprint(spec.Items), func(t *testing.T) { readingNewEvents(t, spec) })
	}
}

func readingNewEvents(t *testing.T, spec hstutest.Spec) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, spec))
	w := newEventWorld(t, dir, "f32", 10)
	e := w.plain.models["m"].serving().reads().(*events)
	allocs := func(n int) float64 {
		u := &grebev1.User{Id: fmt.Sprint("u", n), Events: w.events(n)}
		must(t, w.catalog.Apply([]catalog.Op{{PutUser: u}})[0].Err)
		known, _ := w.catalog.User(u.Id)
		c := &call{stored: known}
		with := &grebev1.User{Id: u.Id, Events: known.Events, NewEvents: w.events(20)}
		return testing.AllocsPerRun(20, func() {
			if got := e.sequence(w.plain, c, with); len(got.tokens) != n+20 {
				t.Fatalf("%d events, want %d", len(got.tokens), n+20)
			}
		})
	}
	if few, many := allocs(10), allocs(15_000); many > few {
		t.Errorf("%v allocations with 15,000 stored events, %v with 10", many, few)
	}
}

// The least recently used sequences leave when there are too many events.
func TestSequencesAreBounded(t *testing.T) {
	q := sequences{most: 10 + 3*perUser}
	users := map[string]*grebev1.User{}
	put := func(id string, n int) {
		users[id] = &grebev1.User{Id: id}
		q.put(users[id], &sequence{tokens: make([]int32, n)})
	}
	put("a", 4)
	put("b", 4)
	if _, _, ok := q.get(users["a"]); !ok {
		t.Fatal("a is not remembered")
	}
	put("c", 4)
	put("d", 11+2*perUser)
	for id, want := range map[string]bool{"a": true, "b": false, "c": true, "d": false} {
		if _, _, ok := q.get(users[id]); ok != want {
			t.Errorf("%s is remembered: %v, want %v", id, ok, want)
		}
	}
	if q.events != 8+2*perUser || q.used.Len() != 2 || len(q.byUser) != 2 {
		t.Errorf("a size of %d, of %d users, want 8 events of 2", q.events, q.used.Len())
	}
}

// Users whose items are all unknown to the model count, too, and leave.
func TestUsersWithoutKnownEventsAreBounded(t *testing.T) {
	q := sequences{most: 3 * perUser}
	for i := range 100 {
		q.put(&grebev1.User{Id: fmt.Sprint(i)}, &sequence{tokens: make([]int32, 0, 1000), unknown: 1000})
	}
	if q.used.Len() != 3 || len(q.byUser) != 3 {
		t.Errorf("%d users are remembered, want 3", q.used.Len())
	}
	if r := q.used.Front().Value.(*remembered); cap(r.tokens) != 0 {
		t.Errorf("room for %d events is kept, of a user with none that is known", cap(r.tokens))
	}
}
