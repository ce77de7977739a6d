package codebook

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/wire"
)

const maxLine = 16 << 20 // bytes

// Items is a file of items. Lines are read again when they are needed, so that a catalog need not fit into memory.
type Items struct {
	IDs  []string
	path string
}

// ReadItems reads the ids of a file's items. Each item has one, and no two have the same.
func ReadItems(ctx context.Context, path string) (*Items, error) {
	out, first := &Items{path: path}, map[string]int{}
	err := out.Each(ctx, func(line int, m *grebev1.Item) error {
		if m.Id == "" {
			return fmt.Errorf("%s:%d: the item has no id", path, line)
		}
		if at, ok := first[m.Id]; ok {
			return fmt.Errorf("%s:%d: the id %q is that of line %d too", path, line, m.Id, at)
		}
		first[m.Id] = line
		out.IDs = append(out.IDs, m.Id)
		return nil
	})
	if err == nil && len(out.IDs) == 0 {
		err = fmt.Errorf("%s has no items", path)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Each visits the items in order, with their lines. Empty lines are skipped.
func (f *Items) Each(ctx context.Context, visit func(line int, m *grebev1.Item) error) error {
	file, err := os.Open(f.path)
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewScanner(file)
	in.Buffer(nil, maxLine)
	line := 1
	for ; in.Scan(); line++ {
		if line%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if len(in.Bytes()) == 0 {
			continue
		}
		m, err := wire.DecodeItem(in.Bytes())
		if err != nil {
			return fmt.Errorf("%s:%d: %w", f.path, line, err)
		}
		if err := visit(line, m); err != nil {
			return err
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("%s:%d: %w", f.path, line, err)
	}
	return nil
}

// write writes the items with codes.
func (f *Items) write(ctx context.Context, w io.Writer, of func(id string) []int32) error {
	out, n := bufio.NewWriterSize(w, 1<<20), 0
	err := f.Each(ctx, func(line int, m *grebev1.Item) error {
		if n == len(f.IDs) || f.IDs[n] != m.Id {
			return fmt.Errorf("%s:%d: the file changed while it was read", f.path, line)
		}
		n++
		m.Codes = of(m.Id)
		_, err := out.Write(wire.EncodeItem(m)) // with its newline
		return err
	})
	if err == nil && n != len(f.IDs) {
		err = fmt.Errorf("%s: the file changed while it was read", f.path)
	}
	if err != nil {
		return err
	}
	return out.Flush()
}
