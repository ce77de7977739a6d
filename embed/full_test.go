package embed

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fullDisk is a disk that is full at times.
type fullDisk struct {
	vfs.FS
	full atomic.Bool
}

func (d *fullDisk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, c)
	return &fullFile{f, d}, err
}

type fullFile struct {
	vfs.File
	disk *fullDisk
}

func (f *fullFile) Write(p []byte) (int, error) {
	if f.disk.full.Load() {
		return 0, syscall.ENOSPC
	}
	return f.File.Write(p)
}

// Where the disk is full every change fails, none waits for ever, and what was written before is still read.
func TestTablesOnAFullDisk(t *testing.T) {
	disk := &fullDisk{FS: vfs.NewMem()}
	f, err := openFolder("tables", disk)
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Table("a", 8)
	if err != nil {
		t.Fatal(err)
	}
	row := []byte{1, 0, 0, 0, 2, 0, 0, 0}
	if err := p.Put(t.Context(), []uint64{1}, row); err != nil {
		t.Fatal(err)
	}
	disk.full.Store(true)
	for i := range 5 {
		done := make(chan error, 1)
		go func() {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("change %d panics: %v", i, p)
					done <- ErrUnavailable
				}
			}()
			done <- p.Put(t.Context(), []uint64{2}, row)
		}()
		select {
		case err := <-done:
			if !errors.Is(err, ErrUnavailable) {
				t.Errorf("change %d: %v, want %v", i, err, ErrUnavailable)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("change %d does not end", i)
		}
	}
	rows, found := make([]byte, 8), make([]bool, 1)
	if err := p.Gather(t.Context(), []uint64{1}, rows, found); err != nil || !found[0] || rows[4] != 2 {
		t.Errorf("row %v, found %v, %v", rows, found, err)
	}
	if err := f.Sync(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Sync: %v, want %v", err, ErrUnavailable)
	}
	if err := f.Close(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Close: %v, want %v", err, ErrUnavailable)
	}
}

// Tables whose last rows are in their log alone cannot be opened on a full disk. That is an error, and the rows are
// there when there is room.
func TestOpenOnAFullDisk(t *testing.T) {
	disk := &fullDisk{FS: vfs.NewCrashableMem()}
	f, err := openFolder("tables", disk)
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Table("a", 8)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Put(t.Context(), []uint64{1}, []byte{1, 0, 0, 0, 2, 0, 0, 0}), f.Close()); err != nil {
		t.Fatal(err)
	}
	disk.full.Store(true)
	if f, err := openFolder("tables", disk); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("opened %v: %v", f, err)
	}
	if f, err = openFolder("tables", disk.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if p, err = f.Table("a", 8); err != nil {
		t.Fatal(err)
	}
	rows, found := make([]byte, 8), make([]bool, 1)
	if err := p.Gather(t.Context(), []uint64{1}, rows, found); err != nil || !found[0] || rows[4] != 2 {
		t.Errorf("row %v, found %v, %v", rows, found, err)
	}
}
