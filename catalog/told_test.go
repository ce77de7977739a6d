package catalog

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
)

// The changes of an import name it, and its end is a version of its own, which outlives a restart.
func TestImportsAreNamed(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		c := New(Options{})
		if dir != "" {
			c = open(t, dir, Options{})
		}
		var told []string
		c.Subscribe(func(ch Change) {
			told = append(told, fmt.Sprintf("%d %s %q %v", ch.Version, ch.ID, ch.Import, ch.Ended))
		})
		c.ApplyImport("first", []Op{{PutItem: &grebev1.Item{Id: "a"}}, {PutUser: &grebev1.User{Id: "u"}}})
		c.Apply([]Op{{PutItem: &grebev1.Item{Id: "b"}}})
		version, err := c.EndImport("first")
		if version != 4 || err != nil {
			t.Errorf("the import ended at version %d, %v", version, err)
		}
		want := []string{`1 a "first" false`, `2 u "first" false`, `3 b "" false`, `4  "first" true`}
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		if s := c.Stats(); s.Items != 2 || s.Users != 1 || s.Version != 4 {
			t.Errorf("after the import %+v", s)
		}
		if dir == "" {
			continue
		}
		shut(t, c)
		if _, err := c.EndImport("second"); !errors.Is(err, ErrClosed) {
			t.Errorf("an import that ends after Close: %v", err)
		}
		c = open(t, dir, Options{})
		if s := c.Stats(); s.Version != 4 {
			t.Errorf("after a restart version %d, want 4", s.Version)
		}
		shut(t, c)
	}
}

// A catalog whose disk failed says so, in what it logs too; one in order does not.
func TestFailedTellsWhy(t *testing.T) {
	var log strings.Builder
	c := open(t, t.TempDir(), Options{Logger: textLogger(&log)})
	if err := c.Failed(); err != nil {
		t.Errorf("in order: %v", err)
	}
	if err := c.store.db.Close(); err != nil {
		t.Fatal(err)
	}
	defer c.store.lock.Close()
	results := c.Apply([]Op{{PutItem: &grebev1.Item{Id: "a"}}, {PutItem: &grebev1.Item{}},
		{PutUser: &grebev1.User{Id: "u"}}})
	for i, r := range results {
		if r.Err == nil || r.Created || r.Changed || (i == 1) == errors.Is(r.Err, ErrFailed) {
			t.Errorf("change %d: %+v", i, r)
		}
	}
	if err := c.Failed(); !errors.Is(err, ErrFailed) {
		t.Errorf("Failed says %v", err)
	}
	if s := c.Stats(); s.Version != 0 || s.Items != 0 || s.Memory != 0 {
		t.Errorf("what failed is counted: %+v", s)
	}
	if !strings.Contains(log.String(), "takes no more writes") {
		t.Errorf("logged %q", log.String())
	}
	if err := c.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("Close: %v", err)
	}
	c.store.sweeper.Stop()
}

// Each change of a batch reports what became of it, and one that is refused keeps no other from being made.
func TestResultsOfABatch(t *testing.T) {
	c := New(Options{MaxItems: 2})
	ops := []Op{
		{PutItem: &grebev1.Item{Id: "a"}}, {PutItem: &grebev1.Item{Id: "a"}},
		{PutItem: &grebev1.Item{Id: "a", Tokens: []int32{1}}},
		{PutItem: &grebev1.Item{Id: "b"}}, {PutItem: &grebev1.Item{Id: "c"}}, {DeleteItem: "b"}, {DeleteItem: "b"},
		{PutItem: &grebev1.Item{Id: "c"}}, {PutUser: &grebev1.User{Id: "u"}}, {DeleteUser: "u"}, {DeleteUser: "u"},
	}
	const created, changed, same, full = "created", "changed", "same", "full"
	want := []string{created, same, changed, created, full, changed, same, created, created, changed, same}
	for i, r := range c.Apply(ops) {
		got := same
		switch {
		case errors.Is(r.Err, ErrFull):
			got = full
		case r.Err != nil:
			got = r.Err.Error()
		case r.Created && r.Changed:
			got = created
		case r.Changed:
			got = changed
		}
		if got != want[i] {
			t.Errorf("change %d: %s (%+v), want %s", i, got, r, want[i])
		}
	}
	if s := c.Stats(); s.Items != 2 || s.Users != 0 || s.Version != 7 {
		t.Errorf("after all %+v", s)
	}
	empty := New(Options{})
	for _, id := range []string{"a", "c"} {
		if _, err := c.DeleteItem(id); err != nil {
			t.Fatal(err)
		}
	}
	if s := c.Stats(); s.Memory != 0 || s.Digest != empty.Stats().Digest {
		t.Errorf("an empty catalog has %d bytes and digest %s", s.Memory, s.Digest)
	}
}

