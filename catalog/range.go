package catalog

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"runtime"
	"slices"
	"strings"

	grebev1 "grebe/api/grebe/v1"
	"grebe/prompt"
)

// Entry is an item and the version of the catalog that its last change made.
type Entry struct {
	Item    *prompt.Item // MUST NOT be changed
	Version uint64
}

// All visits all items as they are now with their versions, which ascend. An item is decoded when it comes, so that
// large catalogs can be gone over.
func (c *Catalog) All() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		c.mu.RLock()
		all := c.items.list(c.items.n)
		c.mu.RUnlock()
		defer all.free()
		for e := range all.byVersion() {
			if !yield(Entry{e.item(), e.version}) {
				return
			}
		}
	}
}

// Scan is All with items that MUST NOT be kept: each is valid until the next one comes. It allocates nothing for them.
func (c *Catalog) Scan() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		c.mu.RLock()
		all := c.items.list(c.items.n)
		c.mu.RUnlock()
		defer all.free()
		var s scratch
		for e := range all.byVersion() {
			if err := s.read(e.record); err != nil {
				panic(fmt.Sprintf("catalog: item %q: %v", e.id(), err))
			}
			more := yield(Entry{&s.item, e.version})
			runtime.KeepAlive(e.block)
			if !more {
				return
			}
		}
	}
}

// Items returns all items as they are now, in the order in which they were last changed. Of a large catalog they take
// much memory: see All.
func (c *Catalog) Items() (out []*prompt.Item) {
	for e := range c.All() {
		out = append(out, e.Item)
	}
	return out
}

// Users returns up to limit users as they are now, in no order. The caller MUST NOT change them.
func (c *Catalog) Users(limit int) []*grebev1.User {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*grebev1.User, 0, min(limit, len(c.users)))
	for _, e := range c.users {
		if len(out) == limit {
			break
		}
		out = append(out, e.user)
	}
	return out
}

// maxLooked bounds the entries that one call of ItemIDs or UserIDs looks at, since writers wait meanwhile.
const maxLooked = 1 << 16

// ItemIDs returns up to limit ids of items that begin with prefix, in order, and whether there may be
// more: the first of them, or any. Of a large catalog it looks at a part: for people who look around, not for programs.
func (c *Catalog) ItemIDs(prefix string, limit int, random bool) ([]string, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return some(c.items.ids(), c.items.find(prefix) != nil, prefix, limit, random)
}

// UserIDs does for users what ItemIDs does for items.
func (c *Catalog) UserIDs(prefix string, limit int, random bool) ([]string, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	_, exact := c.users[prefix]
	return some(maps.Keys(c.users), exact, prefix, limit, random)
}

func some(all iter.Seq[string], exact bool, prefix string, limit int, random bool) (ids []string, more bool) {
	looked := 0
	if exact {
		ids = append(ids, prefix)
	}
	for id := range all {
		if looked++; looked > maxLooked {
			more = true
			break
		}
		if !strings.HasPrefix(id, prefix) || id == prefix {
			continue
		}
		if random && len(ids) == limit { // the order is any
			more = true
			break
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	if len(ids) > limit {
		return ids[:limit], true
	}
	return ids, more
}

// maxSearched bounds the items that one call of Search looks at.
const maxSearched = 1 << 18

// Search returns up to limit items whose id or text has all words of a query, whatever their case, by id, and whether
// there may be more. Of a catalog of more than 262,144 items it looks at a part, any one: for people who look around.
func (c *Catalog) Search(query string, limit int) (found []*prompt.Item, more bool) {
	words := strings.Fields(strings.ToLower(query))
	c.mu.RLock()
	all := c.items.list(maxSearched)
	more = c.items.n > maxSearched
	c.mu.RUnlock()
	defer all.free()
	type hit struct {
		id string
		at int
	}
	var hits []hit // only those that are returned are decoded
	for i := range all.slots {
		if e := all.entry(i); e.hasWords(words) {
			hits = append(hits, hit{e.id(), i})
		}
	}
	slices.SortFunc(hits, func(a, b hit) int { return cmp.Compare(a.id, b.id) })
	if len(hits) > limit {
		hits, more = hits[:limit], true
	}
	for _, h := range hits {
		e := all.entry(h.at)
		found = append(found, e.item())
	}
	return found, more
}

func (e *itemEntry) hasWords(words []string) bool {
	defer runtime.KeepAlive(e.block)
	p := play(e.record)
	text := strings.ToLower(p.str() + " " + p.str())
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// Attributes reports whether an item has an attribute; if none has, it returns the names that there are, sorted. It
// goes over all items.
func (c *Catalog) Attributes(name string) (has bool, all []string) {
	names := map[string]bool{}
	for e := range c.All() {
		if _, ok := e.Item.Attributes[name]; ok {
			return true, nil
		}
		for n := range e.Item.Attributes {
			names[n] = true
		}
	}
	return false, slices.Sorted(maps.Keys(names))
}
