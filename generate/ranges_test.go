package generate

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/catalog/filter"
	"grebe/prompt"
)

// anyOf is a filter of values.
func anyOf(values map[string][]string) filter.Filter {
	f := filter.Filter{}
	for name, v := range values {
		f[name] = filter.Condition{Any: v}
	}
	return f
}

// drawValue draws a number, a time or something else, from few ones so that values are often equal.
func drawValue(r *rand.Rand) string {
	n := r.IntN(40) - 20
	switch r.IntN(8) {
	case 0:
		return []string{"", "x", "NaN", "1e999", "0x10", "-", "2026-13-01", "-0"}[r.IntN(8)]
	case 1:
		return fmt.Sprintf("%d.50", n)
	case 2:
		return fmt.Sprintf("%de-1", n)
	case 3, 4:
		return time.Date(2026, 1, n, 0, 0, r.IntN(3), 0,
			time.UTC).Format([]string{time.RFC3339, time.DateOnly, time.DateTime}[r.IntN(3)])
	}
	return fmt.Sprint(n)
}

func drawFilter(r *rand.Rand) filter.Filter {
	f := filter.Filter{}
	for len(f) == 0 || r.IntN(3) == 0 && len(f) < 3 {
		var c filter.Condition
		if r.IntN(3) == 0 {
			c.Any = []string{drawValue(r), drawValue(r)}
		}
		if r.IntN(3) == 0 {
			c.Not = []string{drawValue(r), drawValue(r)}
		}
		if r.IntN(3) > 0 {
			var b filter.Bounds
			for _, end := range []*string{&b.GTE, &b.GT, &b.LTE, &b.LT} {
				if r.IntN(3) == 0 {
					*end = drawValue(r)
				}
			}
			between, _, err := b.Range()
			if err != nil {
				continue
			}
			c.Range = between
		}
		if c.Any != nil || c.Not != nil || c.Range != nil {
			f[fmt.Sprint("a", r.IntN(3))] = c
		}
	}
	return f
}

// drawItem draws an item whose attribute a0 has one value at most, as prices do.
func drawItem(r *rand.Rand, id string) *grebev1.Item {
	it := &grebev1.Item{Id: id, Codes: codesOf(r.Int32N(20), r.Int32N(20)), Attributes: map[string]*grebev1.Values{}}
	for name, most := range map[string]int{"a0": 1, "a1": 2, "a2": 4} {
		values := &grebev1.Values{}
		for range r.IntN(most + 1) {
			values.Values = append(values.Values, drawValue(r))
		}
		if len(values.Values) > 0 {
			it.Attributes[name] = values
		}
	}
	return it
}

// Filters of all kinds let the items pass that meet their definition: 10,000 random ones, on snapshots that follow a
// catalog through changes, and on those before, which are still in use.
func TestFiltersAgainstBruteForce(t *testing.T) {
	r := rand.New(rand.NewPCG(28, 25))
	s := newShelf(t)
	items := map[string]*grebev1.Item{}
	put := func(id string) {
		items[id] = drawItem(r, id)
		must(s.catalog.PutItem(items[id]))
	}
	for i := range 250 {
		put(fmt.Sprint("i", i))
	}
	s.open()
	type version struct {
		snap  *Snapshot
		items map[string]map[string][]string
	}
	var versions []version
	found := 0
	for range 50 {
		for range 20 {
			put(fmt.Sprint("i", r.IntN(300)))
		}
		gone := fmt.Sprint("i", r.IntN(300))
		must(s.catalog.DeleteItem(gone))
		delete(items, gone)
		s.keeper.Renew()
		v := version{s.models["a"].Snapshot(), map[string]map[string][]string{}}
		for id, it := range items {
			v.items[id] = catalog.Item(it).Attributes
		}
		if versions = append(versions, v); len(versions) > 3 {
			versions = versions[1:]
		}
		for range 200 {
			v := versions[r.IntN(len(versions))]
			f := drawFilter(r)
			v.snap.filter(f)
			set, want := v.snap.filter(f), 0 // the second time ranges are kept sets
			for id, attributes := range v.items {
				slot, ok := v.snap.number(id)
				if !ok {
					t.Fatalf("%s is not in the snapshot", id)
				}
				if f.Matches(attributes) {
					want++
				}
				if set.Has(slot) != f.Matches(attributes) {
					t.Fatalf("%+v: %s with %v passes: %v", f, id, attributes, set.Has(slot))
				}
			}
			if set.Len() != want {
				t.Fatalf("%+v: %d items, want %d", f, set.Len(), want)
			}
			found += want
		}
	}
	if found < 50_000 {
		t.Errorf("only %d items passed in all cases", found)
	}
}

