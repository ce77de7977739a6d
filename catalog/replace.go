package catalog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"grebe/internal/pebbleopen"
)

// Head describes the catalog that a Snapshot has.
type Head struct {
	ID      string // of the catalog
	Last    Mark   // the last record whose effect it has
	Version uint64
}

// Snapshot is the content of a catalog on disk at one moment. While it is open, the log of a replicated one keeps the
// records behind it.
type Snapshot struct {
	Head
	Items, Users int // that Next has returned so far

	c    *Catalog
	snap *pebble.Snapshot
	it   *pebble.Iterator
	next bool // the iterator stands at the next pair
}

// copied are the kinds of keys that a snapshot has, in their order.
var copied = [][2]byte{{'i', 'i' + 1}, {buriedKind, 'u' + 1}}

// Snapshot returns the content as it is on disk. The caller MUST Close it.
func (c *Catalog) Snapshot(ctx context.Context) (*Snapshot, error) {
	if c.store == nil {
		return nil, errors.New("catalog: a catalog in memory has no snapshots")
	}
	s := &Snapshot{c: c}
	err := c.alone(ctx, func() error {
		if c.log == nil {
			s.Head = Head{ID: c.id, Version: c.totals.version}
			s.snap = c.store.db.NewSnapshot()
			return nil
		}
		state, _ := c.LogState()
		if state.Incomplete {
			return fmt.Errorf("catalog: the copy is not complete: %w", ErrGap)
		}
		s.Head = Head{state.ID, state.Last, state.Version}
		s.snap = c.store.db.NewSnapshot()
		c.log.mu.Lock()
		defer c.log.mu.Unlock()
		c.log.holds[s] = state.Last.Index
		return nil
	})
	if err != nil {
		return nil, err
	}
	if s.it, err = s.snap.NewIter(&pebble.IterOptions{
		LowerBound: []byte{copied[0][0]}, UpperBound: []byte{copied[1][1]}}); err != nil {
		s.Close()
		return nil, err
	}
	s.next = s.it.First()
	return s, nil
}

// Next returns pairs of keys and values, about most bytes of them; nil: there are no more.
func (s *Snapshot) Next(most int) (pairs []byte, err error) {
	for s.next && len(pairs) < most {
		key := s.it.Key()
		if !isCopied(key[0]) {
			s.next = s.it.SeekGE([]byte{copied[1][0]})
			continue
		}
		switch key[0] {
		case 'i':
			s.Items++
		case 'u':
			s.Users++
		}
		pairs = pebbleopen.AppendPair(pairs, key, s.it.Value())
		s.next = s.it.Next()
	}
	return pairs, s.it.Error()
}

func isCopied(kind byte) bool {
	return slices.ContainsFunc(copied, func(r [2]byte) bool { return kind >= r[0] && kind < r[1] })
}

// Release lets the log drop the records behind the snapshot. Close does that too.
func (s *Snapshot) Release() {
	l := s.c.log
	if l == nil {
		return
	}
	l.mu.Lock()
	delete(l.holds, s)
	l.mu.Unlock()
	if l.owesSweep() {
		s.c.store.sweeper.Start()
	}
}

// Close ends the snapshot.
func (s *Snapshot) Close() {
	s.Release()
	if s.it != nil {
		_ = s.it.Close() // Next has returned its error
	}
	_ = s.snap.Close()
}

// copying is a copy of another node's catalog that replaces this one.
type copying struct {
	c     *Catalog
	head  Head
	b     *batch
	local *pebble.Iterator // over what this catalog had
	ahead bool             // it stands at a pair
	last  []byte           // the last key that came

	items  *items
	users  map[string]*userEntry
	totals totals
}