// Whatever an item or a user has is the same after it was stored: flags, empty lists and all.
func TestRecordsKeepEverything(t *testing.T) {
	text, empty, zero := "text", "", int32(0)
	dir := t.TempDir()
	c := open(t, dir, Options{})
	events := []*grebev1.Event{
		{Item: "i", Time: -5, Action: 3, Features: map[string]float64{"a": 1.5, "b": -2}}, {Item: "j"},
		{Item: strings.Repeat("k", 300), Id: "id", Time: 1 << 40},
	}
	values := &grebev1.Values{Values: []string{"x", "", "z"}}
	items := []*grebev1.Item{
		{Id: "plain"}, {Id: "all", Text: &text, Tokens: []int32{-1, 1 << 30}, Identifier: &zero, Codes: []int32{7, 8},
			Attributes: map[string]*grebev1.Values{"one": values, "two": {Values: []string{"v"}}, "none": {}}},
		{Id: "empty", Tokens: []int32{}, Codes: []int32{}}, {Id: strings.Repeat("l", 200), Text: &text},
	}
	users := []*grebev1.User{
		{Id: "plain"}, {Id: "empty text", Text: &empty},
		{Id: "lists", Tokens: []int32{}, History: []string{}, Events: []*grebev1.Event{}},
		{Id: "all", Text: &text, Tokens: []int32{5}, History: []string{"a", "b"}, Events: events},
		{Id: "events", Events: events[:2]},
	}
	for _, m := range items {
		if _, err := c.PutItem(m); err != nil {
			t.Fatal(err)
		}
	}
	for _, u := range users {
		if _, err := c.PutUser(u); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for _, m := range items {
			it, ok := c.Item(m.Id)
			want := Item(m)
			if want.Attributes["none"] == nil && len(want.Attributes) > 0 {
				want.Attributes["none"] = []string{}
			}
			if !ok || !reflect.DeepEqual(it, want) {
				t.Errorf("item %.10s is %+v, want %+v", m.Id, it, want)
			}
		}
		for _, u := range users {
			got, ok := c.User(u.Id)
			if !ok || (got.Text == nil) != (u.Text == nil) || got.GetText() != u.GetText() ||
				!reflect.DeepEqual(got.Tokens, u.Tokens) ||
				!reflect.DeepEqual(got.History, u.History) || (got.Events == nil) != (u.Events == nil) ||
				len(got.Events) != len(u.Events) {
				t.Fatalf("user %s is %v, want %v", u.Id, got, u)
			}
			for i, e := range u.Events {
				g := got.Events[i]
				if g.Item != e.Item || g.Time != e.Time || g.Action != e.Action || g.Id != e.Id ||
					!reflect.DeepEqual(g.Features, e.Features) {
					t.Errorf("event %d of %s is %v, want %v", i, u.Id, g, e)
				}
			}
		}
		shut(t, c)
		c = open(t, dir, Options{})
	}
	shut(t, c)
}

