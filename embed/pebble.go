package embed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"grebe/internal/durable"
	"grebe/internal/human"
	"grebe/internal/pebbleopen"
)

// Folder keeps tables on disk, in a Pebble database of this process alone. What a Put or a
// Delete did is on the disk when it returns, so that neither the process nor the machine loses it when it dies: write
// many rows at once, for each call waits for the disk; calls at the same time wait together, once. The bytes of deleted
// rows leave the files a little later, see pebbleopen.Sweeper. It is safe for concurrent use. The caller MUST Close it,
// after its tables.
type Folder struct {
	dir      string
	db       *pebbleopen.DB
	cache    *pebble.Cache
	sweeper  *pebbleopen.Sweeper
	deleting sync.RWMutex // read: rows are being deleted; write: the mark of the sweeper goes
}

// write changes the database. Once its disk failed there are no more changes.
func (f *Folder) write(change func() error) error {
	err := f.db.Try(change)
	if failed := f.db.Failed(); failed != nil {
		return fmt.Errorf("%w: the tables' disk failed: %w", ErrUnavailable, failed)
	}
	return err
}

// OpenFolder opens the tables in a folder, which it makes where it is missing.
func OpenFolder(dir string) (*Folder, error) {
	if err := durable.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("embed: open tables: %w", err)
	}
	return openFolder(dir, vfs.Default)
}

func openFolder(dir string, fs vfs.FS) (*Folder, error) {
	cache := pebble.NewCache(64 << 20)
	opt := folderOptions(fs)
	opt.Cache = cache
	db, err := pebbleopen.Open(dir, opt)
	if err != nil {
		cache.Unref()
		return nil, fmt.Errorf("embed: open tables in %s: %w", dir, err)
	}
	f := &Folder{dir: dir, db: db, cache: cache}
	if err = f.startSweeper(sweepDelay); err != nil {
		err = errors.Join(err, db.Close())
		cache.Unref()
		return nil, fmt.Errorf("embed: open tables in %s: %w", dir, err)
	}
	return f, nil
}

func folderOptions(fs vfs.FS) *pebble.Options {
	return &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatTableFormatV6, MemTableSize: 32 << 20,
		Logger: silent{}, Cleaner: pebbleopen.Eraser()}
}

// problems says what is wrong with the folder's files.
func (f *Folder) problems() []string {
	var out []string
	if n := f.db.Corruptions(); n > 0 {
		out = append(out, fmt.Sprintf("embedding tables: damaged blocks were met %s; their rows are the default until "+
			"`grebe doctor --repair` has run or they are written again", human.Count(int64(n), "time")))
	}
	if err := f.db.Failed(); err != nil {
		out = append(out, fmt.Sprintf("embedding tables: %v", err))
	}
	return out
}

// silent drops what Pebble says of compactions; errors come back from calls.
type silent struct{}

func (silent) Infof(string, ...any)       {}
func (silent) Errorf(string, ...any)      {}
func (silent) Fatalf(f string, as ...any) { panic(fmt.Sprintf("embed: "+f, as...)) }

// Sync returns when all rows that were Put are on the disk.
func (f *Folder) Sync() error {
	return f.write(func() error { return f.db.LogData(nil, pebble.Sync) })
}

// Close closes the database, unless its disk failed: then it is left as it is.
func (f *Folder) Close() error {
	if f.db.Failed() == nil {
		f.sweeper.Stop()
	} else {
		f.sweeper.Cancel()
	}
	err := f.write(f.db.Close)
	f.cache.Unref()
	return err
}

// Table opens a table of the folder, empty if it is new. Names are 1 to 255 bytes. A table has one size of rows.
func (f *Folder) Table(name string, rowBytes int) (*Pebble, error) {
	if len(name) == 0 || len(name) > 255 {
		return nil, fmt.Errorf("embed: a table's name has %d bytes: want 1 to 255", len(name))
	}
	meta := append([]byte{'s'}, name...)
	value, closer, err := f.db.Get(meta)
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		err = f.write(func() error {
			return f.db.Set(meta, binary.LittleEndian.AppendUint64(nil, uint64(rowBytes)), pebble.Sync)
		})
	case err == nil:
		if n := binary.LittleEndian.Uint64(value); n != uint64(rowBytes) {
			err = fmt.Errorf("it has rows of %d bytes, not %d: %w", n, rowBytes, ErrRow)
		}
		err = errors.Join(err, closer.Close())
	}
	if pebble.IsCorruptionError(err) {
		err = pebbleopen.Damage(f.dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("embed: open table %s: %w", name, err)
	}
	return &Pebble{folder: f, prefix: append([]byte{'r', byte(len(name))}, name...), rowBytes: rowBytes}, nil
}

