package residency

import (
	"errors"
	"testing"

	"grebe/plan"
)

// Check finds books that disagree with the entries.
func TestCheckNoticesWrongBooks(t *testing.T) {
	broken := errors.New("broken")
	for name, damage := range map[string]func(c *Core[int], h *entry){
		"another key":               func(c *Core[int], h *entry) { h.Key = plan.Key{99} },
		"a run under a key":         func(c *Core[int], h *entry) { h.Run = true },
		"an empty slot":             func(c *Core[int], h *entry) { h.level.bySlot[h.slot] = nil },
		"another slot":              func(c *Core[int], h *entry) { h.slot++ },
		"another level":             func(c *Core[int], h *entry) { h.level = c.levels[1] },
		"no level":                  func(c *Core[int], h *entry) { h.level = nil },
		"nobody under its key":      func(c *Core[int], h *entry) { c.held.remove(&h.Key) },
		"more bytes":                func(c *Core[int], h *entry) { h.Bytes++ },
		"another kind":              func(c *Core[int], h *entry) { h.Kind = plan.Preamble },
		"fewer entries":             func(c *Core[int], h *entry) { h.level.counts[h.Kind].Entries-- },
		"a slot too many":           func(c *Core[int], h *entry) { h.level.free = append(h.level.free, 7) },
		"a slot too few":            func(c *Core[int], h *entry) { h.level.free = h.level.free[1:] },
		"dirty and not listed":      func(c *Core[int], h *entry) { h.level.dirty.remove(h.slot) },
		"listed and not dirty":      func(c *Core[int], h *entry) { h.dirty = false },
		"listed and clean":          func(c *Core[int], h *entry) { h.clean = true },
		"more dirty ones":           func(c *Core[int], h *entry) { h.level.count++ },
		"another owner":             func(c *Core[int], h *entry) { h.Owner++ },
		"another owner's count":     func(c *Core[int], h *entry) { c.owned[h.Owner]++ },
		"another owner on disk":     func(c *Core[int], h *entry) { c.below[h.Key] = Entry{Owner: 77} },
		"a stranger's key":          func(c *Core[int], h *entry) { c.below[plan.Key{98}] = Entry{Owner: 77} },
		"what the owner objects to": func(c *Core[int], h *entry) { h.Value = -1 },
	} {
		c := newCore(t, "lru", 4, 4)
		var all []*entry
		for i := range 3 {
			h := item(i)
			h.Named, h.Kind = true, plan.User // users are not written at once, so they are dirty
			c.Publish(h, 0, false)
			all = append(all, h)
		}
		each := func(h *entry) error {
			if h.Value < 0 {
				return broken
			}
			return nil
		}
		if err := c.Check(each); err != nil {
			t.Fatal(err)
		}
		if damage(c, all[1]); c.Check(each) == nil {
			t.Errorf("%s: nothing is wrong", name)
		}
	}
}