// Replace makes the catalog a copy of another node's. Next returns what Snapshot.Next did. Readers see the copy once it
// is complete; then subscribers hear of everything that differs: what was put, by version, and then what was deleted.
// After an error, or a crash, LogState.Incomplete says that the files are a mixture, and Replace must be called again.
func (c *Catalog) Replace(ctx context.Context, head Head, next func() ([]byte, error)) error {
	return c.alone(ctx, func() error {
		cp := &copying{c: c, head: head, b: c.store.batch(), items: newItems(), users: map[string]*userEntry{}}
		defer func() { cp.b.close() }()
		if err := cp.run(next); err != nil {
			return fmt.Errorf("catalog: copy: %w", err)
		}
		cp.show()
		return nil
	})
}

func (cp *copying) run(next func() ([]byte, error)) (err error) {
	cp.b.note(cp.b.b.Set(copyKey, nil, nil))
	if err := cp.flush(); err != nil {
		return err
	}
	cp.c.log.mu.Lock()
	cp.c.log.incomplete = true
	cp.c.log.mu.Unlock()
	// The iterator sees the files as they are now.
	cp.local, err = cp.c.store.db.NewIter(&pebble.IterOptions{
		LowerBound: []byte{copied[0][0]}, UpperBound: []byte{copied[1][1]}})
	if err != nil {
		return err
	}
	defer cp.local.Close()
	cp.ahead = cp.local.First()
	for {
		pairs, err := next()
		if err != nil {
			return err
		}
		if pairs == nil {
			break
		}
		if err := cp.take(pairs); err != nil {
			return err
		}
	}
	if err := cp.removeUntil([]byte{copied[1][1]}); err != nil {
		return err
	}
	return cp.complete()
}

// take writes pairs that differ from what is there.
func (cp *copying) take(pairs []byte) error {
	for len(pairs) > 0 {
		key, value, rest, ok := pebbleopen.TakePair(pairs)
		if !ok || len(key) != keySize || !isCopied(key[0]) || bytes.Compare(key, cp.last) <= 0 {
			return errRecord
		}
		pairs, cp.last = rest, append(cp.last[:0], key...)
		if err := cp.removeUntil(key); err != nil {
			return err
		}
		same := false
		if cp.ahead && bytes.Equal(cp.local.Key(), key) {
			same = bytes.Equal(cp.local.Value(), value)
			cp.ahead = cp.local.Next()
		}
		if !same {
			cp.b.note(cp.b.b.Set(key, value, nil))
		}
		if err := cp.keep(key[0], value); err != nil {
			return err
		}
		if err := cp.flushLarge(); err != nil {
			return err
		}
	}
	return nil
}

// removeUntil removes what this catalog has before a key: the other one does not have it.
func (cp *copying) removeUntil(key []byte) error {
	for cp.ahead && bytes.Compare(cp.local.Key(), key) < 0 {
		if own := cp.local.Key(); isCopied(own[0]) {
			cp.b.note(cp.b.b.Delete(own, nil))
			if own[0] == 'u' && cp.c.opt.TrackDeletions {
				e, err := parseUser(cp.local.Value(), cp.c.opt.MaxHistory)
				if err != nil {
					return err
				}
				cp.b.intend(e.user.Id, max(1, cp.head.Version))
			}
		}
		cp.ahead = cp.local.Next()
		if err := cp.flushLarge(); err != nil {
			return err
		}
	}
	return cp.local.Error()
}

// keep takes a pair into the maps. A user that this catalog has in the same form stays as it is.
func (cp *copying) keep(kind byte, value []byte) error {
	switch kind {
	case 'i':
		e, err := parseItem(value)
		if err != nil {
			return err
		}
		cp.items.put(e.record, e.version)
		cp.totals.bytes += e.size()
		cp.totals.digest = cp.totals.digest.plus(e.digest())
	case 'u':
		e, err := parseUser(value, cp.c.opt.MaxHistory)
		if err != nil {
			return err
		}
		if old := cp.c.users[e.user.Id]; old != nil && old.version == e.version && old.digest == e.digest &&
			e.digest != (digest{}) {
			e = old
		}
		cp.users[e.user.Id] = e
		cp.totals.bytes += e.size
	case buriedKind:
		cp.c.store.buried.Store(true)
	}
	return nil
}

