package codebook

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	grebev1 "grebe/api/grebe/v1"
	"grebe/ingest"
	"grebe/internal/wire"
)

// Items is a file of items. Records are read again when they are needed, so that a catalog need not fit into memory.
type Items struct {
	IDs  []string
	file *ingest.Items
}

// ReadItems reads the ids of a file's items. Each item has one, and no two have the same. The caller MUST Close it.
func ReadItems(ctx context.Context, f ingest.ItemFile) (*Items, error) {
	file, err := ingest.OpenItems(f)
	if err != nil {
		return nil, err
	}
	out, first := &Items{file: file}, map[string]int64{}
	err = file.Each(ctx, func(number int64, m *grebev1.Item) error {
		if at, ok := first[m.Id]; ok {
			return fmt.Errorf("%s:%d: the id %q is that of %s %d too", file.Name(), number, m.Id, file.Unit(), at)
		}
		first[m.Id] = number
		out.IDs = append(out.IDs, m.Id)
		return nil
	})
	if err == nil && len(out.IDs) == 0 {
		err = fmt.Errorf("%s has no items", file.Name())
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return out, nil
}

// Close removes what was stored to read the file.
func (f *Items) Close() error { return f.file.Close() }

// Each visits the items in order.
func (f *Items) Each(ctx context.Context, visit func(m *grebev1.Item) error) error {
	return f.file.Each(ctx, func(_ int64, m *grebev1.Item) error { return visit(m) })
}

// write writes the items with codes.
func (f *Items) write(ctx context.Context, w io.Writer, of func(id string) []int32) error {
	out, n := bufio.NewWriterSize(w, 1<<20), 0
	err := f.file.Each(ctx, func(number int64, m *grebev1.Item) error {
		if n == len(f.IDs) || f.IDs[n] != m.Id {
			return fmt.Errorf("%s:%d: the file changed while it was read", f.file.Name(), number)
		}
		n++
		m.Codes = of(m.Id)
		_, err := out.Write(wire.EncodeItem(m)) // with its newline
		return err
	})
	if err == nil && n != len(f.IDs) {
		err = fmt.Errorf("%s: the file changed while it was read", f.file.Name())
	}
	if err != nil {
		return err
	}
	return out.Flush()
}
