package catalog

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"

	"grebe/internal/pebbleopen"
)

// Restore makes a catalog in a folder that has none, of what Snapshot.Next returned. Next returns nil at the end. The
// catalog has the given id and is replicated only once a member of a cluster opens it. After an error the folder is of
// no use.
func Restore(dir, id string, version uint64, next func() ([]byte, error)) (items, users int, err error) {
	s, err := openStore(dir, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return 0, 0, fmt.Errorf("catalog: restore into %s: %w", dir, err)
	}
	r := &restoring{s: s, b: s.batch(), version: version}
	err = r.run(id, next)
	r.b.close()
	if err = errors.Join(err, s.close()); err != nil {
		return 0, 0, fmt.Errorf("catalog: restore into %s: %w", dir, err)
	}
	return r.items, r.users, nil
}

// restoring is a catalog that is being restored.
type restoring struct {
	s            *store
	b            *batch
	version      uint64
	last         []byte // the last key
	items, users int
}

func (r *restoring) run(id string, next func() ([]byte, error)) error {
	there, err := r.s.has(idKey)
	if err != nil {
		return err
	}
	if there {
		return errors.New("the folder has a catalog")
	}
	for {
		pairs, err := next()
		if err != nil {
			return err
		}
		if pairs == nil {
			break
		}
		if err := r.take(pairs); err != nil {
			return err
		}
	}
	r.b.note(r.b.b.Set(idKey, []byte(id), nil))
	if err := r.b.commit(r.version); err != nil {
		return err
	}
	r.s.db.SetNote(pebbleopen.Note{r.version, uint64(r.items), uint64(r.users)})
	return nil
}

// take writes pairs that can be read as items, users and deletions.
func (r *restoring) take(pairs []byte) error {
	for len(pairs) > 0 {
		key, value, rest, ok := pebbleopen.TakePair(pairs)
		if !ok || len(key) != keySize || !isCopied(key[0]) || bytes.Compare(key, r.last) <= 0 {
			return errRecord
		}
		pairs, r.last = rest, append(r.last[:0], key...)
		var err error
		switch key[0] {
		case 'i':
			_, err = parseItem(value)
			r.items++
		case 'u':
			_, err = parseUser(value, 1<<30)
			r.users++
		}
		if err != nil {
			return err
		}
		r.b.note(r.b.b.Set(key, value, nil))
		if r.b.b.Len() < 4<<20 {
			continue
		}
		if err := r.b.commit(r.version); err != nil {
			return err
		}
		r.b.close()
		r.b = r.s.batch()
	}
	return nil
}
