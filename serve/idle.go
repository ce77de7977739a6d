package serve

import "context"

// Idle does a piece of work, such as one request of a batch, in the time that requests to a model leave. It waits while
// requests are computed or wait. While requests keep coming, it takes a small share of the time. It returns the error
// of the work, or that of ctx if it ended before.
func (s *Service) Idle(ctx context.Context, model string, work func() error) error {
	sl, err := s.slot(model)
	if err != nil {
		return err
	}
	c := sl.take()
	cache := c.Cache
	sl.release(c) // a batch does not delay a reload
	if cache == nil {
		return Errorf(Unprocessable, "model", "computes nothing here, or keeps no KV: it takes no batches")
	}
	return cache.Idle(ctx, work)
}

// LongestDeadline returns the longest deadline of a request in milliseconds.
func (s *Service) LongestDeadline() int32 { return int32(s.times.Load().longest.Milliseconds()) }
