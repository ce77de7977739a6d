package residency

import "grebe/plan"

// Entry describes what the books know about a key: the nearest tier that has its KV, and how many tokens it has there.
type Entry struct {
	Kind   plan.Kind
	Tier   plan.Tier
	Tokens int32
	Owner  uint32 // see Held
	Digest uint64 // of a user's tokens; 0 for other entries
}

// Digest returns a hash of a user's tokens. A reader that has more tokens can tell by it whether the entry is a prefix
// of them.
func Digest(tokens []int32) uint64 { return digestStart.add(tokens).sum() }

// digest is the state of a Digest: FNV-1a over tokens.
type digest uint64

const digestStart digest = 14695981039346656037

func (h digest) add(tokens []int32) digest {
	for _, t := range tokens {
		h = (h ^ digest(uint32(t))) * 1099511628211
	}
	return h
}

func (h digest) sum() uint64 { return max(uint64(h^h>>32), 1) }

// Lookup describes the entry under a key. It does not count as a use.
func (c *Core[V]) Lookup(key plan.Key) (Entry, bool) {
	if h := c.held.get(&key); h != nil {
		return Entry{Kind: h.Kind, Tier: h.tier, Tokens: int32(h.Tokens), Owner: h.Owner, Digest: h.Digest}, true
	}
	e, ok := c.below[key]
	return e, ok
}

// Status sets tiers[i] to the nearest tier that has keys[i], or to Missing.
func (c *Core[V]) Status(keys []plan.Key, tiers []plan.Tier) {
	c.held.warm(keys)
	for i := range keys {
		tiers[i] = plan.Missing
		if h := c.held.get(&keys[i]); h != nil {
			tiers[i] = h.tier
		} else if _, ok := c.below[keys[i]]; ok {
			tiers[i] = plan.Disk
		}
	}
}

// Stored reports that an entry is on disk.
func (c *Core[V]) Stored(key plan.Key, e Entry) {
	e.Tier = plan.Disk
	was, ok := c.below[key]
	if ok {
		e.Owner = was.Owner
	} else if c.held.get(&key) == nil {
		c.count(e.Owner, 1)
	}
	c.below[key] = e
	c.ever[e.Kind] = true
	if c.held.get(&key) == nil {
		c.changed(key)
	}
}

// Lost reports that an entry is no longer on disk.
func (c *Core[V]) Lost(key plan.Key) {
	e, ok := c.below[key]
	if !ok {
		return
	}
	delete(c.below, key)
	if c.held.get(&key) == nil {
		c.count(e.Owner, -1)
		c.changed(key)
	}
}

// hold makes an entry the one that memory has under its key.
func (c *Core[V]) hold(h *Held[V]) {
	if e, ok := c.below[h.Key]; ok {
		h.Owner = e.Owner
	} else {
		c.count(h.Owner, 1)
	}
	c.held.put(h)
	c.ever[h.Kind] = true
}

// release removes the key of an entry from memory.
func (c *Core[V]) release(h *Held[V]) {
	c.held.remove(&h.Key)
	if _, ok := c.below[h.Key]; !ok {
		c.count(h.Owner, -1)
	}
}

// count adds n to the number of an owner's keys.
func (c *Core[V]) count(owner uint32, n int) {
	if c.owned[owner] += n; c.owned[owner] == 0 {
		delete(c.owned, owner)
	}
}

// Owned returns the number of keys of an owner, in memory or on disk.
func (c *Core[V]) Owned(owner uint32) int { return c.owned[owner] }

// Ever reports whether there has ever been an entry of a kind.
func (c *Core[V]) Ever(kind plan.Kind) bool { return c.ever[kind] }

// Below calls f with each entry on disk, in no order.
func (c *Core[V]) Below(f func(key plan.Key, e Entry)) {
	for key, e := range c.below {
		f(key, e)
	}
}
