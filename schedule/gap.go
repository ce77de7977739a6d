package schedule

import "time"

// gap predicts the next arrival from the last ones.
type gap struct {
	last time.Duration
	mean float64 // mean time between arrivals, in nanoseconds; each new one counts a sixteenth
	n    int     // arrivals seen, up to enough
}

// enough is the number of arrivals needed for a prediction.
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

// next returns when the next arrival is expected. Arrivals have no memory, so that is one mean gap from now, however
// long ago the last one was. But a silence of much more than the mean shows that the mean is out of date.
func (g *gap) next(now time.Duration) (time.Duration, bool) {
	if g.n < enough || float64(now-g.last) > 8*g.mean {
		return 0, false
	}
	return now + time.Duration(g.mean), true
}
