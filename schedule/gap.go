package schedule

import "time"

// gap expects the next arrival from the last ones.
type gap struct {
	last time.Duration
	mean float64 // of the time between arrivals, in nanoseconds; a sixteenth of each new one
	n    int     // arrivals seen, up to enough
}

// enough arrivals say something about the next.
const enough = 4

func (g *gap) observe(at time.Duration) {
	between := float64(max(0, at-g.last))
	g.last = max(g.last, at)
	if g.n < enough {
		g.n++
	}
	switch g.n {
	case 1:
	case 2:
		g.mean = between
	default:
		g.mean += (between - g.mean) / 16
	}
}

// next is when the next arrival is due. Arrivals have no memory: it is a mean gap from now, however
// long ago the last one was; but a silence far beyond the mean says that the mean is out of date.
func (g *gap) next(now time.Duration) (time.Duration, bool) {
	if g.n < enough || float64(now-g.last) > 8*g.mean {
		return 0, false
	}
	return now + time.Duration(g.mean), true
}
