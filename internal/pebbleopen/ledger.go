package pebbleopen

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// LedgerFile is the name of a database's ledger, in the database's own folder.
const LedgerFile = "ledger"

// Note is what the owner of a database records beside its last durable write. Repair reports it.
type Note [4]uint64

// extent is how much of a file was synced, and the CRC-32C of those bytes.
type extent struct {
	length uint64
	sum    uint32
}

// ledger records, apart from a database, how much of its logs and manifests is durable. Pebble takes the first damaged
// record of these files for their end, so a flipped bit drops every write after it; the ledger is how that is noticed.
//
// A sync of such a file is recorded before Pebble hears of it, thus before a write is acknowledged. The record itself
// is written in place and not synced, so a killed process loses none of it. A power cut may leave an older one, which
// still describes a prefix of each file. It is synced when a file comes or goes: an entry never outlives its file.
type ledger struct {
	mu    sync.Mutex
	file  vfs.File
	files map[string]extent
	note  Note
	buf   []byte
	err   error // of the last write; the ledger is then behind the files, which is harmless
}

const ledgerMagic = "grebeLG1"

// mostLedger bounds the size of a ledger. Pebble keeps a few logs and two manifests.
const mostLedger = 1 << 16

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recorded reports whether a file of this name is recorded: a log or a manifest.
func recorded(name string) bool {
	return strings.HasPrefix(name, "MANIFEST-") || isLog(name)
}

func isLog(name string) bool {
	number, ok := strings.CutSuffix(name, ".log")
	_, err := strconv.ParseUint(number, 10, 64)
	return ok && err == nil
}

func isTable(name string) bool { return strings.HasSuffix(name, ".sst") }

// encode appends magic, length of the rest, note, entries (name, length, sum) and a CRC-32C of all of it.
func (l *ledger) encode(b []byte) []byte {
	b = append(b, ledgerMagic...)
	b = binary.LittleEndian.AppendUint32(b, 0)
	for _, n := range l.note {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	for _, name := range slices.Sorted(maps.Keys(l.files)) {
		e := l.files[name]
		b = append(append(b, byte(len(name))), name...)
		b = binary.LittleEndian.AppendUint64(b, e.length)
		b = binary.LittleEndian.AppendUint32(b, e.sum)
	}
	binary.LittleEndian.PutUint32(b[len(ledgerMagic):], uint32(len(b)+4))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

var errLedger = errors.New("its ledger is damaged")

func (l *ledger) decode(b []byte) error {
	const head = len(ledgerMagic) + 4
	if len(b) < head+len(l.note)*8+4 || string(b[:len(ledgerMagic)]) != ledgerMagic {
		return errLedger
	}
	n := int(binary.LittleEndian.Uint32(b[len(ledgerMagic):]))
	if n < head+len(l.note)*8+4 || n > len(b) {
		return errLedger
	}
	b = b[:n]
	if crc32.Checksum(b[:n-4], castagnoli) != binary.LittleEndian.Uint32(b[n-4:]) {
		return errLedger
	}
	b = b[head : n-4]
	for i := range l.note {
		l.note[i], b = binary.LittleEndian.Uint64(b), b[8:]
	}
	l.files = map[string]extent{}
	for len(b) > 0 {
		k := int(b[0])
		if len(b) < 1+k+12 {
			return errLedger
		}
		name, rest := string(b[1:1+k]), b[1+k:]
		l.files[name] = extent{binary.LittleEndian.Uint64(rest), binary.LittleEndian.Uint32(rest[8:])}
		b = rest[12:]
	}
	return nil
}

// readLedger returns a database's ledger, not open for writing; fs.ErrNotExist when there is none, errLedger when it is
// damaged.
func readLedger(dir string, disk vfs.FS) (*ledger, error) {
	f, err := disk.Open(disk.PathJoin(dir, LedgerFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostLedger))
	if err != nil {
		return nil, err
	}
	l := &ledger{}
	if err := l.decode(b); err != nil {
		return nil, err
	}
	return l, nil
}

// start opens the ledger for writing, and records what it holds.
func (l *ledger) start(dir string, disk vfs.FS) error {
	name := disk.PathJoin(dir, LedgerFile)
	_, err := disk.Stat(name)
	created := errors.Is(err, fs.ErrNotExist)
	if l.file, err = disk.OpenReadWrite(name, vfs.WriteCategoryUnspecified); err != nil {
		return err
	}
	l.mu.Lock()
	l.write(true)
	err = l.err
	l.mu.Unlock()
	if err == nil && created {
		err = syncDir(dir, disk)
	}
	if err != nil {
		return errors.Join(err, l.file.Close())
	}
	return nil
}

func syncDir(dir string, disk vfs.FS) error {
	d, err := disk.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// write writes the record. The caller holds mu.
func (l *ledger) write(sync bool) {
	if l.file == nil { // closed
		return
	}
	l.buf = l.encode(l.buf[:0])
	_, l.err = l.file.WriteAt(l.buf, 0)
	if l.err == nil && sync {
		l.err = l.file.SyncData()
	}
}

// synced records how much of a file is durable.
func (l *ledger) synced(name string, e extent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.files[name]
	l.files[name] = e
	l.write(!known)
}

// gone forgets a file that is about to be removed.
func (l *ledger) gone(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.files[name]
	if !ok {
		return nil
	}
	delete(l.files, name)
	if l.write(true); l.err != nil {
		l.files[name] = e
		return fmt.Errorf("record that %s goes: %w", name, l.err)
	}
	return nil
}

func (l *ledger) setNote(n Note) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note = n
	l.write(false)
}

func (l *ledger) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	l.write(true)
	err := errors.Join(l.err, l.file.Close())
	l.file = nil
	return err
}

// recording is a file system that records in a ledger what is synced of a database's logs and manifests.
type recording struct {
	vfs.FS
	l *ledger
}

func (r recording) Unwrap() vfs.FS { return r.FS }

func (r recording) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	base := r.PathBase(name)
	if !recorded(base) {
		return r.FS.Create(name, c)
	}
	if err := r.l.gone(base); err != nil { // a new file takes its name
		return nil, err
	}
	f, err := r.FS.Create(name, c)
	if err != nil {
		return nil, err
	}
	return &recordedFile{File: f, l: r.l, name: base}, nil
}

