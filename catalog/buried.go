package catalog

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// buriedKind begins the keys of users who were deleted, by a digest of their ids. A key stays until somebody puts a
// user of that id again: by it, loading a file does not bring back who was deleted since.
const buriedKind = 't'

func buriedKey(id string) [keySize]byte {
	k := keyOf(true, id)
	k[0] = buriedKind
	return k
}

// bury records that a user was deleted, in the batch that deletes it.
func (b *batch) bury(id string) {
	key := buriedKey(id)
	b.note(b.b.Set(key[:], nil, nil))
	b.s.buried.Store(true)
}

// unbury removes the record, as a user of that id is put again.
func (b *batch) unbury(id string) {
	if b.s.buried.Load() {
		key := buriedKey(id)
		b.note(b.b.Delete(key[:], nil))
	}
}

// Buried reports whether a user was deleted and not put again since. A catalog in memory does not remember.
func (c *Catalog) Buried(id string) (bool, error) {
	if c.store == nil || !c.store.buried.Load() {
		return false, nil
	}
	key := buriedKey(id)
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
