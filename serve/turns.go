package serve

import (
	"context"
	"time"

	"grebe/engine"
	"grebe/reuse"
)

const (
	probeTime = time.Minute      // longest deadline of a request that checks a checkpoint
	warmTime  = 10 * time.Minute // longest deadline of a batch of items that a new checkpoint computes
)

// turns runs work that no client waits for, on a queue that it may share with requests: a checkpoint that differs from
// the one that serves in its prompt only has the same queue. f gets the time that the work has. First that is the time
// of a request. With more, all requests would overtake the work on a busy server. If that was too short, f runs again
// with twice the time, up to most.
func (s *Service) turns(most time.Duration, f func(within time.Duration) error) error {
	for d := s.SLO(); d < most; d *= 2 {
		if err := f(d); err == nil || !late(err) {
			return err
		}
	}
	return f(most)
}

// late reports whether work was refused or given up because of its deadline.
func late(err error) bool {
	code := AsError(err).code
	return code == Exhausted || code == DeadlineExceeded
}

// inTurn returns a Do that runs do in turns.
func (s *Service) inTurn(do reuse.Do) reuse.Do {
	return func(ctx context.Context, j *engine.Job) (r *engine.Result, err error) {
		err = s.turns(warmTime, func(within time.Duration) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			r, err = do(ctx, j)
			return err
		})
		return r, err
	}
}
