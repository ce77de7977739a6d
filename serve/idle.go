package serve

import (
	"context"

	"grebe/dispatch"
)

// Idle does a piece of work, such as one request of a batch, in the time that requests to a model leave. The work MUST
// use the context that it is given. If the engines' batches can pause, the work runs in the background whenever no
// request is computed, and gives way between layers. Otherwise it waits while requests are computed or wait, and takes
// a small share of the time while they keep coming. Idle returns the error of the work, or that of ctx if it ended
// before.
func (s *Service) Idle(ctx context.Context, model string, work func(context.Context) error) error {
	sl, err := s.slot(model)
	if err != nil {
		return err
	}
	c := sl.take()
	cache, queue := c.Cache, c.Queue
	sl.release(c) // a batch does not delay a reload
	switch {
	case cache == nil:
		return Errorf(Unprocessable, "model", "computes nothing here, or keeps no KV: it takes no batches")
	case queue.Pauses():
		if err := cache.OthersIdle(ctx); err != nil {
			return err
		}
		return work(dispatch.Background(ctx))
	}
	return cache.Idle(ctx, func() error { return work(ctx) })
}

// LongestDeadline returns the longest deadline of a request in milliseconds.
func (s *Service) LongestDeadline() int32 { return int32(s.times.Load().longest.Milliseconds()) }
