package serve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/model/hstu/hstutest"
)

// Shares are the sums of 2^(-age / half-life), whatever the order of users.
func TestPopularShares(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := rand.New(rand.NewPCG(1, 2))
	var users [][]*grebev1.Event
	want, total := map[string]float64{}, 0.0
	for range 200 {
		var events []*grebev1.Event
		for range 1 + r.IntN(20) {
			age := r.Int64N(40 * 24 * 3600)
			e := &grebev1.Event{Item: fmt.Sprint("i", r.IntN(30)), Time: now.Unix() - age}
			w := math.Exp2(-float64(age) / (7 * 24 * 3600))
			want[e.Item] += w
			total += w
			events = append(events, e)
		}
		users = append(users, events)
	}
	c := newCounts(now)
	for _, u := range users {
		c.add(u)
	}
	got := c.shares(100)
	if len(got) != len(want) {
		t.Fatalf("%d items, want %d", len(got), len(want))
	}
	for i, x := range got {
		if i > 0 && x.Share > got[i-1].Share || math.Abs(x.Share-want[x.ID]/total) > 1e-9 {
			t.Errorf("place %d: %s has %v, want %v", i, x.ID, x.Share, want[x.ID]/total)
		}
	}
	for range 5 {
		r.Shuffle(len(users), func(i, j int) { users[i], users[j] = users[j], users[i] })
		c := newCounts(now)
		for _, u := range users {
			c.add(u)
		}
		if again := c.shares(10); !slices.Equal(again, got[:10]) {
			t.Errorf("in another order: %v, want %v", again, got[:10])
		}
	}
}

// Events without a time are as old as the one before them, or as the oldest of all. Those of the future are of now.
func TestPopularWithoutTimes(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	week := int64(7 * 24 * 3600)
	c := newCounts(now)
	c.add([]*grebev1.Event{{Item: "a"}, {Item: "b", Time: now.Unix() - week}, {Item: "c"},
		{Item: "d", Time: now.Unix() + week}})
	c.add([]*grebev1.Event{{Item: "e", Time: now.Unix() - 2*week}})
	want := map[string]float64{"a": 0.25, "b": 0.5, "c": 0.5, "d": 1, "e": 0.25}
	for _, x := range c.shares(10) {
		if math.Abs(x.Share-want[x.ID]/2.5) > 1e-9 {
			t.Errorf("%s has %v, want %v", x.ID, x.Share, want[x.ID]/2.5)
		}
	}
	c = newCounts(now)
	c.add([]*grebev1.Event{{Item: "a"}, {Item: "a"}, {Item: "b"}})
	if got := c.shares(1); len(got) != 1 || got[0].ID != "a" || math.Abs(got[0].Share-2.0/3) > 1e-9 {
		t.Errorf("without any time: %v", got)
	}
	if got := newCounts(now).shares(5); len(got) != 0 {
		t.Errorf("of no events: %v", got)
	}
}

// Models of events fall back too, to items that they know. The list is made again once it is old.
func TestEventsFallBack(t *testing.T) {
	dir := t.TempDir()
	must(t, hstutest.Write(dir, hstutest.Spec{Hidden: 32, Layers: 1, Heads: 2, HeadDim: 16, Items: 40, MaxSeqLen: 50}))
	w := newEventWorld(t, dir, "f32", 1000)
	now := time.Unix(1_700_000_000, 0)
	w.plain.now = func() time.Time { return now }
	put := func(user, item string) {
		t.Helper()
		_, err := w.catalog.PutUser(&grebev1.User{Id: user, Events: []*grebev1.Event{{Item: item, Time: now.Unix()}}})
		must(t, err)
	}
	ask := func(exclude ...string) []string {
		t.Helper()
		resp, err := w.plain.Recommend(t.Context(), &grebev1.RecommendRequest{
			User: &grebev1.User{Id: "nobody"}, N: 2, Fallback: "popular",
			Exclude: exclude})
		must(t, err)
		var ids []string
		for _, x := range resp.Results {
			ids = append(ids, x.Id)
		}
		if resp.Fallback != "popular" || resp.Short != (len(ids) < 2) {
			t.Errorf("%v", resp)
		}
		return ids
	}
	put("a", "i7")
	put("b", "i7")
	put("c", "i3")
	put("d", "no such item")
	if got := ask(); !slices.Equal(got, []string{"i7", "i3"}) {
		t.Errorf("%v", got)
	}
	if got := ask("i7"); !slices.Equal(got, []string{"i3"}) {
		t.Errorf("without i7: %v", got)
	}
	for _, u := range []string{"e", "f", "g"} {
		put(u, "i5")
	}
	if got := ask(); !slices.Equal(got, []string{"i7", "i3"}) {
		t.Errorf("from a fresh list: %v", got)
	}
	for _, c := range []struct {
		user *grebev1.User
		note string
	}{
		{&grebev1.User{Id: "d"}, "1 item of the history was left out: it is unknown"},
		{&grebev1.User{History: []string{"x", "y"}}, "2 items of the history were left out: they are unknown"},
		{&grebev1.User{History: []string{"x", "i3"}}, ""},
		{&grebev1.User{Id: "d", NewEvents: []*grebev1.Event{{Item: "i3"}}}, ""},
	} {
		resp, err := w.plain.Recommend(t.Context(), &grebev1.RecommendRequest{User: c.user, N: 2, Fallback: "popular"})
		must(t, err)
		if got := resp.Fallback == "popular"; got != (c.note != "") || got && resp.Usage.Note != c.note {
			t.Errorf("%v: %v, want the note %q", c.user, resp, c.note)
		}
	}
	now = now.Add(popularFresh)
	ask()                     // starts a new list
	w.plain.background.Wait() // which is then ready
	if got := ask(); !slices.Equal(got, []string{"i5", "i7"}) {
		t.Errorf("after a minute: %v", got)
	}
}
