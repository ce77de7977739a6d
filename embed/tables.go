package embed

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unsafe"

	"grebe/internal/human"
	"grebe/pool"
)

// Spec names a table and says where it is. Rows are float32 or bf16, little-endian.
type Spec struct {
	Name      string
	Store     string   // pebble: in the folder of all such tables; file: a mapped file of rows; redis
	File      string   // of rows, for file
	Addresses []string // for redis: a server, or nodes of a cluster
	Username  string
	Password  string
	Prefix    string // of the table's keys in Redis; "grebe:" and the name when empty
	Dim       int    // numbers of a row
	Format    string // of these: F32 or BF16; F32 when empty
	Cache     int64  // bytes of cached rows, 0: none
	Policy    string // of eviction; the default when empty
	Default   []float32
	Timeout   time.Duration
}

// Validate says what is wrong with s.
func (s *Spec) Validate() error {
	switch {
	case s.Name == "" || len(s.Name) > 255 || strings.ContainsAny(s.Name, "/ \x00"):
		return fmt.Errorf("embed: table %q: want a name of 1 to 255 bytes without slash or space", s.Name)
	case s.Dim < 1 || s.Dim > 1<<18:
		return fmt.Errorf("embed: table %s: rows of %d numbers: want 1 to %d", s.Name, s.Dim, 1<<18)
	case !slices.Contains([]string{"", F32, BF16}, s.Format):
		return fmt.Errorf("embed: table %s: no format %q: want %s or %s", s.Name, s.Format, F32, BF16)
	case s.Cache > 0 && s.rowBytes()%8 != 0:
		return fmt.Errorf("embed: table %s: a cache wants rows of a multiple of 8 bytes, not %d", s.Name, s.rowBytes())
	case s.Default != nil && len(s.Default) != s.Dim:
		return fmt.Errorf("embed: table %s: a default row of %d numbers, want %d", s.Name, len(s.Default), s.Dim)
	case s.Store == "file" && s.File == "":
		return fmt.Errorf("embed: table %s: store file without a file", s.Name)
	case s.Store == "redis" && len(s.Addresses) == 0:
		return fmt.Errorf("embed: table %s: store redis without an address", s.Name)
	case !slices.Contains([]string{"pebble", "file", "redis"}, s.Store):
		return fmt.Errorf("embed: table %s: no store %q: want pebble, file or redis", s.Name, s.Store)
	}
	return nil
}

func (s *Spec) defaultRow() []byte {
	if s.Format == BF16 && s.Default != nil {
		return narrowed(s.Default)
	}
	return Bytes(s.Default)
}

func (s *Spec) rowBytes() int { return s.Dim * numberBytes(s.Format) }

// Tables are the tables of a process, by name. The caller MUST Close them.
type Tables struct {
	byName  map[string]*Table
	folder  *Folder
	files   map[string]*Memory
	closers []func() error
}

// OpenTables opens all tables; those in Pebble are in dir.
func OpenTables(dir string, specs []Spec) (*Tables, error) {
	t := &Tables{byName: map[string]*Table{}, files: map[string]*Memory{}}
	for i := range specs {
		if err := t.open(dir, &specs[i]); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

func (t *Tables) open(dir string, s *Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if t.byName[s.Name] != nil {
		return fmt.Errorf("embed: two tables %s", s.Name)
	}
	store, err := t.store(dir, s)
	if err != nil {
		return err
	}
	var cache *Cache
	if s.Cache > 0 {
		if cache, err = t.cache(s); err != nil {
			return errors.Join(fmt.Errorf("table %s: %w", s.Name, err), store.Close())
		}
	}
	t.closers = append(t.closers, store.Close) // before the cache, which it tells of changes
	t.byName[s.Name], err = NewTable(store, cache, TableConfig{BF16: s.Format == BF16,
		Default: s.defaultRow(), Timeout: s.Timeout})
	return err
}

func (t *Tables) store(dir string, s *Spec) (Store, error) {
	switch s.Store {
	case "file":
		m, err := OpenFile(s.File, s.rowBytes())
		if err == nil {
			t.files[s.Name] = m
		}
		return m, err
	case "redis":
		prefix := s.Prefix
		if prefix == "" {
			prefix = "grebe:" + s.Name + ":"
		}
		return NewRedis(RedisConfig{Addresses: s.Addresses, Username: s.Username, Password: s.Password, Prefix: prefix,
			RowBytes: s.rowBytes()})
	}
	if t.folder == nil {
		f, err := OpenFolder(dir)
		if err != nil {
			return nil, err
		}
		t.folder = f
		t.closers = append(t.closers, f.Close)
	}
	return t.folder.Table(s.Name, s.rowBytes())
}

// cache takes memory of its own for a table: pages of a set's size.
func (t *Tables) cache(s *Spec) (*Cache, error) {
	rows := max(1, int(s.Cache)/s.rowBytes())
	page := 4096
	for page < setSlots*s.rowBytes() {
		page *= 2
	}
	sets := (rows + setSlots - 1) / setSlots
	p, err := pool.New(int64(sets+page/(setSlots*s.rowBytes()))*int64(page), page)
	if err != nil {
		return nil, err
	}
	c, err := NewCache(p, Config{Rows: rows, RowBytes: s.rowBytes(), Policy: s.Policy})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	t.closers = append(t.closers, p.Close, func() error { c.Close(); return nil })
	return c, nil
}

// Table returns a table, nil when there is none of that name.
func (t *Tables) Table(name string) *Table {
	if t == nil {
		return nil
	}
	return t.byName[name]
}

// Names returns the tables' names in order.
func (t *Tables) Names() []string {
	if t == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(t.byName))
}

// Sync returns when the rows of tables in Pebble are on the disk.
func (t *Tables) Sync() error {
	if t.folder == nil {
		return nil
	}
	return t.folder.Sync()
}

// Problems says what is wrong with the tables' files, for people: damaged blocks, a disk that failed, a file that was
// cut off.
func (t *Tables) Problems() []string {
	if t == nil {
		return nil
	}
	var out []string
	if t.folder != nil {
		out = t.folder.problems()
	}
	for _, name := range slices.Sorted(maps.Keys(t.files)) {
		if n := t.files[name].faults.Load(); n > 0 {
			out = append(out, fmt.Sprintf("table %s: its file was cut off, or its disk is full: %s could not be read or "+
				"written", name, human.Count(int64(n), "row")))
		}
	}
	return out
}

// Close closes all tables.
func (t *Tables) Close() error {
	var errs []error
	for _, f := range slices.Backward(t.closers) {
		errs = append(errs, f())
	}
	t.closers, t.byName = nil, nil
	return errors.Join(errs...)
}

// Bytes views numbers as the bytes of rows. It is for processors whose words are little-endian.
func Bytes(v []float32) []byte {
	if len(v) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

// Finite reports whether all numbers are.
func Finite(v []float32) bool {
	return !slices.ContainsFunc(v, func(x float32) bool { return math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) })
}
