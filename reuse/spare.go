package reuse

import (
	"context"
	"sync"
	"time"
)

// Spare is a machine's idle time. The caches of a machine share it. One of them computes ahead at a time: only while no
// engine has work, and for at most a tenth of the time while requests come.
type Spare struct {
	turn chan struct{} // holds a token while a cache computes ahead, or pauses after it

	mu    sync.Mutex
	loads map[*Load]struct{}
	seen  time.Time // when a request was last seen
}

const (
	// spareShare: while requests come, one part in spareShare of the time is for work ahead.
	spareShare = 10
	// spareLook is how often a cache checks whether the engines are idle.
	spareLook = 5 * time.Millisecond
	// spareQuiet is how long no request must have been seen before work ahead continues without pauses.
	spareQuiet = time.Second
)

// NewSpare returns the spare time of a machine.
func NewSpare() *Spare { return &Spare{turn: make(chan struct{}, 1), loads: map[*Load]struct{}{}} }

// join adds engines whose requests have priority, until leave is called.
func (s *Spare) join(l Load) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads[&l] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.loads, &l)
	}
}

// use does a small piece of work in idle time and pauses after it. It returns the work's error, or that of ctx if it
// ended first.
func (s *Spare) use(ctx context.Context, work func() error) error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for s.busy() {
		if err := sleep(ctx, spareLook); err != nil {
			return err
		}
	}
	start := time.Now()
	err := work()
	took := time.Since(start)
	if s.busy() || s.recent() {
		_ = sleep(ctx, (spareShare-1)*took) // the next call returns the error of ctx
	}
	return err
}

// busy reports whether a request waits or is being computed.
func (s *Spare) busy() bool { return s.busyBut(nil) }

// busyBut is busy without the requests of one Load.
func (s *Spare) busyBut(but Load) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.loads {
		if *l == but {
			continue
		}
		if ms, waiting := (*l).Backlog(); ms > 0 || waiting > 0 {
			s.seen = time.Now()
			return true
		}
	}
	return false
}

// recent reports whether a request was seen recently.
func (s *Spare) recent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.seen) < spareQuiet
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
