package catalog

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/prompt"
)

func idsOf(items []*prompt.Item) (ids []string) {
	for _, it := range items {
		ids = append(ids, it.ID)
	}
	return ids
}

// Items and Entries are in the order in which items were last changed.
func TestItemsAreInTheOrderOfTheirChanges(t *testing.T) {
	c := New(Options{})
	for i, id := range []string{"b", "c", "a", "c", "d"} {
		if _, err := c.PutItem(&grebev1.Item{Id: id, Tokens: []int32{int32(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.DeleteItem("d"); err != nil {
		t.Fatal(err)
	}
	if got := idsOf(c.Items()); !slices.Equal(got, []string{"b", "a", "c"}) {
		t.Errorf("items %v, want b, a, c", got)
	}
	entries := slices.Collect(c.All())
	if len(entries) != 3 {
		t.Fatalf("%d entries", len(entries))
	}
	for i, want := range []uint64{1, 3, 4} {
		e := entries[i]
		if it, version, ok := c.Lookup(e.Item.ID); !ok || version != e.Version || !reflect.DeepEqual(it, e.Item) ||
			version != want {
			t.Errorf("entry %d: %s at version %d, want %d; Lookup says %d", i, e.Item.ID, e.Version, want, version)
		}
	}
}

// A search finds the items whose id or text has all words, whatever their case, by id.
func TestSearch(t *testing.T) {
	c := New(Options{})
	for id, text := range map[string]string{"x1": "Gas stove, folding", "x2": "Camping STOVE", "x3": "Tent",
		"stove-4": "Pan"} {
		if _, err := c.PutItem(&grebev1.Item{Id: id, Text: &text}); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range []struct {
		query string
		limit int
		want  []string
		more  bool
	}{
		{"stove", 10, []string{"stove-4", "x1", "x2"}, false},
		{"stove", 3, []string{"stove-4", "x1", "x2"}, false},
		{"stove", 2, []string{"stove-4", "x1"}, true},
		{"Stove gas", 10, []string{"x1"}, false},
		{"x3 tent", 10, []string{"x3"}, false},
		{"stove tent", 10, nil, false},
		{"x3tent", 10, nil, false}, // they are two words
		{"", 10, []string{"stove-4", "x1", "x2", "x3"}, false},
	} {
		if found, more := c.Search(w.query, w.limit); !slices.Equal(idsOf(found), w.want) || more != w.more {
			t.Errorf("%q, at most %d: %v, more %v; want %v, %v", w.query, w.limit, idsOf(found), more, w.want, w.more)
		}
	}
}

// Ids and searches look at a part of a large catalog, and say so.
func TestALargeCatalogIsLookedAtInPart(t *testing.T) {
	c := New(Options{})
	add := func(n int) {
		for i := c.items.n; i < n; i++ {
			c.items.put(itemRecord(&grebev1.Item{Id: fmt.Sprintf("i%07d", i)}), uint64(i+1))
		}
	}
	add(maxLooked)
	if ids, more := c.ItemIDs("i", maxLooked, false); len(ids) != maxLooked || more {
		t.Errorf("of %d items %d are seen, more %v", maxLooked, len(ids), more)
	}
	add(maxLooked + 1)
	if ids, more := c.ItemIDs("i", 2*maxLooked, false); len(ids) != maxLooked || !more {
		t.Errorf("of %d items %d are seen, more %v", maxLooked+1, len(ids), more)
	}
	if ids, _ := c.ItemIDs("i0000007", 10, false); !slices.Equal(ids, []string{"i0000007"}) {
		t.Errorf("an id that is there is not found in a large catalog: %v", ids)
	}
	add(maxSearched)
	if found, more := c.Search("i", maxSearched); len(found) != maxSearched || more {
		t.Errorf("of %d items %d are searched, more %v", maxSearched, len(found), more)
	}
	add(maxSearched + 1)
	if found, more := c.Search("i", 2*maxSearched); len(found) != maxSearched || !more {
		t.Errorf("of %d items %d are searched, more %v", maxSearched+1, len(found), more)
	}
}

// An id that is the prefix itself is found, once, and random ids are no more than asked for.
func TestIDsThatArePrefixes(t *testing.T) {
	c := New(Options{})
	for _, id := range []string{"a", "ab", "abc", "b"} {
		if _, err := c.PutUser(&grebev1.User{Id: id}); err != nil {
			t.Fatal(err)
		}
	}
	for _, random := range []bool{false, true} {
		if got, more := c.UserIDs("a", 3, random); !slices.Equal(got, []string{"a", "ab", "abc"}) || more {
			t.Errorf("random %v: %v, more %v", random, got, more)
		}
		if got, more := c.UserIDs("a", 2, random); len(got) != 2 || got[0] != "a" || !more {
			t.Errorf("random %v, at most 2: %v, more %v", random, got, more)
		}
	}
}

func TestAttributes(t *testing.T) {
	c := New(Options{})
	if has, all := c.Attributes("size"); has || len(all) != 0 {
		t.Errorf("no items: %v, %v", has, all)
	}
	for id, name := range map[string]string{"a": "size", "b": "color", "c": "brand"} {
		if _, err := c.PutItem(&grebev1.Item{Id: id, Attributes: map[string]*grebev1.Values{
			name: {Values: []string{"x"}}}}); err != nil {
			t.Fatal(err)
		}
	}
	if has, _ := c.Attributes("color"); !has {
		t.Error("an item has a color, and Attributes does not find it")
	}
	if has, all := c.Attributes("colour"); has || !slices.Equal(all, []string{"brand", "color", "size"}) {
		t.Errorf("no item has a colour: %v, %v", has, all)
	}
}

// Ids have from 1 to 512 bytes, in every call.
func TestIDs(t *testing.T) {
	c := New(Options{})
	event := []*grebev1.Event{{Item: "i"}}
	for _, w := range []struct {
		id string
		ok bool
	}{{"", false}, {"a", true}, {strings.Repeat("x", 512), true}, {strings.Repeat("x", 513), false}} {
		for name, f := range map[string]func() error{
			"CheckID":      func() error { return CheckID(w.id) },
			"PutItem":      func() error { _, err := c.PutItem(&grebev1.Item{Id: w.id}); return err },
			"PutUser":      func() error { _, err := c.PutUser(&grebev1.User{Id: w.id}); return err },
			"AppendEvents": func() error { _, _, _, err := c.AppendEvents(w.id, event); return err },
			"DeleteItem":   func() error { _, err := c.DeleteItem(w.id); return err },
			"DeleteUser":   func() error { _, err := c.DeleteUser(w.id); return err },
			"an event's item": func() error {
				_, _, _, err := c.AppendEvents("u", []*grebev1.Event{{Item: "i"}, {Item: w.id}})
				return err
			},
		} {
			if err := f(); (err == nil) != w.ok {
				t.Errorf("%s with an id of %d bytes: %v", name, len(w.id), err)
			}
		}
	}
	for n, ok := range map[int]bool{0: true, 128: true, 129: false} {
		_, _, _, err := c.AppendEvents("u", []*grebev1.Event{{Item: "i", Id: strings.Repeat("x", n)}})
		if (err == nil) != ok {
			t.Errorf("an event's id of %d bytes: %v", n, err)
		}
	}
	if _, _, _, err := c.AppendEvents("u", nil); err == nil {
		t.Error("no events at all are accepted")
	}
}

// A file is loaded in parts. Mistakes are reported with their line, wherever they are noticed, and the lines before
// them are kept.
func TestLoadOfALongFile(t *testing.T) {
	lines := make([]string, 0, 3000)
	for i := range 2500 {
		lines = append(lines, fmt.Sprintf(`{"id":"i%d"}`, i))
	}
	for _, w := range []struct {
		name, change string
		line         int // from 1; 0: nothing is changed
		most         int // items; 0: any number
		n, wrong     int
	}{
		{"a sound file", "", 0, 0, 2500, 0},
		{"the catalog is full", "", 0, 1500, 1500, 1501},
		{"the catalog is full in the last part", "", 0, 2300, 2300, 2301},
		{"a bad line", `{"idd":"x"}`, 2400, 0, 2399, 2400},
		{"a bad line that ends a part", `{"idd":"x"}`, 1024, 0, 1023, 1024},
		{"full before a bad line", `{"idd":"x"}`, 2000, 1700, 1700, 1701},
		{"an id that comes twice", `{"id":"i3"}`, 2000, 0, 1999, 2000},
	} {
		text := slices.Clone(lines)
		if w.line > 0 {
			text[w.line-1] = w.change
		}
		c := New(Options{MaxItems: w.most})
		n, err := c.LoadItems(write(t, "items.ndjson", strings.Join(text, "\n")))
		items, _, _ := c.Counts()
		if n != w.n || items != w.n {
			t.Errorf("%s: %d items loaded, %d there, want %d", w.name, n, items, w.n)
		}
		if w.wrong == 0 && err != nil || w.wrong > 0 && (err == nil ||
			!strings.Contains(err.Error(), fmt.Sprintf(".ndjson:%d:", w.wrong))) {
			t.Errorf("%s: error %v, want line %d", w.name, err, w.wrong)
		}
	}
}

// A filter sees every line that is not blank and chooses those that are loaded; its error names the line.
func TestLoadWithAFilter(t *testing.T) {
	file := write(t, "items.ndjson", "{\"id\":\"a\"}\n \t\r\n{\"id\":\"b\"}\n{\"id\":\"c\"}\n")
	users := write(t, "users.ndjson", "{\"id\":\"a\"}\n{\"id\":\"b\"}\n")
	c := New(Options{})
	var seen []string
	filter := func(id string, line []byte) (bool, error) {
		seen = append(seen, id+string(line))
		return id != "b", nil
	}
	if n, err := c.LoadItemsIf(file, filter); n != 2 || err != nil {
		t.Errorf("%d items, %v", n, err)
	}
	if n, err := c.LoadUsersIf(users, filter); n != 1 || err != nil {
		t.Errorf("%d users, %v", n, err)
	}
	if want := []string{`a{"id":"a"}`, `b{"id":"b"}`, `c{"id":"c"}`, `a{"id":"a"}`, `b{"id":"b"}`}; !slices.Equal(seen,
		want) {
		t.Errorf("the filter saw %q, want %q", seen, want)
	}
	if got := idsOf(c.Items()); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("loaded %v", got)
	}
	broken := errors.New("broken")
	n, err := New(Options{}).LoadItemsIf(file, func(id string, _ []byte) (bool, error) {
		if id == "b" {
			return true, broken
		}
		return true, nil
	})
	if n != 1 || !errors.Is(err, broken) || !strings.Contains(err.Error(), ":3:") {
		t.Errorf("a filter that fails at line 3: %d items, %v", n, err)
	}
}

// Without limits of its own, a catalog has the documented ones.
func TestDefaultLimits(t *testing.T) {
	var o Options
	o.setDefaults()
	if o.MaxItems != 10_000_000 || o.MaxUsers != 10_000_000 || o.MaxHistory != 20_000 || o.MaxMemory != 8<<30 ||
		o.SweepDelay.Seconds() != 1 || o.Logger == nil {
		t.Errorf("defaults %+v", o)
	}
	o = Options{MaxItems: 1, MaxUsers: 1, MaxHistory: 1, MaxMemory: 1, SweepDelay: 1}
	o.setDefaults()
	if o.MaxItems != 1 || o.MaxUsers != 1 || o.MaxHistory != 1 || o.MaxMemory != 1 || o.SweepDelay != 1 {
		t.Errorf("limits of 1 became %+v", o)
	}
}

// A message and an item are the same, with identifier 0 and without one.
func TestIdentifiers(t *testing.T) {
	if it := Item(&grebev1.Item{Id: "a"}); it.Identifier != -1 || it.Attributes != nil {
		t.Errorf("an item without an identifier: %+v", it)
	}
	if m := Message(&prompt.Item{ID: "a", Identifier: -1}); m.Identifier != nil || m.Text != nil || m.Attributes != nil {
		t.Errorf("the message of an item with an id alone: %v", m)
	}
	if m := Message(&prompt.Item{ID: "a", Identifier: 0}); m.Identifier == nil || *m.Identifier != 0 {
		t.Errorf("the message of an item with identifier 0: %v", m)
	}
}
