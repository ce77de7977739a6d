package reuse

import (
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"grebe/dispatch/loading"
	"grebe/kv"
)

// waits reports whether f, called while the caller holds a lock, has not returned after others had many turns.
func waits(f func()) (ended *atomic.Bool, waiting bool) {
	ended = &atomic.Bool{}
	go func() {
		f()
		ended.Store(true)
	}()
	for range 20_000 {
		if ended.Load() {
			return ended, false
		}
		runtime.Gosched()
	}
	return ended, true
}

// ends waits until a call has ended.
func ends(ended *atomic.Bool) {
	for !ended.Load() {
		runtime.Gosched()
	}
}

// A request that ends while an entry is being pinned for it releases that entry too.
func TestALoadIsReleasedAfterTheLastPin(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	e, err := m.store.Reserve(kv.Exact, 4, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := m.opt.Pool.Stats().Used
	l := &load{Loading: loading.New(4, &m.loads.pace), cache: m.Cache}
	l.mu.Lock() // a reader is in pin
	ended, waiting := waits(l.release)
	if !waiting {
		t.Error("what comes while a load is released is lost")
	}
	l.pins = append(l.pins, e)
	l.mu.Unlock()
	ends(ended)
	if used := m.opt.Pool.Stats().Used; used >= before {
		t.Errorf("%d bytes are in use after the release, %d before: the last entry was not let go", used, before)
	}
}

// The index is not unmapped while it is being read.
func TestPrototypesCloseAfterTheirReaders(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	file := filepath.Join(t.TempDir(), "x.proto")
	m.build(t, file, people(1, 30))
	p, err := m.OpenPrototypes(file)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.RLock()
	ended, waiting := waits(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	if !waiting {
		t.Error("the index was closed under a reader")
	}
	p.mu.RUnlock()
	ends(ended)
}

// If the index cannot be written, building prototypes is an error.
func TestAnIndexThatCannotBeWrittenIsAnError(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	file := filepath.Join(t.TempDir(), "x.proto")
	if err := os.MkdirAll(filepath.Join(file, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	users := people(1, 30)
	users.Fresh = true
	if built, err := m.BuildPrototypes(t.Context(), m.engine.Do, file, users); err == nil {
		t.Errorf("built %+v, and nothing was written", built)
	}
}
