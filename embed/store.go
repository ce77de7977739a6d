package embed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"grebe/internal/human"
	"grebe/internal/redisconn"
)

// Store keeps the rows of one table by key. It is safe for concurrent use; embedtest is its conformance suite.
type Store interface {
	// Gather writes the row of keys[i] to rows[i·RowBytes:] and true to found[i], or false when there is none:
	// what is in rows is then undefined. One round trip for all keys, which may repeat. After an error
	// nothing of the results counts, except that a [BrokenError] and an [OutageError] are about some rows alone; one may
	// hold both. It returns soon after ctx is done.
	Gather(ctx context.Context, keys []uint64, rows []byte, found []bool) error
	// Put writes rows, one after the other as Gather returns them. After an error some may be written.
	Put(ctx context.Context, keys []uint64, rows []byte) error
	// Delete removes rows; those that are not there are no error. A store that cannot returns ErrKept and removes none.
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
var ErrUnavailable = redisconn.ErrUnavailable

// ErrKept is returned for rows that a store cannot delete.
var ErrKept = errors.New("rows of a mapped file cannot be deleted: put others in their place")

// ErrRow is returned for a row of another size than the table's.
var ErrRow = errors.New("a row of another size")

// BrokenError says that a store has rows that are none of the table's: of another size, of numbers that are not
// finite, or damaged. They are those of keys[i] for each i of Rows. They count as not found; all others of the Gather
// are as they should be. Redis, Pebble and mapped files look for them.
type BrokenError struct{ Rows []int }

func (e *BrokenError) Error() string {
	return fmt.Sprintf("embed: %s not usable: of another size, with numbers that are not finite, or damaged",
		human.Are(len(e.Rows), "row"))
}

// brokenRows returns an error where there are any.
func brokenRows(rows []int) error {
	if len(rows) == 0 {
		return nil
	}
	return &BrokenError{rows}
}

// OutageError says that a part of a store did not answer: keys[i] for each i of Rows were not found, and Err says why.
// All others of the Gather are as they should be. A cluster returns it.
type OutageError struct {
	Rows []int
	Err  error
}

func (e *OutageError) Error() string {
	return fmt.Sprintf("embed: %s in a part of the store that does not answer: %v", human.Are(len(e.Rows), "row"), e.Err)
}

func (e *OutageError) Unwrap() error { return e.Err }

// finite reports whether a row's float32 all are: their exponents are not all ones. It looks at two at a time.
func finite(row []byte) bool {
	const exponent, last, carry = 0x7F80_0000_7F80_0000, 0x0080_0000_0080_0000, 0x8000_0000_8000_0000
	for ; len(row) >= 8; row = row[8:] {
		if (binary.LittleEndian.Uint64(row)&exponent+last)&carry != 0 {
			return false
		}
	}
	return len(row) < 4 || binary.LittleEndian.Uint32(row)&(exponent>>32) != exponent>>32
}
