package alloc

import "math"

// course remembers the share of hot users in the last epochs, and tells short bursts from lasting changes. An epoch is
// away if its share is far from the median of the last ones. A share that lasts becomes the median.
type course struct {
	hot [courseEpochs]float64
	n   int // epochs noted
	out int // epochs in a row that were away
}

const (
	courseEpochs = 11   // twice as long as a burst of HLEM's paper, 3 to 5 epochs
	courseJump   = 0.1  // an epoch that is further from the median, and not by chance, is away
	courseDrift  = 0.03 // change over the remembered epochs that counts as a drift
)

// at returns a remembered share by its age, the oldest first.
func (c *course) at(i int) float64 { return c.hot[(c.n+i)%courseEpochs] }

// known reports whether there were enough epochs for a median and for the caches to fill.
func (c *course) known() bool { return c.n > courseEpochs/2 }

// note adds an epoch with this number of requests. It reports whether the epoch is away, and whether a burst ended just
// before it. A change that became the median was not a burst.
func (c *course) note(hot float64, requests int) (away, ended bool) {
	last := c.at(courseEpochs - 1)
	if c.n > 2 {
		away = math.Abs(hot-c.median()) > farFrom(requests)
	}
	c.hot[c.n%courseEpochs] = hot
	c.n++
	ended = c.out > 0 && !away && math.Abs(hot-last) > courseJump/2
	if c.out++; !away {
		c.out = 0
	}
	return away, ended
}

// restart forgets all epochs but one with this share.
func (c *course) restart(hot float64) {
	*c = course{n: 1}
	c.hot[0] = hot
}

// above reports whether a part of an epoch, with this number of requests, had a far larger share of hot users than the
// last epochs.
func (c *course) above(hot float64, requests int) bool {
	return c.n > 2 && hot-c.median() > farFrom(requests)
}

// below reports whether a part of an epoch, with this number of requests, had a far smaller share than the last epoch.
func (c *course) below(hot float64, requests int) bool {
	return c.n > 0 && c.at(courseEpochs-1)-hot > farFrom(requests)
}

// farFrom returns the distance from the median beyond which a share of this many requests is not chance: courseJump
// plus two standard deviations, which are at most 1/√requests.
func farFrom(requests int) float64 { return courseJump + 1/math.Sqrt(float64(requests)) }

// drifts reports whether the share moved slowly in one direction.
func (c *course) drifts() bool {
	if c.n < courseEpochs {
		return false
	}
	first, last := 0.0, 0.0
	least, most := 1.0, 0.0
	for i := range courseEpochs {
		h := c.at(i)
		least, most = min(least, h), max(most, h)
		switch {
		case i < 3:
			first += h / 3
		case i >= courseEpochs-3:
			last += h / 3
		}
	}
	return math.Abs(last-first) > courseDrift && most-least < 2*courseJump
}

func (c *course) median() float64 {
	var sorted [courseEpochs]float64
	n := min(c.n, courseEpochs)
	for i, v := range c.hot[:n] {
		j := i
		for ; j > 0 && sorted[j-1] > v; j-- {
			sorted[j] = sorted[j-1]
		}
		sorted[j] = v
	}
	return sorted[n/2]
}
