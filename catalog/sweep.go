package catalog

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"
)

// sweeper removes the bytes of what was deleted from the files, in the background: it rewrites the
// files that hold them, all levels down, which also retires the logs.
type sweeper struct {
	c      *Catalog
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan struct{} // of one
	// compact removes the bytes of deleted keys, or of all that were deleted.
	compact func(ctx context.Context, keys [][keySize]byte, all bool) error

	mu   sync.Mutex
	keys [][keySize]byte // deleted, at most maxKeys
	all  bool            // sweep everything: more were deleted, or a sweep was cut off
}

// maxKeys bounds the files that are looked at one by one.
const maxKeys = 32

// startSweeper starts the catalog's sweeper. pending says that bytes were left when the catalog was last closed.
func (c *Catalog) startSweeper(pending bool) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &sweeper{c: c, cancel: cancel, done: make(chan struct{}), wake: make(chan struct{}, 1), compact: c.store.compact, all: pending}
	c.store.sweeper = s // before it runs: its rounds look there
	if pending {
		s.start()
	}
	go s.run(ctx)
}

// add notes a deletion that is durable.
func (s *sweeper) add(key [keySize]byte) {
	s.mu.Lock()
	if len(s.keys) < maxKeys {
		s.keys = append(s.keys, key)
	} else {
		s.all = true
	}
	s.mu.Unlock()
	s.start()
}

// start has a sweep begin soon.
func (s *sweeper) start() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// idle reports whether no deletion waits.
func (s *sweeper) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys) == 0 && !s.all
}

func (s *sweeper) stop() {
	s.cancel()
	<-s.done
}

func (s *sweeper) run(ctx context.Context) {
	defer close(s.done)
	pause := s.c.opt.SweepDelay
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		// Deletions that come together are swept together, and steady ones take a fifth of the time.
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		start := time.Now()
		if s.sweep(ctx) {
			pause = max(s.c.opt.SweepDelay, 4*time.Since(start))
			continue
		}
		pause = max(pause, min(2*pause, mostPause))
		s.start()
	}
}

// mostPause is how long a sweep that fails again and again waits for the next.
const mostPause = time.Minute

// sweep removes the bytes of what was deleted so far; false when some may be left.
func (s *sweeper) sweep(ctx context.Context) bool {
	if s.c.deletions.anyDone() {
		s.c.write(context.Background(), &writer{muts: []mutation{{verb: clearDeletions}}})
	}
	s.mu.Lock()
	keys, all := s.keys, s.all
	s.keys, s.all = nil, false
	s.mu.Unlock()
	err := s.compact(ctx, keys, all)
	s.mu.Lock()
	s.all = s.all || err != nil
	s.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil {
			s.c.opt.Logger.Error("the bytes of deleted entries could not be removed: it is tried again", "error", err)
		}
		return false
	}
	s.c.write(context.Background(), &writer{muts: []mutation{{verb: sweepDone}}})
	return true
}

func (s *store) compact(ctx context.Context, keys [][keySize]byte, all bool) error {
	db := s.db
	// The name says tests, but there is no other way to know that the old files are gone.
	defer db.TestOnlyWaitForCleaning()
	if all {
		return db.Compact(ctx, []byte{deletionKind}, []byte("v"), false)
	}
	slices.SortFunc(keys, func(a, b [keySize]byte) int { return bytes.Compare(a[:], b[:]) })
	for _, k := range keys {
		if err := db.Compact(ctx, k[:], append(slices.Clone(k[:]), 0), false); err != nil {
			return err
		}
	}
	return nil
}