// flushLarge bounds the memory of the batch.
func (cp *copying) flushLarge() error {
	if cp.b.b.Len() < 4<<20 {
		return nil
	}
	return cp.flush()
}

func (cp *copying) flush() error {
	if err := cp.b.commit(cp.c.log.version); err != nil {
		return cp.c.fail(err)
	}
	cp.b.close()
	cp.b = cp.c.store.batch()
	return nil
}

// complete makes the copy this catalog's content, durably.
func (cp *copying) complete() error {
	b := cp.b
	b.note(b.b.Set(idKey, []byte(cp.head.ID), nil))
	b.note(b.b.Set(sweepKey, []byte{1}, nil))
	b.note(b.b.Set(logKey, appendMark(appendMark(nil, cp.head.Last), cp.head.Last), nil))
	b.note(b.b.DeleteRange([]byte{recordKind}, []byte{recordKind + 1}, nil))
	b.note(b.b.Delete(copyKey, nil))
	if err := b.commit(cp.head.Version); err != nil {
		return cp.c.fail(err)
	}
	cp.c.store.db.SetNote(pebbleopen.Note{cp.head.Version, uint64(cp.items.n), uint64(len(cp.users))})
	return nil
}

// show shows the copy to readers and subscribers.
func (cp *copying) show() {
	c := cp.c
	r, watches := c.newRound(0)
	cp.diff(r)
	cp.totals.version, cp.totals.dropped = cp.head.Version, r.totals.dropped
	c.mu.Lock()
	c.id, c.items, c.users, c.totals, c.uncut = cp.head.ID, cp.items, cp.users, cp.totals, true
	c.recent = new(recent) // versions are those of another catalog
	c.mu.Unlock()
	for i := range r.steps {
		if s := &r.steps[i]; s.deletion && s.user && c.opt.TrackDeletions {
			c.deletions.add(s.id, max(1, s.version))
		}
	}
	l := c.log
	l.mu.Lock()
	l.last, l.floor, l.deleted = cp.head.Last, cp.head.Last, Mark{}
	l.sizes, l.bytes, l.waiting, l.incomplete = nil, 0, nil, false
	l.version, l.shown, l.erased = cp.head.Version, cp.head.Last.Index, cp.head.Last.Index
	l.wake()
	l.mu.Unlock()
	r.tell(watches)
	c.store.sweeper.Add(make([][]byte, pebbleopen.MostSwept+1)...) // everything: what was removed is not known by key
}

// diff adds the steps from what this catalog shows to the copy.
func (cp *copying) diff(r *round) {
	copied := cp.items.list(cp.items.n)
	defer copied.free()
	for e := range copied.entries() {
		id := e.id()
		if old := cp.c.items.find(id); !old.same(e.record) || old.version != e.version {
			r.steps = append(r.steps, step{id: id, oldItem: old, newItem: &e, version: e.version})
		}
	}
	for id, e := range cp.users {
		if old := cp.c.users[id]; old != e {
			r.steps = append(r.steps, step{id: id, user: true, oldUser: old, newUser: e, version: e.version})
		}
	}
	slices.SortFunc(r.steps, func(a, b step) int { return cmp.Compare(a.version, b.version) })
	own := cp.c.items.list(cp.c.items.n)
	defer own.free()
	for old := range own.entries() {
		if id := old.id(); cp.items.find(id) == nil {
			r.steps = append(r.steps, step{id: id, oldItem: &old, deletion: true, version: cp.head.Version})
		}
	}
	for id, old := range cp.c.users {
		if cp.users[id] == nil {
			r.steps = append(r.steps, step{id: id, user: true, oldUser: old, deletion: true, version: cp.head.Version})
		}
	}
}
