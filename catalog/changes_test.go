package catalog

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"grebe/internal/offheap"
	"grebe/prompt"
)

// Changes are those of a map, in the order of their versions.
func TestChangesAgainstMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s, want := NewChanges(), map[string]Change{}
	for version := range uint64(30_000) {
		c := Change{ID: fmt.Sprint("i", r.IntN(2000)), Version: version}
		switch r.IntN(4) {
		case 0:
			s.Forget(c.ID)
			delete(want, c.ID)
			continue
		case 1:
		default:
			c.NewItem = &prompt.Item{ID: c.ID, Text: fmt.Sprint("text ", r.IntN(100)), Identifier: r.Int32N(3) - 1,
				Codes: []int32{r.Int32N(10), -2}}
			if r.IntN(2) == 0 {
				c.NewItem.Tokens = make([]int32, r.IntN(3))
				c.NewItem.Attributes = map[string][]string{"a": {"x", fmt.Sprint(r.IntN(9))}, "b": {"y"}}
			}
		}
		s.Add(c)
		want[c.ID] = c
	}
	if s.Len() != len(want) {
		t.Fatalf("%d changes, want %d", s.Len(), len(want))
	}
	last, n := uint64(0), 0
	for e, deleted := range s.All() {
		c := want[e.Item.ID]
		if e.Version < last || e.Version != c.Version || deleted != (c.NewItem == nil) {
			t.Fatalf("%s: version %d after %d, deleted %v; want %+v", e.Item.ID, e.Version, last, deleted, c)
		}
		if !deleted && !reflect.DeepEqual(e.Item, c.NewItem) {
			t.Fatalf("item %+v, want %+v", e.Item, c.NewItem)
		}
		last = e.Version
		n++
	}
	if n != len(want) {
		t.Errorf("%d changes are visited, want %d", n, len(want))
	}
	for range s.All() {
		break
	}
}

// The memory of many changes is outside the heap, and is given back when they are freed.
func TestChangesAreFreed(t *testing.T) {
	before := offheap.Mapped()
	s := NewChanges()
	s.Add(Change{ID: "large", NewItem: &prompt.Item{ID: "large", Text: strings.Repeat("x", 8<<20)}})
	if offheap.Mapped() < before+8<<20 {
		t.Error("a large item is on the heap")
	}
	if s.Free(); offheap.Mapped() > before {
		t.Errorf("%d bytes are still mapped", offheap.Mapped()-before)
	}
}
