package embed

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"grebe/internal/pebbleopen"
)

// Snapshot is the rows of all tables in Pebble at one moment.
type Snapshot struct {
	snap *pebble.Snapshot
	it   *pebble.Iterator
	next bool // the iterator stands at the next pair
}

// Snapshot returns the rows of all tables in Pebble; nil: there are no such tables. The caller MUST Close it.
func (t *Tables) Snapshot() (*Snapshot, error) {
	if t == nil || t.folder == nil {
		return nil, nil
	}
	s := &Snapshot{snap: t.folder.db.NewSnapshot()}
	var err error
	// Rows begin with r, the sizes of rows with s.
	if s.it, err = s.snap.NewIter(&pebble.IterOptions{LowerBound: []byte("r"), UpperBound: []byte("t")}); err != nil {
		return nil, errors.Join(fmt.Errorf("embed: snapshot: %w", err), s.snap.Close())
	}
	s.next = s.it.First()
	return s, nil
}

// Next returns pairs of keys and values, about most bytes of them; nil: there are no more.
func (s *Snapshot) Next(most int) (pairs []byte, err error) {
	for s.next && len(pairs) < most {
		pairs = pebbleopen.AppendPair(pairs, s.it.Key(), s.it.Value())
		s.next = s.it.Next()
	}
	return pairs, s.it.Error()
}

// Close ends the snapshot.
func (s *Snapshot) Close() error { return errors.Join(s.it.Close(), s.snap.Close()) }

// RestoreFolder makes tables in a folder that has none, of what Snapshot.Next returned. Next returns nil at the end.
// After an error the folder is of no use.
func RestoreFolder(dir string, next func() ([]byte, error)) error {
	f, err := OpenFolder(dir)
	if err != nil {
		return err
	}
	err = f.restore(next)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("embed: restore tables into %s: %w", dir, err)
	}
	return nil
}

func (f *Folder) restore(next func() ([]byte, error)) error {
	for {
		pairs, err := next()
		if err != nil || pairs == nil {
			return err
		}
		b := f.db.NewBatch()
		for len(pairs) > 0 && err == nil {
			key, value, rest, ok := pebbleopen.TakePair(pairs)
			if !ok || len(key) == 0 || key[0] != 'r' && key[0] != 's' {
				err = errors.New("a row is malformed")
				break
			}
			pairs, err = rest, b.Set(key, value, nil)
		}
		if err == nil {
			err = f.write(func() error { return b.Commit(pebble.Sync) })
		}
		if err = errors.Join(err, b.Close()); err != nil {
			return err
		}
	}
}
