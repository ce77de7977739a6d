package embed

import (
	"context"
	"errors"
)

// Store keeps the rows of one table by key. It is safe for concurrent use; embedtest is its conformance suite.
type Store interface {
	// Gather writes the row of keys[i] to rows[i·RowBytes:] and true to found[i], or false when there is none:
	// what is in rows is then undefined. One round trip for all keys, which may repeat. After an error
	// nothing of the results counts. It returns soon after ctx is done.
	Gather(ctx context.Context, keys []uint64, rows []byte, found []bool) error
	// Put writes rows, one after the other as Gather returns them. After an error some may be written.
	Put(ctx context.Context, keys []uint64, rows []byte) error
	// Delete removes rows; those that are not there are no error.
	Delete(ctx context.Context, keys []uint64) error
	// RowBytes is the size of a row.
	RowBytes() int
	// Close frees what the store holds. Nobody may use it any more.
	Close() error
}

// watched is a Store that tells of rows that others change.
type watched interface {
	Watch(changed func(keys []uint64)) // nil keys: any row may have changed
}

// ErrUnavailable is returned by a store that did not answer lately and is not asked again for a moment.
var ErrUnavailable = errors.New("the store is unavailable")

// ErrRow is returned for a row of another size than the table's.
var ErrRow = errors.New("a row of another size")
