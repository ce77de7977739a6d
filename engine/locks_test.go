package engine

import (
	"testing"

	"grebe/internal/locktest"
)

// Who changes the memory of beams waits for its lock; jobs wait for the batch that runs.
func TestEngineCallsWaitForTheirLocks(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{})
	mem := &tallied{Memory: e.memory}
	s := &beamStore{memory: mem}
	locktest.Waits(t, "take", s.mu.Lock, s.mu.Unlock, func() { b, _ := s.take(256); mem.Free(b) })
	locktest.Waits(t, "give", s.mu.Lock, s.mu.Unlock, func() { b, _ := mem.Alloc(256); s.give(b) })
	locktest.Waits(t, "close", s.mu.Lock, s.mu.Unlock, s.close)
	locktest.Waits(t, "Run", e.mu.Lock, e.mu.Unlock, func() { e.Run(nil, nil) })
	locktest.Waits(t, "Close", e.mu.Lock, e.mu.Unlock, func() { _ = e.Close() })
	s.close()
}
