package kv

import "sync"

// ahead lowers entries before their place is needed, so that who needs it does not wait for the copies.
type ahead struct {
	free int64 // bytes that are to be free
	kick chan struct{}
	wg   sync.WaitGroup
}

// LowerAhead has entries lowered to the host's memory in the background whenever less than free bytes of
// the device's are free. It MUST be called after SetHost and before the store is used. Close stops it.
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

// wake has it look.
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
