package catalog

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// buriedKind begins the keys of users who were deleted, by a digest of their ids. A key stays until somebody puts a
// user of that id again: by it, loading a file does not bring back who was deleted since. In a replicated catalog items
// have such keys too: a node that joins loads its files into a catalog from which others have deleted.
const buriedKind = 't'

func buriedKey(user bool, id string) [keySize]byte {
	k := keyOf(user, id)
	k[0] = buriedKind
	for i := 1; i < len(k) && !user; i++ {
		k[i] = ^k[i] // an item and a user may have the same id
	}
	return k
}

// bury records that a user or an item was deleted, in the batch that deletes it.
func (b *batch) bury(user bool, id string) {
	key := buriedKey(user, id)
	b.note(b.b.Set(key[:], nil, nil))
	b.s.buried.Store(true)
}

// unbury removes the record, as a user or an item of that id is put again.
func (b *batch) unbury(user bool, id string) {
	if b.s.buried.Load() {
		key := buriedKey(user, id)
		b.note(b.b.Delete(key[:], nil))
	}
}

// Buried reports whether a user was deleted and not put again since. A catalog in memory does not remember.
func (c *Catalog) Buried(id string) (bool, error) { return c.hasBuried(true, id) }

// BuriedItem reports whether an item was deleted and not put again since. Only a replicated catalog remembers.
func (c *Catalog) BuriedItem(id string) (bool, error) { return c.hasBuried(false, id) }

func (c *Catalog) hasBuried(user bool, id string) (bool, error) {
	if c.store == nil || !c.store.buried.Load() {
		return false, nil
	}
	key := buriedKey(user, id)
	return c.store.has(key[:])
}

// anyBuried reports whether a store has such records.
func (s *store) anyBuried() (any bool, err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{buriedKind}, UpperBound: []byte{buriedKind + 1}})
	if err != nil {
		return false, err
	}
	any = it.First()
	return any, errors.Join(it.Error(), it.Close())
}
