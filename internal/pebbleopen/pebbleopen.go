// Package pebbleopen opens Pebble databases such that damage and failing disks are reported, never silent and never
// fatal.
//
//   - A ledger beside the database records how much of its logs and manifests is durable. Open compares the files with
//     it before Pebble sees them: a lost marker, a flipped bit in a log or a missing file is a [DamageError], and
//     changes nothing.
//   - Damage that is found later, in a table's blocks, is counted and returned by the read that hit it.
//   - Pebble writes the log's contents to a table before it opens. Where that fails, as on a full disk, Pebble tries
//     again for ever: Open gives up. While the database is open such writes are slowed down.
//   - An error that Pebble would end the process for makes the database fail instead: it takes no more writes.
package pebbleopen

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// DB is an open database.
type DB struct {
	*pebble.DB
	ledger  *ledger
	attempt *attempt
}

// Corruptions returns how many times damaged blocks were met since the database was opened.
func (d *DB) Corruptions() int64 { return d.attempt.corruptions.Load() }

// Failed returns why the database takes no more writes, nil while it does. Its owner MUST NOT write to it or close it
// then: both might wait for ever. Reads go on to work.
func (d *DB) Failed() error {
	if err := d.attempt.fatal.Load(); err != nil {
		return *err
	}
	return nil
}

// Try calls write, which changes the database. Pebble panics when its log cannot be written or synced: that is an
// error, and the database has failed from then on.
func (d *DB) Try(write func() error) (err error) {
	if err := d.Failed(); err != nil {
		return err
	}
	defer func() {
		if p := recover(); p != nil {
			d.attempt.fails(fmt.Errorf("%v", p))
			err = d.Failed()
		}
	}()
	return write()
}

// SetNote records a note beside what is durable. It does not wait for the disk.
func (d *DB) SetNote(n Note) { d.ledger.setNote(n) }

// Note returns the last note that was recorded.
func (d *DB) Note() Note {
	d.ledger.mu.Lock()
	defer d.ledger.mu.Unlock()
	return d.ledger.note
}

// Close closes the database and its ledger.
func (d *DB) Close() error { return errors.Join(d.DB.Close(), d.ledger.close()) }

// Open is pebble.Open that returns a DamageError for damaged files, and the first error of a write that Pebble would
// repeat. It takes the place of opt's listener. What Pebble had begun is then left as it is until the process ends: it
// does nothing any more, and keeps its files open and its folder locked. Nothing that was in the database is lost.
func Open(dir string, opt *pebble.Options) (*DB, error) {
	own := opt.Clone()
	if own.FS == nil {
		own.FS = vfs.Default
	}
	l, renewed, err := verify(dir, own.FS)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(own.FS.MkdirAll(dir, 0o700), l.start(dir, own.FS)); err != nil {
		return nil, err
	}
	if renewed != "" {
		opt.Logger.Errorf("the ledger of %s was made anew from the files: %s", dir, renewed)
	}
	db, err := openVerified(dir, own, l)
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return db, nil
}

// openVerified opens a database that was compared with its ledger.
func openVerified(dir string, own *pebble.Options, l *ledger) (*DB, error) {
	a := &attempt{failed: make(chan struct{})}
	log := own.Logger
	own.EventListener = a.listener(log)
	own.Logger = logger{log, a}
	own.FS = paced{recording{own.FS, l}, a}
	own.Experimental.CompactionScheduler = newCompactions()
	done := make(chan struct{})
	var db *pebble.DB
	var err error
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("%v", p)
			}
		}()
		db, err = pebble.Open(dir, own)
	}()
	select {
	case <-a.failed:
	case <-done:
	}
	if failed := a.end(); failed != nil {
		return nil, fmt.Errorf("what was written last cannot be brought to its place, and is in the log alone: %w", failed)
	}
	<-done
	if err != nil {
		return nil, Damage(dir, err)
	}
	return &DB{DB: db, ledger: l, attempt: a}, nil
}

// attempt is one to open a database.
type attempt struct {
	failed chan struct{} // closed with the first error

	mu    sync.Mutex
	flush error // of the last table that was written; an empty one has one too, and nobody else is told of that
	err   error
	over  bool
	pause time.Duration // before the next table, since the last could not be written

	corruptions atomic.Int64
	fatal       atomic.Pointer[error] // what Pebble would end the process for, once it is open
}

func (a *attempt) listener(log pebble.Logger) *pebble.EventListener {
	return &pebble.EventListener{
		FlushEnd: func(i pebble.FlushInfo) { a.flushed(i.Err) },
		CompactionEnd: func(i pebble.CompactionInfo) {
			if i.Err == nil {
				a.pace(false)
			}
		},
		BackgroundError: func(err error) {
			if a.flushes(err) {
				a.fail(err)
			}
			a.pace(true)
			log.Errorf("background error: %s", err)
		},
		DataCorruption: func(i pebble.DataCorruptionInfo) {
			a.corruptions.Add(1)
			log.Errorf("%s is damaged: %v", i.Path, i.Details)
		},
	}
}

func (a *attempt) flushed(err error) {
	if err == nil {
		a.pace(false)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flush = err
}

// pace notes that a table could not be written, or that one could.
func (a *attempt) pace(failed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pause = min(max(2*a.pause, firstPause), mostPause); !failed {
		a.pause = 0
	}
}

const firstPause, mostPause = 10 * time.Millisecond, time.Second

// paced is where a database is, which waits before a table is begun after some that could not be written. No lock of
// Pebble's is held then.
type paced struct {
	vfs.FS
	a *attempt
}

func (p paced) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") {
		p.a.mu.Lock()
		pause := p.a.pause
		p.a.mu.Unlock()
		time.Sleep(pause)
	}
	return p.FS.Create(name, c)
}

// flushes reports whether an error is that of the last table that was written. Pebble survives others.
func (a *attempt) flushes(err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.flush != nil && a.flush.Error() == err.Error()
}

// fail ends the attempt. It does not return to who failed, unless the attempt is over: a goroutine of Pebble's that
// returned would try again.
func (a *attempt) fail(err error) {
	a.mu.Lock()
	if a.over {
		a.mu.Unlock()
		return
	}
	if a.err == nil {
		a.err = err
		close(a.failed)
	}
	a.mu.Unlock()
	select {}
}

// end returns why the attempt failed; nil: it did not, and what fails from now on is the database's own.
func (a *attempt) end() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = a.err == nil
	return a.err
}

// fails notes what an open database cannot survive, if it is the first.
func (a *attempt) fails(err error) error {
	failed := fmt.Errorf("the database takes no more writes until it is opened again: %w", err)
	a.fatal.CompareAndSwap(nil, &failed)
	return failed
}

// logger has an attempt end with what the database cannot survive.
type logger struct {
	pebble.Logger
	a *attempt
}

// Fatalf does not return. While the database is being opened it ends the attempt. A commit that fails panics in its
// caller. Anything else fails in a goroutine of Pebble's own, where a panic would end the process: that goroutine ends
// alone, and lets go of its locks.
func (l logger) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	l.a.fail(err)
	failed := l.a.fails(err)
	if strings.HasPrefix(format, "pebble: fatal commit error") {
		panic(failed)
	}
	l.Errorf("%v", failed)
	runtime.Goexit()
}
