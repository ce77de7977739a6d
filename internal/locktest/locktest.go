// Package locktest tests that calls wait for the locks that guard what they use.
package locktest

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// Waits fails if a call ends while a lock is held.
func Waits(t *testing.T, name string, lock, unlock, call func()) {
	t.Helper()
	var ended atomic.Bool
	lock()
	go func() {
		call()
		ended.Store(true)
	}()
	for i := 0; i < 5_000 && !ended.Load(); i++ { // it has many turns
		runtime.Gosched()
	}
	if ended.Load() {
		t.Errorf("%s does not wait", name)
	}
	unlock()
	for !ended.Load() {
		runtime.Gosched()
	}
}
