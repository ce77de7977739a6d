package generate

import (
	"grebe/catalog"
	"grebe/prompt"
)

// View is the catalog's items, with texts and attributes, as they were at an activated version. Items that changed
// after the activation are seen in their present form. A View never changes.
type View struct {
	snap *Snapshot
	at   uint64   // version of the catalog at the activation
	live []uint64 // slots in use at the version, a bit each
}

// viewOf makes the view of a snapshot for a model.
func (k *Keeper) viewOf(t *target, s *Snapshot, at uint64) (*View, error) {
	if v := t.Generator.View(); v != nil && v.snap == s {
		return &View{snap: s, at: at, live: v.live}, nil
	}
	if err := k.history.Load(s.at); err != nil {
		return nil, err
	}
	defer k.history.Unload(s.at)
	v := &View{snap: s, at: at, live: make([]uint64, (s.table.Slots()+63)/64)}
	for _, slot := range s.at.Live() {
		v.live[slot/64] |= 1 << (slot % 64)
	}
	return v, nil
}

// Version returns the activated version.
func (v *View) Version() string { return v.snap.Version }

// Item returns an item as the view shows it, or the catalog's if v is nil. The caller MUST NOT change it.
func (v *View) Item(c *catalog.Catalog, id string) (*prompt.Item, bool) {
	now, version, ok := c.Lookup(id)
	if v == nil || ok && version > v.at {
		return now, ok
	}
	slot, found := v.snap.table.Find(id, func(slot uint32) bool { return v.live[slot/64]>>(slot%64)&1 != 0 })
	if !found {
		if v.snap.at.Plain() && ok && !hasCodes(now) { // such files have no items without codes
			return now, true
		}
		return nil, false
	}
	it, whole := v.snap.table.Item(slot)
	if !whole && ok { // the version has only codes and attributes: take the present text
		it.Text, it.Tokens, it.Identifier = now.Text, now.Tokens, now.Identifier
	}
	return it, true
}

// FirstValues calls f with the attributes of an item, as Item has them, that have a value, and the first value of each.
// f MUST NOT keep what it gets.
func (v *View) FirstValues(c *catalog.Catalog, id string, f func(name, first string)) {
	at := uint64(0)
	if v != nil {
		at = v.at
	}
	if c.FirstValues(id, at, f) || v == nil {
		return
	}
	it, ok := v.Item(c, id)
	if !ok {
		return
	}
	for name, values := range it.Attributes {
		if len(values) > 0 {
			f(name, values[0])
		}
	}
}

func hasCodes(it *prompt.Item) bool { return it != nil && len(it.Codes) > 0 }

// View returns the view of all models if they use the same activated version; nil: as the catalog has them.
func (k *Keeper) View() *View { return k.view.Load() }

// review finds the view that all models share. The caller holds build.
func (k *Keeper) review() {
	var all *View
	for i, t := range k.following() {
		v := t.Generator.View()
		if v == nil || i > 0 && v.snap.Version != all.snap.Version {
			k.view.Store(nil)
			return
		}
		if i == 0 {
			all = v
		}
	}
	k.view.Store(all)
}
