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

// loadAtOnce bounds the lines of a file that are made durable together.
const loadAtOnce = 1024

// A Filter says whether a line of a file is to be loaded. It sees every line that is not blank, in order.
type Filter func(id string, line []byte) (bool, error)

// LoadItems adds the items of an NDJSON file, one per line; blank lines are passed over. A bad line
// or an id that comes twice ends the load with an error that names file and line; the lines before it
// are kept.
func (c *Catalog) LoadItems(path string) (int, error) { return c.LoadItemsIf(path, nil) }

// LoadItemsIf is LoadItems of the lines that a filter lets through.
func (c *Catalog) LoadItemsIf(path string, filter Filter) (int, error) {
	return c.load(path, filter, func(line []byte) (string, Op, error) {
		m, err := wire.DecodeItem(line)
		return m.Id, Op{PutItem: m}, err
	}, c.Apply)
}

// LoadUsers adds the users of an NDJSON file, as LoadItems does.
func (c *Catalog) LoadUsers(path string) (int, error) { return c.LoadUsersIf(path, nil) }

// LoadUsersIf is LoadUsers of the lines that a filter lets through.
func (c *Catalog) LoadUsersIf(path string, filter Filter) (int, error) {
	return c.load(path, filter, decodeUser, c.Apply)
}

func decodeUser(line []byte) (string, Op, error) {
	m, err := wire.DecodeUser(line)
	return m.Id, Op{PutUser: m}, err
}

func (c *Catalog) load(path string, filter Filter, decode func([]byte) (string, Op, error),
	apply func([]Op) []Result) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("catalog: %w", err)
	}
	defer f.Close()
	l := &loader{apply: apply, filter: filter, decode: decode, first: map[string]int{}}
	if err := l.read(f); err != nil {
		return l.n, fmt.Errorf("catalog: %s:%d: %w", path, l.line, err)
	}
	return l.n, nil
}

// CheckItems reads up to most lines of a file as LoadItems does, and adds nothing. It returns how many it read, and
// whether these are all.
func CheckItems(path string, most int) (n int, all bool, err error) {
	return readOnly(path, most, func(line []byte) (string, Op, error) {
		m, err := wire.DecodeItem(line)
		return m.Id, Op{}, err
	})
}

// CheckUsers does for LoadUsers what CheckItems does for LoadItems.
func CheckUsers(path string, most int) (n int, all bool, err error) {
	return readOnly(path, most, decodeUser)
}

func readOnly(path string, most int, decode func([]byte) (string, Op, error)) (n int, all bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false, fmt.Errorf("catalog: %w", err)
	}
	defer f.Close()
	l := &loader{decode: decode, first: map[string]int{}, most: most,
		apply: func(ops []Op) []Result { return make([]Result, len(ops)) }}
	if err := l.read(f); err != nil {
		return l.n, false, fmt.Errorf("catalog: %s:%d: %w", path, l.line, err)
	}
	return l.n, !l.more, nil
}

// loader adds the lines of a file.
type loader struct {
	apply  func([]Op) []Result
	filter Filter // nil: all lines
	decode func([]byte) (string, Op, error)
	first  map[string]int // line of each id
	ops    []Op
	lines  []int // of ops
	line   int   // the one read, or in error
	n      int   // added
	most   int   // of n; 0: all
	more   bool  // there are lines that were not read
}

func (l *loader) read(r io.Reader) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	for s.Scan() {
		l.line++
		if blank(s.Bytes()) {
			continue
		}
		if l.most > 0 && l.n+len(l.ops) == l.most {
			l.more = true
			break
		}
		if err := l.add(s.Bytes()); err != nil {
			return l.before(err)
		}
		if len(l.ops) == loadAtOnce {
			if err := l.flush(); err != nil {
				return err
			}
		}
	}
	if err := s.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("longer than %d bytes", maxLine)
		}
		l.line++
		return l.before(err)
	}
	return l.flush()
}

// before adds the lines before a bad one; a mistake in one of those comes first.
func (l *loader) before(err error) error {
	bad := l.line
	if earlier := l.flush(); earlier != nil {
		return earlier
	}
	l.line = bad
	return err
}

func (l *loader) add(line []byte) error {
	id, op, err := l.decode(line)
	if err != nil {
		return err
	}
	if before, dup := l.first[id]; dup {
		return fmt.Errorf("id: %q comes twice, first in line %d", id, before)
	}
	l.first[id] = l.line
	if l.filter != nil {
		if wanted, err := l.filter(id, line); err != nil || !wanted {
			return err
		}
	}
	l.ops, l.lines = append(l.ops, op), append(l.lines, l.line)
	return nil
}

func (l *loader) flush() error {
	for i, r := range l.apply(l.ops) {
		if r.Err != nil {
			l.line = l.lines[i]
			return r.Err
		}
		l.n++
	}
	l.ops, l.lines = l.ops[:0], l.lines[:0]
	return nil
}

func blank(line []byte) bool {
	for _, c := range line {
		if c != ' ' && c != '\t' && c != '\r' {
			return false
		}
	}
	return true
}
