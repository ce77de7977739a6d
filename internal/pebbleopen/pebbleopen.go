// Package pebbleopen opens Pebble databases, and gives up where one cannot be opened. What was written last is in a database's log alone, and Pebble
// writes it to a table before it opens: where that fails, as on a disk that is full, Pebble tries again for ever, as fast as it can.
package pebbleopen

import (
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// Open is pebble.Open that returns the first error of such a write. It takes the place of opt's listener. What Pebble had begun is then left as it is until the process ends: it
// does nothing any more, and keeps its files open and its folder locked. Nothing that was in the database is lost.
func Open(dir string, opt *pebble.Options) (*pebble.DB, error) {
	a := &attempt{failed: make(chan struct{})}
	own := opt.Clone()
	own.EventListener = &pebble.EventListener{
		FlushEnd: func(i pebble.FlushInfo) { a.flushed(i.Err) },
		BackgroundError: func(err error) {
			if a.flushes(err) {
				a.fail(err)
			}
			opt.Logger.Errorf("background error: %s", err)
		},
	}
	own.Logger = logger{opt.Logger, a}
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
}

func (a *attempt) flushed(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flush = err
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
