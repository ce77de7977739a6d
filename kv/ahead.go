package kv

import "sync"

// ahead moves entries to host memory before their room is needed, so that requests do not wait for the copies.
type ahead struct {
	free int64 // bytes to keep free
	kick chan struct{}
	wg   sync.WaitGroup
}

// LowerAhead moves entries to host memory in the background whenever the device's memory has less than free
// bytes left. It MUST be called after SetHost and before the store is used. Close stops it.
func (s *Store) LowerAhead(free int64) {
	a := &ahead{free: free, kick: make(chan struct{}, 1)}
	s.ahead = a
	a.wg.Go(func() {
		for range a.kick {
			for s.short(a.free) && s.evictOne(s.top) {
			}
		}
	})
}

func (s *Store) short(free int64) bool {
	books := s.top.pool.Stats()
	return books.Total-books.Used < free
}

// wake has it check the free memory.
func (a *ahead) wake() {
	if a == nil {
		return
	}
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

func (a *ahead) stop() {
	if a != nil {
		close(a.kick)
		a.wg.Wait()
	}
}