// Pebble is a Store in a Folder.
type Pebble struct {
	folder   *Folder
	prefix   []byte
	rowBytes int
}

// name appends a key's name: eight bytes, big-endian, behind the table's.
func (p *Pebble) name(buf []byte, key uint64) []byte {
	return binary.BigEndian.AppendUint64(append(buf[:0], p.prefix...), key)
}

// get reads one value. Should Pebble panic over a damaged block, that is an error too.
func (f *Folder) get(key []byte) (value []byte, closer io.Closer, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = pebble.ErrCorruption
		}
	}()
	return f.db.Get(key)
}

// some is how many rows are read or written between two looks at the context.
const some = 256

// Gather reads rows one by one. A row in a damaged block counts as broken; the others are not touched by it.
func (p *Pebble) Gather(ctx context.Context, keys []uint64, rows []byte, found []bool) error {
	var buf []byte
	var broken []int
	for i, k := range keys {
		if i%some == 0 && ctx.Err() != nil {
			return fmt.Errorf("embed: gather %d rows: %w", len(keys), ctx.Err())
		}
		buf = p.name(buf, k)
		value, closer, err := p.folder.get(buf)
		if found[i] = err == nil; errors.Is(err, pebble.ErrNotFound) {
			continue
		}
		if pebble.IsCorruptionError(err) {
			broken = append(broken, i)
			continue
		}
		if err != nil {
			return fmt.Errorf("embed: gather row %d: %w", k, err)
		}
		if found[i] = len(value) == p.rowBytes && finite(value); found[i] {
			copy(rows[i*p.rowBytes:], value)
		} else {
			broken = append(broken, i)
		}
		if err := closer.Close(); err != nil {
			return fmt.Errorf("embed: gather row %d: %w", k, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return brokenRows(broken)
}

// Put writes all rows, or none.
func (p *Pebble) Put(ctx context.Context, keys []uint64, rows []byte) error {
	if err := checkRows(keys, rows, p.rowBytes); err != nil {
		return err
	}
	return p.change(ctx, keys, func(b *pebble.Batch, i int, name []byte) error {
		return b.Set(name, rows[i*p.rowBytes:][:p.rowBytes], nil)
	})
}

// Delete removes all rows, or none.
func (p *Pebble) Delete(ctx context.Context, keys []uint64) error {
	p.folder.deleting.RLock()
	defer p.folder.deleting.RUnlock()
	var names [][]byte
	err := p.change(ctx, keys, func(b *pebble.Batch, i int, name []byte) error {
		if i <= pebbleopen.MostSwept { // of more all rows are swept
			names = append(names, slices.Clone(name))
		}
		if i == 0 {
			if err := b.Set(sweepKey, nil, nil); err != nil {
				return err
			}
		}
		return b.Delete(name, nil)
	})
	if err == nil && len(names) > 0 {
		p.folder.sweeper.Add(names...)
	}
	return err
}

func (p *Pebble) change(ctx context.Context, keys []uint64, add func(b *pebble.Batch, i int, name []byte) error) error {
	b := p.folder.db.NewBatch()
	defer b.Close()
	var buf []byte
	for i, k := range keys {
		if i%some == 0 && ctx.Err() != nil {
			return fmt.Errorf("embed: change %d rows: %w", len(keys), ctx.Err())
		}
		buf = p.name(buf, k)
		if err := add(b, i, buf); err != nil {
			return fmt.Errorf("embed: change row %d: %w", k, err)
		}
	}
	if err := p.folder.write(func() error { return b.Commit(pebble.Sync) }); err != nil {
		return fmt.Errorf("embed: change %d rows: %w", len(keys), err)
	}
	return nil
}

// RowBytes returns the size of a row.
func (p *Pebble) RowBytes() int { return p.rowBytes }

// Close leaves the folder open.
func (p *Pebble) Close() error { return nil }
