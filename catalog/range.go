package catalog

import (
	"cmp"
	"maps"
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

// Items returns all items as they are now, in the order in which they were last changed. The caller
// MUST NOT change them.
func (c *Catalog) Items() []*prompt.Item {
	entries := c.Entries()
	out := make([]*prompt.Item, len(entries))
	for i, e := range entries {
		out[i] = e.Item
	}
	return out
}

// Entries returns all items as they are now with their versions, which ascend.
func (c *Catalog) Entries() []Entry {
	c.mu.RLock()
	out := make([]Entry, 0, len(c.items))
	for _, e := range c.items {
		out = append(out, Entry{&e.item, e.version})
	}
	c.mu.RUnlock()
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(a.Version, b.Version) })
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
	return some(c.items, prefix, limit, random)
}

// UserIDs does for users what ItemIDs does for items.
func (c *Catalog) UserIDs(prefix string, limit int, random bool) ([]string, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return some(c.users, prefix, limit, random)
}

func some[E any](all map[string]E, prefix string, limit int, random bool) (ids []string, more bool) {
	looked := 0
	if _, exact := all[prefix]; exact {
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
		if random && len(ids) == limit { // the map's order is any
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
	all := make([]*prompt.Item, 0, min(len(c.items), maxSearched))
	for _, e := range c.items {
		if len(all) == maxSearched {
			more = true
			break
		}
		all = append(all, &e.item)
	}
	c.mu.RUnlock()
	for _, it := range all {
		if hasWords(it, words) {
			found = append(found, it)
		}
	}
	slices.SortFunc(found, func(a, b *prompt.Item) int { return cmp.Compare(a.ID, b.ID) })
	if len(found) > limit {
		return found[:limit], true
	}
	return found, more
}

func hasWords(it *prompt.Item, words []string) bool {
	text := strings.ToLower(it.ID + " " + it.Text)
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
	for _, e := range c.Entries() {
		if _, ok := e.Item.Attributes[name]; ok {
			return true, nil
		}
		for n := range e.Item.Attributes {
			names[n] = true
		}
	}
	return false, slices.Sorted(maps.Keys(names))
}