// Records with a byte too many, or with counts that cannot be, are refused.
func TestRecordsThatEndElsewhere(t *testing.T) {
	item := itemRecord(&grebev1.Item{Id: "a", Tokens: []int32{1}})
	user := userRecord(&grebev1.User{Id: "a", Events: []*grebev1.Event{{Item: "i", Id: "x"}}})
	events := eventsRecord([]*grebev1.Event{{Item: "i", Id: "x", Features: map[string]float64{"f": 1}}})
	parse := map[string]func(record) error{
		"item":   func(r record) error { _, err := newItem(r); return err },
		"user":   func(r record) error { _, err := newUser(r); return err },
		"events": func(r record) error { _, _, err := newEvents(r); return err },
	}
	for name, r := range map[string]record{"item": item, "user": user, "events": events} {
		if err := parse[name](r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := parse[name](append(slices.Clone(r), 0)); err == nil {
			t.Errorf("%s: a byte too many passes", name)
		}
		more := append(record{r[0] + 1}, r[1:]...)                                   // the strings take one of the numbers
		spare := slices.Concat(record{r[0] + 1}, r[1:1+r[0]], []byte{0}, r[1+r[0]:]) // a string too many
		for _, bad := range []record{nil, {}, more, spare, {255, 255, 255, 255, 255, 255, 255, 255, 255, 1}} {
			if err := parse[name](bad); err == nil {
				t.Errorf("%s: %x passes", name, bad)
			}
		}
		for i := range r {
			if err := parse[name](r[:i]); err == nil {
				t.Errorf("%s: the first %d bytes pass", name, i)
			}
		}
	}
}

// Late events whose user has a history of other items add theirs at its end: it is not known where they belong.
func TestLateEventsOfAHistoryOfOtherItems(t *testing.T) {
	for _, w := range []struct{ history, want string }{
		{"x y z", "x y z late"},             // it has nothing to do with the events
		{"x a b", "x late a b"},             // its end is the events' items
		{"b", "b late"},                     // it is shorter than the events
		{"a b", "late a b"},                 // it is the events' items
		{"a b x", "a b x late"},             // these are not at its end
		{"", ""},                            // there is none
		{"x y z b", "x y z b late"},         // one of them is
		{"x late2 a b", "x late2 late a b"}, // and longer ones
	} {
		c := New(Options{})
		u := &grebev1.User{Id: "u", History: strings.Fields(w.history),
			Events: []*grebev1.Event{{Item: "a", Time: 10}, {Item: "b", Time: 20}}}
		if _, err := c.PutUser(u); err != nil {
			t.Fatal(err)
		}
		before, _ := c.User("u")
		if _, _, _, err := c.AppendEvents("u", []*grebev1.Event{{Item: "late", Time: 5}}); err != nil {
			t.Fatal(err)
		}
		got, _ := c.User("u")
		if strings.Join(got.History, " ") != w.want || len(got.Events) != 3 || got.Events[0].Item != "late" {
			t.Errorf("history %q: %s, want %s", w.history, timesOf(got), w.want)
		}
		if strings.Join(before.History, " ") != w.history || len(before.Events) != 2 {
			t.Errorf("history %q: what was handed out became %s", w.history, timesOf(before))
		}
	}
}

// Of a history that became too long, three quarters of what may be kept are, the newest; what was dropped is counted.
func TestLongHistoriesAreTrimmed(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, Options{MaxHistory: 8})
	long := func(n int) (u *grebev1.User) {
		u = &grebev1.User{Id: "u"}
		for i := range n {
			u.History = append(u.History, fmt.Sprint(i))
			u.Events = append(u.Events, &grebev1.Event{Item: fmt.Sprint(i), Time: int64(i + 1)})
		}
		return u
	}
	check := func(when string, from, to int, dropped int64) {
		t.Helper()
		u, _ := c.User("u")
		want := strings.Fields(strings.Join(long(to).History[from:], " "))
		if !slices.Equal(u.History, want) || len(u.Events) != len(want) || u.Events[0].Item != want[0] {
			t.Errorf("%s: %s, want %v", when, timesOf(u), want)
		}
		if s := c.Stats(); s.Dropped != dropped {
			t.Errorf("%s: %d were dropped, want %d", when, s.Dropped, dropped)
		}
	}
	for _, w := range []struct {
		put, from int
		dropped   int64
	}{{8, 0, 0}, {9, 1, 2}, {20, 12, 26}} {
		if _, err := c.PutUser(long(w.put)); err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprintf("%d items put", w.put), w.from, w.put, w.dropped)
	}
	if _, err := c.PutUser(long(7)); err != nil {
		t.Fatal(err)
	}
	add := func(from, n int) int {
		_, _, dropped, err := c.AppendEvents("u", long(from + n).Events[from:])
		if err != nil {
			t.Fatal(err)
		}
		return dropped
	}
	if n := add(7, 1); n != 0 {
		t.Errorf("the eighth event dropped %d", n)
	}
	check("8 events", 0, 8, 26)
	if n := add(8, 1); n != 6 {
		t.Errorf("the ninth event dropped %d, want 3 of the history and 3 events", n)
	}
	check("9 events", 3, 9, 32)
	shut(t, c)
	c = open(t, dir, Options{MaxHistory: 8})
	check("after a restart", 3, 9, 0)
	shut(t, c)
}

