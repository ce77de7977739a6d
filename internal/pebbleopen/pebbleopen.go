// Package pebbleopen opens Pebble databases, and gives up where one cannot be opened. What was written last is in a database's log alone, and Pebble
// writes it to a table before it opens: where that fails, as on a disk that is full, Pebble tries again for ever, as fast as it can. So it does while it is
// open: there it is slowed down.
package pebbleopen

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Open is pebble.Open that returns the first error of such a write. It takes the place of opt's listener. What Pebble had begun is then left as it is until the process ends: it
// does nothing any more, and keeps its files open and its folder locked. Nothing that was in the database is lost.
func Open(dir string, opt *pebble.Options) (*pebble.DB, error) {
	a := &attempt{failed: make(chan struct{})}
	own := opt.Clone()
	own.EventListener = &pebble.EventListener{
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
			opt.Logger.Errorf("background error: %s", err)
		},
	}
	own.Logger = logger{opt.Logger, a}
	if own.FS == nil {
		own.FS = vfs.Default
	}
	own.FS = paced{own.FS, a}
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
	return db, err
}

// attempt is one to open a database.
type attempt struct {
	failed chan struct{} // closed with the first error

	mu    sync.Mutex
	flush error // of the last table that was written; an empty one has one too, and nobody else is told of that
	err   error
	over  bool
	pause time.Duration // before the next table, since the last could not be written
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

// paced is where a database is, which waits before a table is begun after some that could not be written. No lock of Pebble's is held then.
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

// fail ends the attempt. It does not return to who failed, unless the attempt is over: a goroutine of Pebble's that returned would try again.
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

// logger has an attempt end with what the database cannot survive.
type logger struct {
	pebble.Logger
	a *attempt
}

func (l logger) Fatalf(format string, args ...any) {
	l.a.fail(fmt.Errorf(format, args...))
	l.Logger.Fatalf(format, args...)
}