// An index of a range is made once, and made for the next snapshot before it is used.
func TestRangesAreMadeBeforeASnapshotIsUsed(t *testing.T) {
	s := newShelf(t)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 2000 {
		must(s.catalog.PutItem(&grebev1.Item{Id: fmt.Sprint("i", i), Codes: codesOf(r.Int32N(20), r.Int32N(20)),
			Attributes: map[string]*grebev1.Values{"price": {Values: []string{fmt.Sprint(i)}}}}))
	}
	s.open()
	between, _, err := filter.Bounds{GTE: "100", LT: "1500"}.Range()
	if err != nil {
		t.Fatal(err)
	}
	request := &Request{Filter: filter.Filter{"price": {Range: between}}}
	snap := s.models["a"].Snapshot()
	if !snap.mustBuild(request) {
		t.Fatal("an index exists before a request")
	}
	if n := snap.filter(request.Filter).Len(); n != 1400 || snap.mustBuild(request) || len(snap.columns()) != 1 {
		t.Fatalf("%d items, want 1400; an index must be made: %v", n, snap.mustBuild(request))
	}
	must(s.catalog.PutItem(&grebev1.Item{Id: "i5", Codes: codesOf(1, 1),
		Attributes: map[string]*grebev1.Values{"price": {Values: []string{"1499.5"}}}}))
	s.keeper.Renew()
	next := s.models["a"].Snapshot()
	if next == snap || next.mustBuild(request) {
		t.Errorf("a request has to make the index of the next snapshot")
	}
	if n := next.filter(request.Filter).Len(); n != 1401 {
		t.Errorf("%d items, want 1401", n)
	}
	if n := snap.filter(request.Filter).Len(); n != 1400 {
		t.Errorf("%d items of the snapshot before, want 1400", n)
	}
}

// The attributes of earlier ranges are ordered at a start, before requests come. A damaged file is only a slower range.
func TestRangesOutliveARestart(t *testing.T) {
	s := newShelf(t)
	s.fill(80)
	must(s.catalog.PutItem(&grebev1.Item{Id: "i1", Codes: codesOf(1, 1),
		Attributes: map[string]*grebev1.Values{"price": {Values: []string{"7"}}}}))
	s.open()
	between, _, err := filter.Bounds{GTE: "5"}.Range()
	if err != nil {
		t.Fatal(err)
	}
	request := &Request{Filter: filter.Filter{"price": {Range: between}}}
	if n := s.models["b"].Snapshot().filter(request.Filter).Len(); n != 1 {
		t.Fatalf("%d items, want 1", n)
	}
	s.open()
	for name, m := range s.models { // of one model, and all are ready
		if m.Snapshot().mustBuild(request) {
			t.Errorf("the first range of model %s must order all values", name)
		}
	}
	file := filepath.Join(s.dir, "ranges.json")
	text := must(os.ReadFile(file))
	if string(text) != `{"ranges":[{"attribute":"price","kind":"number"}]}`+"\n" {
		t.Errorf("the file has %q", text)
	}
	for _, bad := range []string{"", "{", `{"ranges": 7}`, `{"ranges":[{"attribute":"price","kind":"colour"}]}`} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		s.keeper.ranges = []column{{"price", filter.Number}} // Close has nothing to write
		s.open()
		if !s.models["a"].Snapshot().mustBuild(request) {
			t.Errorf("%q orders an attribute", bad)
		}
		if logged := strings.Contains(s.log.String(), "the first range of each is slower"); logged == strings.Contains(bad,
			"colour") {
			t.Errorf("%q: the log says %q", bad, s.log.String())
		}
	}
}

// The attributes that are kept in order are bounded.
func TestOrderedAttributesAreBounded(t *testing.T) {
	items := []*prompt.Item{{ID: "i", Codes: codesOf(1, 2), Identifier: -1, Attributes: map[string][]string{}}}
	for i := range 100 {
		items[0].Attributes[fmt.Sprint("a", i)] = []string{"7"}
	}
	b := must(prompt.New(prompt.Config{Codes: prompt.Codes{FirstToken: []int32{0, 20}, Size: []int32{20, 20}}}, nil, 100))
	snap := must(NewSnapshot("1", items, b, &packer{4}, nil))
	between, _, _ := filter.Bounds{LTE: "7"}.Range()
	for i := range 100 {
		if n := snap.filter(filter.Filter{fmt.Sprint("a", i): {Range: between}}).Len(); n != 1 {
			t.Fatalf("attribute %d: %d items", i, n)
		}
	}
	if n := len(snap.columns()); n != maxOrdered {
		t.Errorf("%d attributes are kept, want %d", n, maxOrdered)
	}
	if !slices.ContainsFunc(snap.columns(), func(c column) bool { return c.name == "a0" }) {
		t.Error("the first is not kept")
	}
}
