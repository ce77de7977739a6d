package pebbleopen

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"
)

// Sweeping says how the bytes of deleted keys are removed from a database's files.
type Sweeping struct {
	Delay    time.Duration // from a deletion to the start of the sweep that removes its bytes
	From, To []byte        // keys that are swept when more were deleted than can be followed one by one
	Always   [2][]byte     // keys that are swept with all others; nil: none
	Pending  bool          // bytes were left when the database was last closed
	Before   func()        // called before each sweep; nil: nothing is
	// Done is called after a sweep. The owner then removes its own mark, durably, if the sweeper is idle. After an
	// error the sweep is repeated.
	Done   func() error
	Failed func(error) // told of a sweep that failed and is repeated; nil: nobody is
}

// Sweeper removes the bytes of deleted keys from a database's files, in the background. Pebble only notes that a key is
// deleted: its value stays in logs and tables until they are rewritten, which may be never. A sweep rewrites the files
// that hold the keys, all levels down, which retires the logs too.
//
// The owner sets a mark in the batch that deletes, so that the next process goes on with a sweep that was cut off.
type Sweeper struct {
	db      *DB
	opt     Sweeping
	compact func(ctx context.Context, keys [][]byte, all bool) error
	cancel  context.CancelFunc
	done    chan struct{}
	wake    chan struct{} // of one

	mu   sync.Mutex
	keys [][]byte // deleted, at most MostSwept
	all  bool     // sweep everything: more were deleted, or a sweep was cut off
}

const (
	MostSwept = 32          // keys whose files are rewritten one by one
	mostDelay = time.Minute // before the next sweep, after some that failed
)

// NewSweeper returns a sweeper that Run starts.
func (d *DB) NewSweeper(opt Sweeping) *Sweeper {
	s := &Sweeper{db: d, opt: opt, done: make(chan struct{}), wake: make(chan struct{}, 1), all: opt.Pending}
	s.compact = func(ctx context.Context, keys [][]byte, all bool) error {
		return d.Try(func() error { return d.sweep(ctx, &s.opt, keys, all) })
	}
	return s
}

// Run starts the sweeper. The caller MUST call Stop, or Cancel if the database failed.
func (s *Sweeper) Run() {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if s.opt.Pending {
		s.Start()
	}
	go s.run(ctx)
}

// Stop ends the sweeper and waits for it.
func (s *Sweeper) Stop() {
	s.cancel()
	<-s.done
}

// Cancel ends the sweeper and does not wait: a database that failed may never return.
func (s *Sweeper) Cancel() { s.cancel() }

// Start has a sweep begin soon.
func (s *Sweeper) Start() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Add notes keys that are deleted, durably. They are the sweeper's from then on.
func (s *Sweeper) Add(keys ...[]byte) {
	s.mu.Lock()
	if len(s.keys)+len(keys) <= MostSwept {
		s.keys = append(s.keys, keys...)
	} else {
		s.all = true
	}
	s.mu.Unlock()
	s.Start()
}

// Idle reports whether no deletion waits.
func (s *Sweeper) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys) == 0 && !s.all
}

func (s *Sweeper) run(ctx context.Context) {
	defer close(s.done)
	pause := s.opt.Delay
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		// Keys that are deleted together are swept together, and steady deletions take a fifth of the time.
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		start := time.Now()
		err := s.Sweep(ctx)
		if err == nil {
			pause = max(s.opt.Delay, 4*time.Since(start))
			continue
		}
		if ctx.Err() == nil && s.opt.Failed != nil {
			s.opt.Failed(err)
		}
		if s.db.Failed() != nil {
			return // the next process goes on
		}
		pause = max(pause, min(2*pause, mostDelay))
		s.Start()
	}
}

// Sweep removes the bytes of what was deleted so far. After an error some may be left.
func (s *Sweeper) Sweep(ctx context.Context) error {
	if s.opt.Before != nil {
		s.opt.Before()
	}
	s.mu.Lock()
	keys, all := s.keys, s.all
	s.keys, s.all = nil, false
	s.mu.Unlock()
	if err := s.compact(ctx, keys, all); err != nil {
		s.mu.Lock()
		s.all = true
		s.mu.Unlock()
		return err
	}
	return s.opt.Done()
}

// sweep rewrites the files that hold keys, or all of them. It does not call Flush, in which a log that cannot be
// synced ends the process: Compact flushes the keys that it is given.
func (d *DB) sweep(ctx context.Context, opt *Sweeping, keys [][]byte, all bool) error {
	ranges := [][2][]byte{{opt.From, opt.To}}
	if !all {
		ranges = nil
		slices.SortFunc(keys, bytes.Compare)
		for _, k := range keys {
			ranges = append(ranges, [2][]byte{k, append(slices.Clone(k), 0)})
		}
		if opt.Always[0] != nil {
			ranges = append(ranges, opt.Always)
		}
	}
	for _, r := range ranges {
		if err := d.Compact(ctx, r[0], r[1], false); err != nil {
			return err
		}
	}
	d.TestOnlyWaitForCleaning() // the name says tests, but there is no other way to know that the old files are gone
	return nil
}
