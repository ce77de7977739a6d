package history

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// Who asks for versions while one is being added waits, and sees all of it.
func TestReadersWaitForWriters(t *testing.T) {
	for name, read := range map[string]func(*History) bool{
		"Head":     func(h *History) bool { return h.Head().Number == 2 },
		"Versions": func(h *History) bool { return len(h.Versions()) == 2 },
		"Find":     func(h *History) bool { _, ok := h.Find(2); return ok },
	} {
		h := &History{versions: []*Version{{Number: 1}}}
		var ended atomic.Bool
		saw := false
		h.mu.Lock()
		go func() {
			saw = read(h)
			ended.Store(true)
		}()
		for i := 0; i < 20_000 && !ended.Load(); i++ { // the reader has many turns
			runtime.Gosched()
		}
		h.versions = append(h.versions, &Version{Number: 2})
		h.mu.Unlock()
		for !ended.Load() {
			runtime.Gosched()
		}
		if !saw {
			t.Errorf("%s did not wait for the version that was being added", name)
		}
	}
}
