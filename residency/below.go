package residency

import "grebe/plan"

// Entry is what is known of an entry under a key: the best tier that has it, and how much of it is there.
type Entry struct {
	Kind   plan.Kind
	Tier   plan.Tier
	Tokens int32
	Owner  uint32 // see Held
	Digest uint64 // of a user's tokens; 0 for other entries
}

// Digest condenses the tokens of a user: whoever has longer ones can tell whether they begin alike.
func Digest(tokens []int32) uint64 {
	h := uint64(14695981039346656037) // FNV-1a, by tokens
	for _, t := range tokens {
		h = (h ^ uint64(uint32(t))) * 1099511628211
	}
	return max(h^h>>32, 1)
}

// Lookup returns what is known of the entry under a key. It is no use of it.
func (c *Core[V]) Lookup(key plan.Key) (Entry, bool) {
	if h := c.held[key]; h != nil {
		return Entry{Kind: h.Kind, Tier: h.tier, Tokens: int32(h.Tokens), Owner: h.Owner, Digest: h.Digest}, true
	}
	e, ok := c.below[key]
	return e, ok
}

// Status sets tiers[i] to the best tier that has the entry of keys[i], Missing where none has it.
func (c *Core[V]) Status(keys []plan.Key, tiers []plan.Tier) {
	for i := range keys {
		tiers[i] = plan.Missing
		if h := c.held[keys[i]]; h != nil {
			tiers[i] = h.tier
		} else if _, ok := c.below[keys[i]]; ok {
			tiers[i] = plan.Disk
		}
	}
}

// Stored tells that an entry is on disk.
func (c *Core[V]) Stored(key plan.Key, e Entry) {
	e.Tier = plan.Disk
	was, ok := c.below[key]
	if ok {
		e.Owner = was.Owner
	} else if c.held[key] == nil {
		c.count(e.Owner, 1)
	}
	c.below[key] = e
	c.ever[e.Kind] = true
	if c.held[key] == nil {
		c.changed(key)
	}
}

// Lost tells that an entry is not on disk any more.
func (c *Core[V]) Lost(key plan.Key) {
	e, ok := c.below[key]
	if !ok {
		return
	}
	delete(c.below, key)
	if c.held[key] == nil {
		c.count(e.Owner, -1)
		c.changed(key)
	}
}

// hold makes an entry the one that its key finds in memory.
func (c *Core[V]) hold(h *Held[V]) {
	if e, ok := c.below[h.Key]; ok {
		h.Owner = e.Owner
	} else {
		c.count(h.Owner, 1)
	}
	c.held[h.Key] = h
	c.ever[h.Kind] = true
}

// release has a key find nothing in memory.
func (c *Core[V]) release(h *Held[V]) {
	delete(c.held, h.Key)
	if _, ok := c.below[h.Key]; !ok {
		c.count(h.Owner, -1)
	}
}

// count counts the keys of an owner.
func (c *Core[V]) count(owner uint32, n int) {
	if c.owned[owner] += n; c.owned[owner] == 0 {
		delete(c.owned, owner)
	}
}

// Owned returns how many keys of an owner have an entry, in memory or on disk.
func (c *Core[V]) Owned(owner uint32) int { return c.owned[owner] }

// Keys returns these keys, in no order.
func (c *Core[V]) Keys(owner uint32) []plan.Key {
	keys := make([]plan.Key, 0, c.owned[owner])
	for key, h := range c.held {
		if h.Owner == owner {
			keys = append(keys, key)
		}
	}
	for key, e := range c.below {
		if e.Owner == owner && c.held[key] == nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// Ever reports whether there is or was an entry of a kind.
func (c *Core[V]) Ever(kind plan.Kind) bool { return c.ever[kind] }

// Below calls f with each entry that is on disk, in no order.
func (c *Core[V]) Below(f func(key plan.Key, e Entry)) {
	for key, e := range c.below {
		f(key, e)
	}
}
