package reuse

import (
	"context"
	"errors"
	"slices"
	"testing"

	"grebe/kv/disk"
	"grebe/plan"
	"grebe/prompt"
)

// tallied is a disk that records how many entries each call deletes or drops.
type tallied struct {
	*disk.Store
	deleted []int
	dropped []int
	after   func()
}

func (d *tallied) Drop(keys ...plan.Key) {
	d.dropped = append(d.dropped, len(keys))
	d.Store.Drop(keys...)
}

func (d *tallied) Delete(keys ...plan.Key) error {
	d.deleted = append(d.deleted, len(keys))
	err := d.Store.Delete(keys...)
	if d.after != nil {
		d.after()
	}
	return err
}

// withEntries is a cache over a disk with n items.
func withEntries(t *testing.T, n int) (*machine, *tallied) {
	t.Helper()
	m := newMachine(t, 7, nil, "", false)
	below, err := disk.Open(t.TempDir(), disk.Options{Budget: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.close()
		if err := below.Close(); err != nil {
			t.Error(err)
		}
	})
	d := &tallied{Store: below}
	m.store.SetDisk(d)
	for i := range n {
		m.keep(t, plan.Item, plan.Key{byte(i), byte(i >> 8), 7}, 1, nil)
	}
	m.toDisk(t)
	return m, d
}

// Clear deletes many entries at a time, and stops when the context ends: a server that stops does not wait for it.
func TestClearingACache(t *testing.T) {
	const entries = 2*clearAtOnce + 30
	m, d := withEntries(t, entries)
	if err := m.Clear(t.Context()); err != nil || d.Stats().Entries != 0 {
		t.Errorf("%v, and %d entries are left", err, d.Stats().Entries)
	}
	if want := []int{clearAtOnce, clearAtOnce, 30}; !slices.Equal(d.deleted, want) {
		t.Errorf("%v entries are deleted at a time, want %v", d.deleted, want)
	}

	m, d = withEntries(t, entries)
	ctx, cancel := context.WithCancel(t.Context())
	d.after = cancel
	if err := m.Clear(ctx); !errors.Is(err, context.Canceled) || len(d.deleted) != 1 {
		t.Errorf("stopped after the first deletion: %v after %d", err, len(d.deleted))
	}
	if left := d.Stats().Entries; left != entries-clearAtOnce {
		t.Errorf("%d entries are left, want %d", left, entries-clearAtOnce)
	}
}

// Deleting a user while a checkpoint is being retired also removes the user from that checkpoint's entries.
func TestDroppingAUserFromEveryCheckpoint(t *testing.T) {
	m, d := withEntries(t, 0)
	opt := m.opt
	opt.Model = plan.Key{99}
	other := New(m.prompt, opt)
	for _, c := range []*Cache{m.Cache, other} {
		if err := d.Put(c.UserKey("ann", nil), nil, [][]byte{{1}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.DropUser("ann", "bob"); err != nil || d.Stats().Entries != 0 {
		t.Errorf("%v, and %d entries of hers are left", err, d.Stats().Entries)
	}
	if !slices.Equal(d.deleted, []int{4}) {
		t.Errorf("%v entries are deleted at a time, want those of two users in two caches", d.deleted)
	}
}

// Deleted items leave the disk at once. Changed ones are only forgotten, which needs no sync. Without either the disk
// is not called.
func TestOnlyDeletedItemsAreErased(t *testing.T) {
	m, d := withEntries(t, 0)
	item := func(edition int32) *prompt.Item { return &prompt.Item{Tokens: []int32{1, edition}} }
	put := func(it *prompt.Item) plan.Key {
		key := m.ItemKey(it.Tokens)
		if err := d.Put(key, nil, [][]byte{{1}}); err != nil {
			t.Fatal(err)
		}
		return key
	}
	changed, deleted := put(item(1)), put(item(2))
	if err := m.Apply([]Change{m.Changed([]*prompt.Item{item(1)}, item(3))}); err != nil || len(d.deleted) != 0 {
		t.Errorf("a changed item: %v, deletions of %v", err, d.deleted)
	}
	if err := m.Apply([]Change{m.Changed([]*prompt.Item{item(2)}, nil)}); err != nil ||
		!slices.Equal(d.deleted, []int{1}) {
		t.Errorf("a deleted item: %v, deletions of %v", err, d.deleted)
	}
	if !slices.Equal(d.dropped, []int{1}) {
		t.Errorf("%v entries are dropped at a time, want the changed item alone", d.dropped)
	}
	for _, key := range []plan.Key{changed, deleted} {
		if _, ok := d.Has(key); ok {
			t.Errorf("the disk has %x", key[:2])
		}
	}
}
