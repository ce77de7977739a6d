package pebbleopen

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"grebe/internal/durable"
	"grebe/internal/durable/durabletest"
)

// erasing opens a database that removes files which it no longer needs.
func erasing(t *testing.T, d *durabletest.Disk) *DB {
	t.Helper()
	db, err := Open("db", &pebble.Options{FS: d.FS(), Logger: silent{}, FormatMajorVersion: pebble.FormatTableFormatV6,
		Cleaner: Eraser()})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// The first sweeps fail, as on a full disk: nobody has to delete anything else for the next one.
func TestSweepIsTriedAgain(t *testing.T) {
	d := durabletest.NewDisk()
	db := erasing(t, d)
	const secret = "5d0c2b9e1f6a47c38b7e9d4f0a1c2e3b"
	swept, told := make(chan struct{}), 0
	s := db.NewSweeper(Sweeping{Delay: time.Millisecond, From: []byte("a"), To: []byte("z"),
		Done: func() error { close(swept); return nil }, Failed: func(error) { told++ }})
	sweep, failures := s.compact, 3
	s.compact = func(ctx context.Context, keys [][]byte, all bool) error {
		if failures--; failures >= 0 {
			return syscall.ENOSPC
		}
		return sweep(ctx, keys, all)
	}
	s.Run()
	if err := errors.Join(db.Set([]byte("key"), []byte(secret), pebble.Sync),
		db.Delete([]byte("key"), pebble.Sync)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(d.Contents()), secret) {
		t.Fatal("the search does not find what is there")
	}
	s.Add([]byte("key"))
	<-swept
	s.Stop()
	if strings.Contains(string(d.Contents()), secret) {
		t.Error("the bytes of a deleted key are still in the files")
	}
	if !s.Idle() || told != 3 {
		t.Errorf("idle: %v; told of %d failures, want 3", s.Idle(), told)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// A sweep looks at single keys while these are few. One that fails is tried again, after pauses that double, and then
// at all keys.
func TestPausesOfSweeps(t *testing.T) {
	s := &Sweeper{wake: make(chan struct{}, 1)}
	s.Add(make([][]byte, MostSwept-1)...)
	s.Add(nil)
	if len(s.keys) != MostSwept || s.all || len(s.wake) != 1 || s.Idle() {
		t.Errorf("%d keys, all %v", len(s.keys), s.all)
	}
	s.Add(nil)
	if len(s.keys) != MostSwept || !s.all {
		t.Errorf("one more: %d keys, all %v", len(s.keys), s.all)
	}
	if (&Sweeper{all: true}).Idle() || !(&Sweeper{}).Idle() {
		t.Error("a sweeper is idle when nothing is due, and only then")
	}
	synctest.Test(t, func(t *testing.T) {
		s := (&DB{attempt: &attempt{}}).NewSweeper(Sweeping{Delay: time.Second})
		var mu sync.Mutex
		var sweeps []bool // of all keys
		tried := func() []bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(sweeps)
		}
		s.compact = func(_ context.Context, keys [][]byte, all bool) error {
			if len(keys) != 0 == all {
				t.Errorf("%d keys, all %v", len(keys), all)
			}
			mu.Lock()
			sweeps = append(sweeps, all)
			mu.Unlock()
			return errors.New("no room")
		}
		s.Run()
		s.Add([]byte{1})
		time.Sleep(time.Millisecond) // between two sweeps
		for n, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			time.Sleep(pause*time.Second - 2*time.Millisecond)
			synctest.Wait()
			if len(tried()) != n {
				t.Errorf("sweep %d came early", n)
			}
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			if got := tried(); len(got) != n+1 || got[n] != (n > 0) {
				t.Errorf("after %ds: sweeps of all keys %v", pause, got)
			}
		}
		s.Stop()
	})
}

// The sweeper's list is guarded by its lock.
func TestSweepersWaitForTheirLock(t *testing.T) {
	s := &Sweeper{wake: make(chan struct{}, 1)}
	for name, call := range map[string]func(){"Add": func() { s.Add([]byte{1}) }, "Idle": func() { s.Idle() }} {
		s.mu.Lock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			call()
		}()
		for range 5_000 { // it has many turns
			runtime.Gosched()
		}
		select {
		case <-done:
			t.Errorf("%s does not wait", name)
		default:
		}
		s.mu.Unlock()
		<-done
	}
}

// A log that cannot be synced while a sweep rotates it makes the database fail. Pebble alone ends the process: it
// panics in the sweeper's goroutine.
func TestSweepOfALogThatCannotBeSynced(t *testing.T) {
	d := durabletest.NewDisk()
	var failing atomic.Bool
	d.Before = func(kind durable.Kind, path string) error {
		if failing.Load() && kind == durable.OpSync && strings.HasSuffix(path, ".log") {
			return syscall.EIO
		}
		return nil
	}
	db := erasing(t, d)
	failed := make(chan error, 1)
	s := db.NewSweeper(Sweeping{Delay: time.Millisecond, From: []byte("a"), To: []byte("z"),
		Done: func() error { return nil }, Failed: func(err error) { failed <- err }})
	s.Run()
	if err := errors.Join(db.Set([]byte("key"), []byte("value"), pebble.Sync),
		db.Delete([]byte("key"), pebble.Sync)); err != nil {
		t.Fatal(err)
	}
	failing.Store(true)
	s.Add([]byte("key"))
	if err := <-failed; !errors.Is(err, db.Failed()) {
		t.Errorf("the sweep fails with %v, the database with %v", err, db.Failed())
	}
	s.Stop()
	if err := db.Try(func() error { t.Error("a write to a database that failed"); return nil }); err == nil {
		t.Error("a database that failed takes a write")
	}
	if _, _, err := db.Get([]byte("key")); !errors.Is(err, pebble.ErrNotFound) {
		t.Errorf("a read: %v", err)
	}
}