func (r recording) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := errors.Join(r.l.gone(r.PathBase(oldname)), r.l.gone(r.PathBase(newname))); err != nil {
		return nil, err
	}
	f, err := r.FS.ReuseForWrite(oldname, newname, c)
	if err != nil || !recorded(r.PathBase(newname)) {
		return f, err
	}
	return &recordedFile{File: f, l: r.l, name: r.PathBase(newname)}, nil
}

func (r recording) Rename(oldname, newname string) error {
	if err := r.l.gone(r.PathBase(oldname)); err != nil {
		return err
	}
	return r.FS.Rename(oldname, newname)
}

func (r recording) Remove(name string) error {
	if err := r.l.gone(r.PathBase(name)); err != nil {
		return err
	}
	return r.FS.Remove(name)
}

// recordedFile is a file that is written from its start to its end.
type recordedFile struct {
	vfs.File
	l    *ledger
	name string

	mu      sync.Mutex
	written extent
	broken  bool // a write failed, so the file may hold a part of it
}

func (f *recordedFile) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := extent{f.written.length + uint64(len(p)), crc32.Update(f.written.sum, castagnoli, p)}
	n, err := f.File.Write(p) // may change p
	if err == nil {
		f.written = next
	}
	f.broken = f.broken || err != nil
	return n, err
}

func (f *recordedFile) Sync() error { return f.recordAfter(f.File.Sync) }

func (f *recordedFile) SyncData() error { return f.recordAfter(f.File.SyncData) }

func (f *recordedFile) SyncTo(length int64) (whole bool, err error) {
	err = f.recordAfter(func() (err error) {
		whole, err = f.File.SyncTo(length)
		if err == nil && !whole {
			err = errQueued
		}
		return err
	})
	if errors.Is(err, errQueued) {
		err = nil
	}
	return whole, err
}

// errQueued says that a sync was begun and not waited for.
var errQueued = errors.New("queued")

func (f *recordedFile) recordAfter(sync func() error) error {
	f.mu.Lock()
	before, broken := f.written, f.broken
	f.mu.Unlock()
	if err := sync(); err != nil || broken {
		return err
	}
	f.l.synced(f.name, before)
	return nil
}
