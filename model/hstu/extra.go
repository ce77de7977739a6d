package hstu

import (
	"errors"
	"math"

	"grebe/plan"
)

// What a row adds for its position and time is a number of plan.Segment.Extra, where it depends on the whole
// request: the row of the position table, and the row of the time table, or one behind its end for none.

func (c *Config) pack(position, time int) int32 {
	if time < 0 {
		time = c.TimeBuckets + 1
	}
	return int32(position*(c.TimeBuckets+2) + time)
}

func (c *Config) unpack(extra int32) (position, time int) {
	position, time = int(extra)/(c.TimeBuckets+2), int(extra)%(c.TimeBuckets+2)
	if time > c.TimeBuckets {
		time = -1
	}
	return min(position, c.PositionBuckets-1), time
}

// Moment is when things happened, in seconds since 1970.
type Moment struct {
	Events []int64 // of the history, oldest first
	Query  int64
}

// errItemFirst says that a plan cannot begin with the items.
var errItemFirst = errors.New("hstu: item-first needs absolute positions, no times and no contextual rows")

// Annotate gives the segments of a plan what their rows add for positions and times, and their scale, where
// these depend on the whole request. The user's segment, if any, is the history behind its contextual rows.
func (m *Model) Annotate(p *plan.Plan, user int, at *Moment) error {
	c := m.cfg
	if c.ScaleLength == 0 {
		scale := 1 / float32(max(1, p.Tokens()))
		for i := range p.Segments {
			p.Segments[i].Scale = scale
		}
	}
	if c.Positions != FromEnd && c.Times == None {
		return nil
	}
	if user > 0 {
		return errItemFirst
	}
	slots := len(m.slots)
	for i := range p.Segments {
		s := &p.Segments[i]
		s.Extra = make([]int32, len(s.Tokens))
		for t := range s.Tokens {
			if i == user {
				s.Extra[t] = c.extra(t, slots, len(s.Tokens)-slots, at)
			} else {
				s.Extra[t] = c.pack(c.candidatePosition(s.Start+t, slots), c.bucket(0))
			}
		}
	}
	return nil
}

func (c *Config) candidatePosition(position, slots int) int {
	if c.Positions == FromEnd {
		return min(slots, c.PositionBuckets-1)
	}
	return min(position, c.PositionBuckets-1)
}

// extra is of row t of a user's segment: contextual rows, then events.
func (c *Config) extra(t, slots, events int, at *Moment) int32 {
	position, time := t, int64(0)
	if event := t - slots; event >= 0 {
		if c.Positions == FromEnd {
			position = events - event + slots
		}
		if event < len(at.Events) {
			time = at.Events[event]
		}
	}
	return c.pack(min(position, c.PositionBuckets-1), c.bucket(before(at.Query, time)))
}

// before returns by how many seconds an event is; times are whatever somebody sent, and may be farther apart than can
// be told.
func before(query, event int64) int64 {
	seconds := query - event
	switch {
	case event < 0 && seconds < query:
		return math.MaxInt64
	case event > 0 && seconds > query:
		return math.MinInt64
	}
	return seconds
}

// bucket returns the row of the time table for so many seconds before the query; −1 without one.
func (c *Config) bucket(seconds int64) int {
	if c.Times == None {
		return -1
	}
	// In float32, as the code that trains: buckets would differ at their edges otherwise.
	x := max(float32(seconds), 1e-6) / 60
	if c.Times == QueryLog {
		x = float32(math.Log(float64(x)))
	} else {
		x = float32(math.Sqrt(float64(x)))
	}
	return min(int(max(x, 0)), c.TimeBuckets)
}
