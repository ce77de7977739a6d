package catalog

import (
	"cmp"
	"slices"
	"strings"

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
