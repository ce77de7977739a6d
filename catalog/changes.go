package catalog

import (
	"fmt"
	"iter"
	"runtime"

	grebev1 "grebe/api/grebe/v1"
)

// Changes collects the last change of each item that it hears of. Items are kept as records, as a catalog keeps them:
// ten million take about as much memory there as here. It is for one goroutine at a time.
type Changes struct{ items *items }

// NewChanges returns a collection without changes.
func NewChanges() *Changes { return &Changes{newItems()} }

// Add adds a change of an item, in the place of an earlier one.
func (s *Changes) Add(c Change) {
	// The version is kept doubled: an odd one is that of a deletion, whose record has the id alone.
	if c.NewItem != nil {
		s.items.put(itemRecord(Message(c.NewItem)), c.Version<<1)
	} else {
		s.items.put(itemRecord(&grebev1.Item{Id: c.ID}), c.Version<<1|1)
	}
	s.items.tidy(func(f func()) { f() })
}

// Forget drops the change of an item, if there is one.
func (s *Changes) Forget(id string) {
	s.items.remove(id)
	s.items.tidy(func(f func()) { f() })
}

// Len returns the number of items.
func (s *Changes) Len() int { return s.items.n }

// Free gives the memory back at once, which the garbage collector does late, since it does not see how much it is. The
// changes MUST NOT be used afterwards.
func (s *Changes) Free() { s.items.release() }

// All visits the changes in the order of their versions. An item MUST NOT be kept: it is valid until the next one
// comes. Of a deleted one only the id is there.
func (s *Changes) All() iter.Seq2[Entry, bool] {
	return func(yield func(e Entry, deleted bool) bool) {
		all := s.items.list(s.items.n)
		defer all.free()
		var scratch scratch
		for e := range all.byVersion() {
			if err := scratch.read(e.record); err != nil { // it was made here
				panic(fmt.Sprintf("catalog: change of item %q: %v", e.id(), err))
			}
			more := yield(Entry{&scratch.item, e.version >> 1}, e.version&1 != 0)
			runtime.KeepAlive(e.block)
			if !more {
				return
			}
		}
	}
}
