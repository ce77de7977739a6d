package pebbleopen

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// shelf is a database as compactions sees it: some compactions are due, and each takes a while.
type shelf struct {
	*compactions
	t *testing.T

	mu      sync.Mutex // as a database's, it is taken before that of compactions
	due     int
	waiting bool // it was refused
	running int
	done    int
	takes   func() time.Duration // called with mu held

	allowed, asked atomic.Int64 // asked counts calls of compactions
}

func (s *shelf) GetAllowedWithoutPermission() int {
	s.asked.Add(1)
	return int(s.allowed.Load())
}

func (s *shelf) GetWaitingCompaction() (bool, pebble.WaitingCompaction) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = s.waiting && s.due > 0
	return s.waiting, pebble.WaitingCompaction{}
}

func (s *shelf) Schedule(h pebble.CompactionGrantHandle) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting = s.waiting && s.due > 0; !s.waiting {
		return false
	}
	s.run(h)
	return true
}

// run runs a compaction. It is called with mu held.
func (s *shelf) run(h pebble.CompactionGrantHandle) {
	s.due--
	if s.running++; s.running > int(s.allowed.Load()) {
		s.t.Errorf("%d compactions run, %d are allowed", s.running, s.allowed.Load())
	}
	time.AfterFunc(s.takes(), func() {
		s.mu.Lock()
		s.running--
		s.done++
		s.mu.Unlock()
		h.Done()
		s.flush(0)
	})
}

// flush makes more compactions due.
func (s *shelf) flush(more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due += more
	for s.due > 0 && !s.waiting {
		ok, h := s.TrySchedule()
		if s.waiting = !ok; ok {
			s.run(h)
		}
	}
}

// newShelf is called in a bubble.
func newShelf(t *testing.T, allowed int64, takes func() time.Duration) *shelf {
	s := &shelf{compactions: newCompactions(), t: t, takes: takes}
	s.allowed.Store(allowed)
	s.Register(2, s)
	return s
}

// While nothing waits nobody looks: also after a time in which something did.
func TestIdleDatabaseIsNotLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t, 1, func() time.Duration { return time.Second })
		time.Sleep(time.Hour)
		if n := s.asked.Load(); n != 0 {
			t.Errorf("%d looks at a database without compactions", n)
		}
		s.flush(3)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s.done != 3 {
			t.Errorf("%d of 3 compactions ran", s.done)
		}
		before := s.asked.Load()
		time.Sleep(time.Hour)
		if n := s.asked.Load() - before; n != 0 {
			t.Errorf("%d looks while nothing waits", n)
		}
		s.Unregister()
	})
}

// A compaction that waits runs soon after the database allows more of them, and at once if the database says so.
func TestCompactionThatWaits(t *testing.T) {
	for _, said := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newShelf(t, 1, func() time.Duration { return time.Hour })
			s.flush(2)
			time.Sleep(time.Minute + lookEvery/2) // between two looks
			synctest.Wait()
			s.allowed.Store(2)
			if said {
				s.UpdateGetAllowedWithoutPermission()
			} else {
				time.Sleep(lookEvery)
			}
			synctest.Wait()
			s.mu.Lock()
			running := s.running
			s.mu.Unlock()
			if running != 2 {
				t.Errorf("%d of 2 compactions run (the database said so: %v)", running, said)
			}
			s.Unregister()
			time.Sleep(2 * time.Hour)
		})
	}
}

// Compactions come and end at random, and limits change: all run, and never too many.
func TestRandomCompactions(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			rng, lengths := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
			s := newShelf(t, 1, func() time.Duration { return time.Duration(1 + lengths.IntN(1e9)) })
			total := 0
			for range 100 {
				n := rng.IntN(4)
				total += n
				s.flush(n)
				time.Sleep(time.Duration(rng.IntN(1e9)))
				synctest.Wait()
				s.allowed.Add(rng.Int64N(2))
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if s.done != total || s.compactions.running != 0 || s.waits {
				t.Errorf("seed %d: %d of %d compactions ran, %d run, waits %v", seed, s.done, total, s.compactions.running, s.waits)
			}
			s.Unregister()
			s.flush(1)
			time.Sleep(time.Minute)
			if synctest.Wait(); s.done != total {
				t.Error("a compaction ran after the end")
			}
		})
	}
}
