package durable

import (
	"log/slog"
	"sync"
	"sync/atomic"
)

// Trouble follows a kind of write or read that fails, such as every one on a full disk. It is logged when it begins
// and when it is over, not each time. It is safe for concurrent use.
type Trouble struct {
	log     *slog.Logger
	begins  string // logged with the first error
	is      atomic.Bool
	mu      sync.Mutex
	err     error
	silence int // errors that were not logged
}

// NewTrouble returns one that logs what fails.
func NewTrouble(log *slog.Logger, begins string) *Trouble { return &Trouble{log: log, begins: begins} }

// Note takes what came of an attempt, and returns it. Attributes are logged with an error.
func (t *Trouble) Note(err error, attributes ...any) error {
	if err == nil && !t.is.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil && t.err != nil:
		t.log.Info("it is over: "+t.begins, "errors_not_logged", t.silence)
	case err != nil && t.err == nil:
		t.log.Error(t.begins+"; further errors are not logged until it is over", append(attributes, "error", err)...)
		t.silence = 0
	case err != nil:
		t.silence++
	}
	t.err = err
	t.is.Store(err != nil)
	return err
}

// Failing returns why the last attempt failed; nil if it did not.
func (t *Trouble) Failing() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}
