package embed

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// sweeper removes the bytes of deleted rows from a folder's files in the background. Pebble only notes that a row is
// deleted: the row stays in its log and in its tables until they are rewritten, which may be never.
//
// A sweep begins a second after the first deletion and rewrites the files that hold the rows. The batch that deletes
// rows also sets a mark, which goes when no row is left to sweep: a sweep that was cut off goes on at the next start.
type sweeper struct {
	f      *Folder
	delay  time.Duration
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{} // of one

	gate sync.RWMutex // read: rows are being deleted; write: the mark goes
	mu   sync.Mutex
	keys [][]byte // deleted, at most maxSwept
	all  bool     // sweep all rows: more were deleted, or a sweep was cut off
}

const (
	sweepDelay = time.Second
	mostDelay  = time.Minute // after sweeps that failed
	maxSwept   = 32          // rows whose files are rewritten one by one
)

// sweepKey is there while bytes of deleted rows may be in the files.
var sweepKey = []byte("msweep")

func newSweeper(f *Folder, delay time.Duration) (*sweeper, error) {
	_, closer, err := f.db.Get(sweepKey)
	pending := err == nil
	if pending {
		err = closer.Close()
	}
	if err != nil && !errors.Is(err, pebble.ErrNotFound) {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &sweeper{f: f, delay: delay, cancel: cancel, done: make(chan struct{}), wake: make(chan struct{}, 1), all: pending}
	if pending {
		s.start()
	}
	go s.run(ctx)
	return s, nil
}

// stop ends the sweeper and waits for it.
func (s *sweeper) stop() {
	s.cancel()
	<-s.done
}

// start has a sweep begin soon.
func (s *sweeper) start() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// add notes rows that are deleted, durably. The caller holds gate for reading.
func (s *sweeper) add(names [][]byte) {
	s.mu.Lock()
	if len(s.keys)+len(names) <= maxSwept {
		s.keys = append(s.keys, names...)
	} else {
		s.all = true
	}
	s.mu.Unlock()
	s.start()
}

func (s *sweeper) run(ctx context.Context) {
	defer close(s.done)
	pause := s.delay
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		// Rows that are deleted together are swept together, and steady deletions take a fifth of the time.
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		start := time.Now()
		if err := s.sweep(ctx); err == nil {
			pause = max(s.delay, 4*time.Since(start))
			continue
		}
		pause = min(max(2*pause, s.delay), mostDelay)
		s.start()
	}
}

// sweep removes the bytes of the rows deleted so far. After an error some may be left.
func (s *sweeper) sweep(ctx context.Context) error {
	s.mu.Lock()
	keys, all := s.keys, s.all
	s.keys, s.all = nil, false
	s.mu.Unlock()
	if err := s.f.write(func() error { return s.compact(ctx, keys, all) }); err != nil {
		s.mu.Lock()
		s.all = true
		s.mu.Unlock()
		return err
	}
	s.gate.Lock()
	defer s.gate.Unlock()
	s.mu.Lock()
	idle := len(s.keys) == 0 && !s.all
	s.mu.Unlock()
	if !idle {
		return nil
	}
	return s.f.write(func() error { return s.f.db.Delete(sweepKey, pebble.Sync) })
}

// compact rewrites the files that hold rows, or all of them. It flushes, so that the log goes too.
func (s *sweeper) compact(ctx context.Context, keys [][]byte, all bool) error {
	db := s.f.db
	// The name says tests, but there is no other way to know that the old files are gone.
	defer db.TestOnlyWaitForCleaning()
	if err := db.Flush(); err != nil {
		return err
	}
	if all {
		return db.Compact(ctx, []byte("r"), []byte("s"), false)
	}
	slices.SortFunc(keys, bytes.Compare)
	for _, k := range keys {
		if err := db.Compact(ctx, k, append(slices.Clone(k), 0), false); err != nil {
			return err
		}
	}
	return nil
}
