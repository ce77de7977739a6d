package catalog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"grebe/internal/wire"
)

// maxLine bounds one line of a file in bytes.
const maxLine = 16 << 20

// LoadItems adds the items of an NDJSON file, one per line; blank lines are passed over. A bad line
// or an id that comes twice ends the load with an error that names file and line.
func (c *Catalog) LoadItems(path string) (int, error) {
	return load(path, func(line []byte) (string, error) {
		m, err := wire.DecodeItem(line)
		if err != nil {
			return "", err
		}
		_, err = c.PutItem(m)
		return m.Id, err
	})
}

// LoadUsers adds the users of an NDJSON file, as LoadItems does.
func (c *Catalog) LoadUsers(path string) (int, error) {
	return load(path, func(line []byte) (string, error) {
		m, err := wire.DecodeUser(line)
		if err != nil {
			return "", err
		}
		_, err = c.PutUser(m)
		return m.Id, err
	})
}

// load calls put for each line; put returns the id of what it put.
func load(path string, put func([]byte) (string, error)) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("catalog: %w", err)
	}
	defer f.Close()
	n, err := readLines(path, f, put)
	if err != nil {
		return n, fmt.Errorf("catalog: %w", err)
	}
	return n, nil
}

func readLines(name string, r io.Reader, put func([]byte) (string, error)) (int, error) {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	first := map[string]int{} // line of each id
	line := 0
	for s.Scan() {
		line++
		if blank(s.Bytes()) {
			continue
		}
		id, err := put(s.Bytes())
		if err != nil {
			return len(first), fmt.Errorf("%s:%d: %w", name, line, err)
		}
		if before, dup := first[id]; dup {
			return len(first), fmt.Errorf("%s:%d: id: %q comes twice, first in line %d", name, line, id, before)
		}
		first[id] = line
	}
	if err := s.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("longer than %d bytes", maxLine)
		}
		return len(first), fmt.Errorf("%s:%d: %w", name, line+1, err)
	}
	return len(first), nil
}

func blank(line []byte) bool {
	for _, c := range line {
		if c != ' ' && c != '\t' && c != '\r' {
			return false
		}
	}
	return true
}
