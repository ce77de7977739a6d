package catalog

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
)

// deletions are the users who were deleted and of whom something may be left outside the catalog. The batch that
// deletes a user also writes a record of it, so that a kill right after the commit does not lose the rest of the work.
// The record goes once DeletionDone was called, with the next sweep.
type deletions struct {
	mu      sync.Mutex
	pending map[string]uint64 // user → version of the deletion
	done    map[string]uint64 // likewise: the record may go
}

// deletionKind begins the keys of these records.
const deletionKind = 'd'

func deletionKey(id string) [keySize]byte {
	k := keyOf(true, id)
	k[0] = deletionKind
	return k
}

// PendingDeletions returns the users who were deleted and for whom DeletionDone was not called, in no particular order.
// There are none without Options.TrackDeletions.
func (c *Catalog) PendingDeletions() []string {
	c.deletions.mu.Lock()
	defer c.deletions.mu.Unlock()
	var ids []string
	for id, v := range c.deletions.pending {
		if c.deletions.done[id] != v {
			ids = append(ids, id)
		}
	}
	return ids
}

// PendingDeletion returns the version at which a user was deleted, as DeletionDone takes it; 0 if no deletion is
// pending.
func (c *Catalog) PendingDeletion(id string) uint64 {
	c.deletions.mu.Lock()
	defer c.deletions.mu.Unlock()
	return c.deletions.pending[id]
}

// DeletionDone says that nothing is left, durably, of a user who was deleted at a version. It does not wait: the record
// of the deletion is removed in the background. A later deletion of the same user stays pending. Subscribers may call
// it.
func (c *Catalog) DeletionDone(id string, version uint64) {
	if c.store == nil || version == 0 {
		return
	}
	d := &c.deletions
	d.mu.Lock()
	known := d.pending[id] == version
	if known {
		d.done[id] = version
	}
	d.mu.Unlock()
	if known {
		c.store.sweeper.Start()
	}
}

// anyDone reports whether records may go.
func (d *deletions) anyDone() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.done) > 0
}

// add notes a deletion that is durable.
func (d *deletions) add(id string, version uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending == nil {
		d.pending, d.done = map[string]uint64{}, map[string]uint64{}
	}
	d.pending[id] = version
	delete(d.done, id) // that was an earlier one
}

// takeDone returns the users whose records may go.
func (d *deletions) takeDone() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ids []string
	for id, v := range d.done {
		if d.pending[id] == v {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// cleared notes that the record of a user is gone, durably.
func (d *deletions) cleared(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v, ok := d.done[id]; ok && d.pending[id] == v { // else the same round deleted the user once more
		delete(d.pending, id)
		delete(d.done, id)
	}
}

// read takes in a record.
func (d *deletions) read(value []byte) error {
	if len(value) < 9 {
		return fmt.Errorf("a deletion of %d bytes: %w", len(value), errRecord)
	}
	d.add(string(value[8:]), binary.LittleEndian.Uint64(value))
	return nil
}

// intend records the deletion of a user in the batch that deletes it.
func (b *batch) intend(id string, version uint64) {
	key := deletionKey(id)
	b.note(b.b.Set(key[:], append(binary.LittleEndian.AppendUint64(nil, version), id...), nil))
}

// fulfil removes the record of a deletion. Its bytes are swept like those of a deleted user.
func (b *batch) fulfil(id string) {
	key := deletionKey(id)
	b.note(b.b.Delete(key[:], nil))
	b.note(b.b.Set(sweepKey, []byte{1}, nil))
}
