package embed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"grebe/internal/durable/durabletest"
)

// waitSwept waits until no deleted row is left to sweep.
func (f *Folder) waitSwept(t *testing.T) {
	t.Helper()
	for {
		_, closer, err := f.db.Get(sweepKey)
		if errors.Is(err, pebble.ErrNotFound) {
			return
		}
		if err != nil || closer.Close() != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

func sweepingFolder(t *testing.T, d *durabletest.Disk, delay time.Duration) (*Folder, *Pebble) {
	t.Helper()
	f, p := lossTable(t, d)
	f.sweeper.Stop()
	if err := f.startSweeper(delay); err != nil {
		t.Fatal(err)
	}
	return f, p
}

// noise is a row that does not compress.
func noise(key uint64) []byte {
	r := rand.New(rand.NewPCG(key, 7))
	var row []byte
	for len(row) < 512 {
		row = binary.LittleEndian.AppendUint32(row, math.Float32bits(r.Float32()))
	}
	return row
}

// in returns what reports whether the row of a key is in a disk's files.
func in(d *durabletest.Disk) func(uint64) bool {
	all := d.Contents()
	return func(key uint64) bool { return bytes.Contains(all, noise(key)[100:116]) }
}

// The bytes of deleted rows leave the log and the tables while the folder is open, and also when it was closed or
// killed before the sweep began.
func TestDeletedRowsLeaveTheFiles(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		for _, many := range []bool{false, true} {
			for _, restart := range []bool{false, true} {
				d := durabletest.NewDisk()
				delay := time.Millisecond
				if restart {
					delay = time.Hour
				}
				f, p := sweepingFolder(t, d, delay)
				var gone []uint64
				for key := range uint64(100) {
					if err := p.Put(t.Context(), []uint64{key}, noise(key)); err != nil {
						t.Fatal(err)
					}
					if key == 17 || many && key%2 == 0 {
						gone = append(gone, key)
					}
				}
				if flushed {
					if err := f.db.Flush(); err != nil {
						t.Fatal(err)
					}
				}
				if !bytes.Contains(d.Contents(), noise(17)[100:116]) {
					t.Fatal("the search does not find what is there")
				}
				if err := p.Delete(t.Context(), gone); err != nil {
					t.Fatal(err)
				}
				if restart {
					old := f
					d = d.Kill()
					f, p = sweepingFolder(t, d, time.Millisecond)
					if err := old.Close(); err != nil {
						t.Fatal(err)
					}
				}
				f.waitSwept(t)
				// Pebble may still be reading a table that was rewritten, for its statistics, and removes it when that is done.
				for end := time.Now().Add(time.Minute); slices.ContainsFunc(gone, in(d)); time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Errorf("flushed=%v many=%v restart=%v: of %d deleted rows, some are in the files", flushed, many, restart,
							len(gone))
						break
					}
				}
				found := make([]bool, 1)
				if err := p.Gather(t.Context(), []uint64{33}, make([]byte, 512), found); err != nil || !found[0] {
					t.Errorf("a row that was not deleted: %v, %v", found, err)
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
}
