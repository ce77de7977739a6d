package catalog

import (
	"cmp"
	"slices"

	"grebe/prompt"
)

// Items returns all items as they are now, in the order in which they were last changed. The caller
// MUST NOT change them.
func (c *Catalog) Items() []*prompt.Item {
	c.mu.RLock()
	entries := make([]*itemEntry, 0, len(c.items))
	for _, e := range c.items {
		entries = append(entries, e)
	}
	c.mu.RUnlock()
	slices.SortFunc(entries, func(a, b *itemEntry) int { return cmp.Compare(a.version, b.version) })
	out := make([]*prompt.Item, len(entries))
	for i, e := range entries {
		out[i] = &e.item
	}
	return out
}
