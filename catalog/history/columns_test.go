package history

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"grebe/catalog/filter"
	"grebe/prompt"
)

// Columns are made ahead for attributes that look like numbers or times, and are those that a question makes.
func TestPrepare(t *testing.T) {
	items := make([]*prompt.Item, 2000)
	for i := range items {
		items[i] = &prompt.Item{ID: fmt.Sprint("i", i), Identifier: -1, Attributes: map[string][]string{
			"price": {fmt.Sprint(i * 7 % 1000)}, "brand": {fmt.Sprint("b", i%9)}, "mixed": {[]string{"7", "seven"}[i%2]},
			"added": {fmt.Sprintf("2026-01-%02d", 1+i%28)}, "sizes": {fmt.Sprint(i % 50), fmt.Sprint(i % 40)}}}
		if i%3 == 0 {
			items[i].Attributes["rare"] = []string{"1"}
		}
	}
	table := NewTable(items)
	ended, stop := context.WithCancel(t.Context())
	stop()
	if table.Prepare(ended); len(table.ordered.kept) > 0 {
		t.Error("a context that has ended makes columns")
	}
	table.Prepare(t.Context())
	want := []columnOf{{"added", filter.Time}, {"price", filter.Number}, {"sizes", filter.Number}}
	if len(table.ordered.kept) != len(want) {
		t.Fatalf("columns of %v, want %v", slices.Collect(maps.Keys(table.ordered.kept)), want)
	}
	fresh := NewTable(items)
	for _, of := range want {
		made := table.ordered.kept[of]
		if made == nil {
			t.Fatalf("no column of %v", of)
		}
		asked := fresh.Column(of.name, of.kind)
		if table.Prepare(t.Context()); table.Column(of.name, of.kind) != made {
			t.Errorf("the column of %v was made again", of)
		}
		if !slices.Equal(made.Keys, asked.Keys) || !slices.Equal(made.Slots, asked.Slots) {
			t.Errorf("the column of %v differs from that of a question", of)
		}
	}
	NewTable(nil).Prepare(t.Context())
}
