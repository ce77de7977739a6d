package pebbleopen

import (
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A database that is open when its disk becomes full tries to write its tables again, ever more seldom. When there is
// room it goes on at once as ever.
func TestTablesOnAFullDiskAreTriedSeldom(t *testing.T) {
	d := &disk{FS: vfs.NewMem()}
	db, err := open(d)
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.full = ".sst"
	d.mu.Unlock()
	if err := db.Set([]byte("key"), []byte("value"), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	flushed, err := db.AsyncFlush()
	if err != nil {
		t.Fatal(err)
	}
	for d.writes.Load() < 7 { // the first at once, the others after 10, 20, 40, 80, 160 and 320 ms
		time.Sleep(time.Millisecond)
	}
	if took := time.Since(start); took < 630*time.Millisecond {
		t.Errorf("seven tables were tried in %v", took)
	}
	d.mu.Lock()
	d.full = ""
	d.mu.Unlock()
	<-flushed
	value, closer, err := db.Get([]byte("key"))
	if err != nil || string(value) != "value" {
		t.Fatalf("%q, %v", value, err)
	}
	if err := errors.Join(closer.Close(), db.Close()); err != nil {
		t.Error(err)
	}
}
