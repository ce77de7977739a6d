package product

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/kernels"
)

// Timing is how long a product took by tiles of one kind.
type Timing struct {
	Tile Tile
	Time time.Duration // median
}

// Choose times the promising tiles of a product on its own addresses, which hold numbers like those that
// will be multiplied, and returns them, the fastest first. weights are several matrices like op.W, used in
// turn, so that a cache that holds one of them does not decide. What out holds is lost.
func (s *Set) Choose(stream *driver.Stream, op Op, weights []driver.Ptr) ([]Timing, error) {
	var calls [][]*Call
	tiles := op.Tiles(s.c.Info())
	s.compile(&op, tiles)
	for _, t := range tiles {
		row := make([]*Call, 0, len(weights))
		for _, w := range weights {
			op.W = w
			c, err := s.Prepare(op, t)
			if err != nil {
				return nil, err
			}
			row = append(row, c)
		}
		calls = append(calls, row)
	}
	times, err := s.measure(stream, calls)
	if err != nil {
		return nil, fmt.Errorf("product: time tiles for %d×%d×%d: %w", op.Most, op.N, op.K, err)
	}
	out := make([]Timing, len(calls))
	for i, row := range calls {
		out[i] = Timing{row[0].tile, times[i]}
	}
	slices.SortStableFunc(out, func(a, b Timing) int { return cmp.Compare(a.Time, b.Time) })
	return out, nil
}

// compile compiles what is missing of the kernels for tiles, side by side.
func (s *Set) compile(op *Op, tiles []Tile) {
	var lists [][]string
	for _, t := range tiles {
		k := op.key(t)
		if _, ok := s.kernels[k]; !ok {
			lists = append(lists, k.defines())
		}
	}
	kernels.Prepare(s.c, "gateup.cu", lists)
}

// measure returns the median time of one launch of each row of calls, whose rounds alternate.
func (s *Set) measure(stream *driver.Stream, calls [][]*Call) (medians []time.Duration, err error) {
	const rounds = 7
	args, err := driver.NewArgs()
	if err != nil {
		return nil, err
	}
	defer args.Free()
	clock, err := NewClock(stream)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, clock.Close()) }()
	times := make([][]time.Duration, len(calls))
	for round := range rounds {
		for i, row := range calls {
			d, err := clock.Time(func() error {
				for _, c := range row {
					if err := c.Launch(stream, args, false); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
			if round > 0 { // the first one loads the code
				times[i] = append(times[i], d/time.Duration(len(row)))
			}
		}
	}
	for _, t := range times {
		slices.Sort(t)
		medians = append(medians, t[len(t)/2])
	}
	return medians, nil
}

// Clock times work on a stream by the GPU's own clock.
type Clock struct {
	stream     *driver.Stream
	start, end *driver.Event
}

// NewClock returns a clock. The caller MUST Close it.
func NewClock(s *driver.Stream) (*Clock, error) {
	start, err := s.Context().NewEvent(true)
	if err != nil {
		return nil, err
	}
	end, err := s.Context().NewEvent(true)
	if err != nil {
		return nil, errors.Join(err, start.Close())
	}
	return &Clock{s, start, end}, nil
}

// Time runs f, which puts work into the stream, and waits for it.
func (c *Clock) Time(f func() error) (time.Duration, error) {
	if err := c.start.Record(c.stream); err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	if err := c.end.Record(c.stream); err != nil {
		return 0, err
	}
	if err := c.end.Sync(); err != nil {
		return 0, err
	}
	return c.end.Since(c.start)
}

// Close gives the clock back.
func (c *Clock) Close() error { return errors.Join(c.start.Close(), c.end.Close()) }
