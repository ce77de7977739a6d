package reuse

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A cache waits for the engines of other models, and not for its own.
func TestOthersIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t, "", 1, 8)
		defer s.close()
		var own, other atomic.Bool
		s.opt.Load = backlog{busy: &own}
		defer s.opt.Spare.join(s.opt.Load)()
		defer s.opt.Spare.join(backlog{busy: &other})()
		own.Store(true)
		began := time.Now()
		if err := s.OthersIdle(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("waited for %v: %v", time.Since(began), err)
		}
		other.Store(true)
		time.AfterFunc(time.Second, func() { other.Store(false) })
		if err := s.OthersIdle(t.Context()); err != nil || time.Since(began) < time.Second {
			t.Errorf("waited for %v of a second: %v", time.Since(began), err)
		}
		other.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.OthersIdle(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait that was ended: %v", err)
		}
	})
}
