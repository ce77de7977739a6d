package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"

	grebev1 "grebe/api/grebe/v1"
)

// ItemFile names a file of items and says how to read it, as the flags of an import do.
type ItemFile struct {
	Path  string    // "-" is Stdin
	Stdin io.Reader // nil: there is none

	Format, Separator, Map, Lists string // as Import has them
}

// Items reads a file of items in any format that an import reads. Each pass reads the file again, so that a catalog
// need not fit into memory.
type Items struct{ src *source }

// OpenItems opens a file of items. The caller MUST close it.
func OpenItems(f ItemFile) (*Items, error) {
	src, err := newSource(f.Path, reading{
		kind: kindItems, format: f.Format, separator: f.Separator, fields: f.Map, lists: f.Lists, stdin: f.Stdin,
	})
	if err != nil {
		return nil, err
	}
	return &Items{src}, nil
}

// Name returns the file's name for messages.
func (i *Items) Name() string { return i.src.path }

// Unit says what Each numbers: "line" or "row".
func (i *Items) Unit() string { return i.src.unit }

// Close removes what the reader stored on the disk.
func (i *Items) Close() error { return i.src.close() }

// Each visits the items in order, each with its number: its line or its row, from 1. The first bad record ends it.
func (i *Items) Each(ctx context.Context, visit func(number int64, m *grebev1.Item) error) error {
	return i.src.parts(ctx, nil, func(part *chunk) error {
		for k := range part.lines {
			l := &part.lines[k]
			if l.err == nil && l.op.PutItem == nil {
				l.err = errors.New("deletes an item: leave it out")
			}
			if l.err != nil {
				return fmt.Errorf("%s:%d: %w", i.src.path, l.number, l.err)
			}
			if err := visit(l.number, l.op.PutItem); err != nil {
				return err
			}
		}
		return nil
	})
}
