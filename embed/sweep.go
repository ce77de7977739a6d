package embed

import (
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"grebe/internal/pebbleopen"
)

// sweepDelay is how long deleted rows wait for the sweep that removes their bytes.
const sweepDelay = time.Second

// sweepKey is there while bytes of deleted rows may be in the files.
var sweepKey = []byte("msweep")

// startSweeper starts the folder's sweeper, which goes on with what the process before left.
func (f *Folder) startSweeper(delay time.Duration) error {
	_, closer, err := f.db.Get(sweepKey)
	pending := err == nil
	if pending {
		err = closer.Close()
	}
	if err != nil && !errors.Is(err, pebble.ErrNotFound) {
		return err
	}
	f.sweeper = f.db.NewSweeper(pebbleopen.Sweeping{
		Delay: delay, From: []byte("r"), To: []byte("s"), Pending: pending, Done: f.swept,
	})
	f.sweeper.Run()
	return nil
}

// swept removes the mark unless rows were deleted meanwhile.
func (f *Folder) swept() error {
	f.deleting.Lock()
	defer f.deleting.Unlock()
	if !f.sweeper.Idle() {
		return nil
	}
	return f.write(func() error { return f.db.Delete(sweepKey, pebble.Sync) })
}
