package catalog

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

func event(id, item string, time int64) *grebev1.Event {
	return &grebev1.Event{Id: id, Item: item, Time: time, Features: map[string]float64{"f": 1}}
}

func timesOf(u *grebev1.User) string {
	var out []string
	for _, e := range u.Events {
		out = append(out, fmt.Sprint(e.Item, "@", e.Time, e.Id))
	}
	return strings.Join(out, " ") + " | " + strings.Join(u.History, " ")
}

// Events are kept in the order of their times, those with an id that the user has are not added again, and all of it is
// so after a restart.
func TestEventsAreOrderedAndIdempotent(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, Options{})
	if _, err := c.PutUser(&grebev1.User{Id: "h", History: []string{"old"}}); err != nil {
		t.Fatal(err)
	}
	add := func(id string, duplicates int, want string, events ...*grebev1.Event) {
		t.Helper()
		u, _, _, err := c.AppendEvents(id, events)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := c.User(id)
		if timesOf(got) != want || u.Duplicates != duplicates || len(u.Events) != len(got.Events) {
			t.Fatalf("%s has %s, %d duplicates; want %s, %d", id, timesOf(got), u.Duplicates, want, duplicates)
		}
		shut(t, c)
		c = open(t, dir, Options{})
		if got, _ := c.User(id); timesOf(got) != want {
			t.Fatalf("after a restart %s has %s, want %s", id, timesOf(got), want)
		}
	}
	for _, id := range []string{"n", "h"} {
		tail := func(items string) string {
			if id == "n" {
				return " | "
			}
			return " | old " + items
		}
		add(id, 0, "a@10x c@30"+tail("a c"), event("x", "a", 10), event("", "c", 30))
		add(id, 0, "a@10x b@20y c@30"+tail("a b c"), event("y", "b", 20))
		add(id, 1, "a@10x b@20y c@30 d@0"+tail("a b c d"), event("y", "b", 20), event("", "d", 0))
		add(id, 0, "z@5 a@10x b@20y c@30 d@0 e@30z"+tail("z a b c d e"), event("z", "e", 30), event("", "z", 5))
		add(id, 2, "z@5 a@10x b@20y c@30 d@0 e@30z"+tail("z a b c d e"), event("z", "e", 30), event("x", "other", 99))
		add(id, 1, "z@5 a@10x b@20y c@30 d@0 e@30z f@40w"+tail("z a b c d e f"), event("w", "f", 40), event("w", "f", 40))
	}
	before := c.Stats().Version
	if _, _, _, err := c.AppendEvents("n", []*grebev1.Event{event("w", "f", 40)}); err != nil ||
		c.Stats().Version != before {
		t.Errorf("a repeated event changed the catalog: %v", err)
	}
	if _, _, _, err := c.AppendEvents("n", []*grebev1.Event{event(strings.Repeat("x", 129), "f", 40)}); err == nil {
		t.Error("an id of 129 bytes is accepted")
	}
	shut(t, c)
}

// Whatever the order in which events arrive, the user has them in the order of their times, and readers of an earlier
// state see it unchanged.
func TestEventsInAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	for range 50 {
		c := New(Options{})
		var all []*grebev1.Event
		for i := range 40 {
			all = append(all, event(fmt.Sprint("e", i), fmt.Sprint("i", i), int64(1000+i)))
		}
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for len(all) > 0 {
			n := min(len(all), 1+r.IntN(5))
			before, known := c.User("u")
			was := ""
			if known {
				was = timesOf(before)
			}
			if _, _, _, err := c.AppendEvents("u", all[:n]); err != nil {
				t.Fatal(err)
			}
			if known && timesOf(before) != was {
				t.Fatal("what was handed out has changed")
			}
			all = all[n:]
		}
		u, _ := c.User("u")
		if len(u.Events) != 40 || !slices.IsSortedFunc(u.Events,
			func(a, b *grebev1.Event) int { return int(a.Time - b.Time) }) {
			t.Fatalf("the user has %s", timesOf(u))
		}
	}
}

// Appending the events of many users at once leaves what appending them one by one does, on disk too.
func TestManyUsersEventsAtOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	many, single := open(t, dir, Options{MaxHistory: 40}), New(Options{MaxHistory: 40})
	for range 30 {
		var ops []Op
		added, duplicates := 0, 0
		for range 1 + r.IntN(40) {
			e := event(fmt.Sprint("e", r.IntN(300)), fmt.Sprint("i", r.IntN(9)), int64(r.IntN(1000)))
			ops = append(ops, Op{AppendEvents: &grebev1.AppendEventsRequest{
				Id: fmt.Sprint("u", r.IntN(5)), Events: []*grebev1.Event{e}}})
		}
		bad := r.IntN(len(ops))
		ops[bad].AppendEvents.Events[0].Item = ""
		slices.SortStableFunc(ops, func(a, b Op) int { // one change per user: the order between users is free
			return strings.Compare(a.AppendEvents.Id, b.AppendEvents.Id)
		})
		for _, res := range many.Apply(ops) {
			duplicates += res.Duplicates
		}
		byUser := map[string][]*grebev1.Event{}
		for _, op := range ops {
			if a := op.AppendEvents; a.Events[0].Item != "" {
				byUser[a.Id] = append(byUser[a.Id], a.Events...)
				added++
			}
		}
		for id, events := range byUser {
			u, _, _, err := single.AppendEvents(id, events)
			if err != nil {
				t.Fatal(err)
			}
			duplicates -= u.Duplicates
		}
		if duplicates != 0 {
			t.Fatalf("of %d events the number of duplicates differs by %d", added, duplicates)
		}
	}
	shut(t, many)
	many = open(t, dir, Options{MaxHistory: 40})
	defer shut(t, many)
	for i := range 5 {
		id := fmt.Sprint("u", i)
		a, _ := many.User(id)
		b, _ := single.User(id)
		if timesOf(a) != timesOf(b) {
			t.Errorf("user %s has %s, one by one %s", id, timesOf(a), timesOf(b))
		}
	}
	if res := many.Apply([]Op{{AppendEvents: &grebev1.AppendEventsRequest{Id: "u1"}},
		{PutUser: &grebev1.User{Id: "x"}}}); res[0].Err == nil || res[1].Err != nil {
		t.Errorf("among other changes: %+v", res)
	}
}
