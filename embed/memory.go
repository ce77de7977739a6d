package embed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"grebe/internal/offheap"
)

// Memory is a Store of rows 0 … n−1 in memory, or in a file that is mapped: row after row, nothing else. A row that
// was never written, or deleted, is not there; of a file's rows all are always there.
type Memory struct {
	rowBytes int
	mapped   bool
	free     func()       // of memory outside the heap
	faults   atomic.Int64 // rows of a file that could not be read or written

	mu      sync.RWMutex
	n       uint64 // rows
	rows    []byte
	present []uint64 // a bit per row
}

// NewMemory makes an empty store for keys below n, in memory outside the heap.
func NewMemory(n, rowBytes int) *Memory {
	m := &Memory{rowBytes: rowBytes, n: uint64(n), present: make([]uint64, (n+63)/64)}
	block, err := offheap.Alloc(n * rowBytes)
	if err != nil { // the heap may still have it, and says so when it has not
		m.rows = make([]byte, n*rowBytes)
		return m
	}
	m.rows, m.free = block.Bytes, block.Free
	return m
}

// OpenFile maps a file of rows. Writes go to the file.
func OpenFile(path string, rowBytes int) (*Memory, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("embed: open table: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("embed: open table: %w", err)
	}
	size := info.Size()
	if rowBytes <= 0 || size == 0 || size%int64(rowBytes) != 0 {
		return nil, fmt.Errorf("embed: %s has %d bytes, no whole number of rows of %d", path, size, rowBytes)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("embed: map %s: %w", path, err)
	}
	n := int(size) / rowBytes
	m := &Memory{rowBytes: rowBytes, mapped: true, n: uint64(n), rows: data, present: make([]uint64, (n+63)/64)}
	for i := range n {
		m.present[i/64] |= 1 << (i % 64)
	}
	return m, nil
}

func (m *Memory) has(key uint64) bool {
	return key < m.n && m.present[key/64]>>(key%64)&1 == 1
}

func (m *Memory) row(key uint64) []byte { return m.rows[int(key)*m.rowBytes:][:m.rowBytes] }

// Gather copies rows. Rows of a file that cannot be read, as when it was cut off under the map, count as broken.
func (m *Memory) Gather(ctx context.Context, keys []uint64, rows []byte, found []bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	var broken []int
	for at := 0; at < len(keys); {
		var fault bool
		at, fault = m.gather(keys, rows, found, at, &broken)
		if fault {
			m.faults.Add(1)
			found[at], broken = false, append(broken, at)
			at++
		}
	}
	return brokenRows(broken)
}

// gather copies rows from one on until it is done or the memory of a row cannot be read: then it returns which.
func (m *Memory) gather(keys []uint64, rows []byte, found []bool, from int, broken *[]int) (at int, fault bool) {
	i := from
	if m.mapped { // the map's memory is the file's, and a page without a file behind it faults
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if isFault(recover()) {
				at, fault = i, true
			}
		}()
	}
	for ; i < len(keys); i++ {
		k := keys[i]
		if next := i + rowAhead; next < len(keys) && m.has(keys[next]) {
			prefetchFar(unsafe.Pointer(unsafe.SliceData(m.row(keys[next]))), m.rowBytes)
		}
		if found[i] = m.has(k); found[i] {
			copyBytes(rows[i*m.rowBytes:][:m.rowBytes], m.row(k))
		}
		if m.mapped && found[i] && !finite(rows[i*m.rowBytes:][:m.rowBytes]) {
			found[i], *broken = false, append(*broken, i)
		}
	}
	return i, false
}

// isFault reports whether a panic is that of memory that cannot be read or written. It panics again with any other.
func isFault(p any) bool {
	if p == nil {
		return false
	}
	if e, ok := p.(interface{ Addr() uintptr }); ok && e.Addr() != 0 {
		return true
	}
	panic(p)
}

// Put writes rows; a key that is not below n is an error.
func (m *Memory) Put(ctx context.Context, keys []uint64, rows []byte) error {
	if err := checkRows(keys, rows, m.rowBytes); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.put(keys, rows)
}

// put writes rows. The caller holds mu.
func (m *Memory) put(keys []uint64, rows []byte) (err error) {
	if m.mapped {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if isFault(recover()) {
				m.faults.Add(1)
				err = fmt.Errorf("embed: put %d rows: %w: the file was cut off, or its disk is full", len(keys), ErrUnavailable)
			}
		}()
	}
	for i, k := range keys {
		if k >= m.n {
			return fmt.Errorf("embed: put row %d of a table of %d", k, m.n)
		}
		copy(m.row(k), rows[i*m.rowBytes:])
		m.present[k/64] |= 1 << (k % 64)
	}
	return nil
}

// Delete forgets rows. Those of a file stay: it has no place to say that they are gone, and they would be back when it
// is opened again.
func (m *Memory) Delete(ctx context.Context, keys []uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mapped && slices.ContainsFunc(keys, m.has) {
		return fmt.Errorf("embed: delete %d rows: %w", len(keys), ErrKept)
	}
	for _, k := range keys {
		if m.has(k) {
			m.present[k/64] &^= 1 << (k % 64)
		}
	}
	return nil
}

// RowBytes returns the size of a row.
func (m *Memory) RowBytes() int { return m.rowBytes }

// Close unmaps the file.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rows := m.rows
	m.rows, m.present, m.n = nil, nil, 0
	if m.free != nil {
		m.free()
		m.free = nil
	}
	if !m.mapped || rows == nil {
		return nil
	}
	return errors.Join(unix.Msync(rows, unix.MS_SYNC), unix.Munmap(rows))
}

func checkRows(keys []uint64, rows []byte, rowBytes int) error {
	if len(rows) != len(keys)*rowBytes {
		return fmt.Errorf("embed: put %d rows of %d bytes from %d bytes: %w", len(keys), rowBytes, len(rows), ErrRow)
	}
	return nil
}
