package catalog

import (
	"cmp"
	"slices"

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
