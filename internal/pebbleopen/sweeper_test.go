package pebbleopen

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"grebe/internal/durable"
	"grebe/internal/durable/durabletest"
)

// erasing opens a database that removes files which it no longer needs.
func erasing(t *testing.T, d *durabletest.Disk) *DB {
	t.Helper()
	db, err := Open("db", &pebble.Options{FS: d.FS(), Logger: silent{}, FormatMajorVersion: pebble.FormatTableFormatV6, Cleaner: Eraser()})
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
	if err := errors.Join(db.Set([]byte("key"), []byte(secret), pebble.Sync), db.Delete([]byte("key"), pebble.Sync)); err != nil {
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

// A log that cannot be synced while a sweep rotates it makes the database fail. Pebble alone ends the process: it panics in the
// sweeper's goroutine.
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
	if err := errors.Join(db.Set([]byte("key"), []byte("value"), pebble.Sync), db.Delete([]byte("key"), pebble.Sync)); err != nil {
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
