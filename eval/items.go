package eval

import (
	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/wire"
)

// Items reads the items of a file (NDJSON).
func Items(path string) ([]*grebev1.Item, error) {
	var items []*grebev1.Item
	err := lines(path, func(line []byte) error {
		it, err := wire.DecodeItem(line)
		items = append(items, it)
		return err
	})
	return items, err
}