// Everything that changes with a write waits for the locks.
func TestWritersAndStatesWaitForTheirLocks(t *testing.T) {
	c := open(t, t.TempDir(), Options{SweepDelay: time.Hour, TrackDeletions: true})
	d := &c.deletions
	w := &writer{}
	for name, l := range map[string]struct {
		lock, unlock func()
		call         func()
	}{
		"Subscribe":         {c.mu.Lock, c.mu.Unlock, func() { c.Subscribe(func(Change) {}) }},
		"Failed":            {c.mu.Lock, c.mu.Unlock, func() { c.Failed() }},
		"PutItem":           {c.queueMu.Lock, c.queueMu.Unlock, func() { c.PutItem(&grebev1.Item{Id: "a"}) }},
		"publish":           {c.mu.Lock, c.mu.Unlock, func() { c.PutItem(&grebev1.Item{Id: "b"}) }},
		"leave":             {c.queueMu.Lock, c.queueMu.Unlock, func() { c.leave(w) }},
		"PendingDeletions":  {d.mu.Lock, d.mu.Unlock, func() { c.PendingDeletions() }},
		"PendingDeletion":   {d.mu.Lock, d.mu.Unlock, func() { c.PendingDeletion("u") }},
		"DeletionDone":      {d.mu.Lock, d.mu.Unlock, func() { c.DeletionDone("u", 1) }},
		"deletions.anyDone": {d.mu.Lock, d.mu.Unlock, func() { d.anyDone() }},
		"deletions.add":     {d.mu.Lock, d.mu.Unlock, func() { d.add("u", 1) }},
		"deletions.take":    {d.mu.Lock, d.mu.Unlock, func() { d.takeDone() }},
		"deletions.cleared": {d.mu.Lock, d.mu.Unlock, func() { d.cleared("u") }},
	} {
		l.lock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.call()
		}()
		for range 5_000 { // it has many turns
			runtime.Gosched()
		}
		select {
		case <-done:
			t.Errorf("%s does not wait", name)
		default:
		}
		l.unlock()
		<-done
	}
	shut(t, c)
}

// The records of deletions that are done go together, and only those.
func TestRecordsOfDeletionsGo(t *testing.T) {
	c := open(t, t.TempDir(), Options{SweepDelay: time.Hour, TrackDeletions: true})
	defer shut(t, c)
	for _, id := range []string{"a", "b", "c"} {
		if _, err := c.PutUser(&grebev1.User{Id: id}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.DeleteUser(id); err != nil {
			t.Fatal(err)
		}
	}
	pending := func() []string { return slices.Sorted(slices.Values(c.PendingDeletions())) }
	c.DeletionDone("a", c.PendingDeletion("a"))
	c.DeletionDone("b", c.PendingDeletion("b")-1) // not this one
	c.DeletionDone("c", 0)
	if got := pending(); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("pending %v", got)
	}
	if err := c.store.sweeper.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{"a": false, "b": true, "c": true} {
		key := deletionKey(id)
		if has, err := c.store.has(key[:]); has != want || err != nil {
			t.Errorf("the record of %s is there: %v, %v; want %v", id, has, err, want)
		}
		if v := c.PendingDeletion(id); (v != 0) != want {
			t.Errorf("the deletion of %s is pending at version %d", id, v)
		}
	}
	if c.deletions.anyDone() {
		t.Error("something is left to clear")
	}
	// A user who is deleted once more stays pending, though the first deletion is done.
	for range 2 {
		if _, err := c.PutUser(&grebev1.User{Id: "b"}); err != nil {
			t.Fatal(err)
		}
		c.DeletionDone("b", c.PendingDeletion("b"))
		if _, err := c.DeleteUser("b"); err != nil {
			t.Fatal(err)
		}
		if got := pending(); !slices.Equal(got, []string{"b", "c"}) {
			t.Errorf("pending %v", got)
		}
	}
	memory := New(Options{TrackDeletions: true})
	memory.DeletionDone("a", 1) // a catalog in memory has nothing to do
	if got := memory.PendingDeletions(); len(got) != 0 {
		t.Errorf("in memory %v is pending", got)
	}
}
