package alloc

import "math"

// course remembers the share of hot users and tells bursts, which end soon, from what lasts: an epoch is away when its share is far
// from the median of the last ones. A share that lasts becomes the median.
type course struct {
	hot [courseEpochs]float64
	n   int  // epochs noted
	out bool // the last was away
}

const (
	courseEpochs = 11   // twice as long as a burst of HLEM's paper, 3 to 5 epochs
	courseJump   = 0.1  // further from the median, and not by chance, is away
	courseDrift  = 0.03 // over the epochs that are remembered
)

// at returns a remembered share, from the oldest on.
func (c *course) at(i int) float64 { return c.hot[(c.n+i)%courseEpochs] }

// known reports whether there were enough epochs to tell, and for caches to fill.
func (c *course) known() bool { return c.n > courseEpochs/2 }

// note adds an epoch of so many requests. It returns whether the epoch is away, and whether a burst ended just before it: one that became the
// median was none.
func (c *course) note(hot float64, requests int) (away, ended bool) {
	last := c.at(courseEpochs - 1)
	if c.n > 2 {
		away = math.Abs(hot-c.median()) > farFrom(requests)
	}
	c.hot[c.n%courseEpochs] = hot
	c.n++
	ended = c.out && !away && math.Abs(hot-last) > courseJump/2
	c.out = away
	return away, ended
}

// above reports whether so many requests, some of an epoch's, had far more hot users than epochs had lately.
func (c *course) above(hot float64, requests int) bool {
	return c.n > 2 && hot-c.median() > farFrom(requests)
}

// farFrom is how far from the median a share of so many requests is no chance: two standard deviations at most, and more.
func farFrom(requests int) float64 { return courseJump + 1/math.Sqrt(float64(requests)) }

// drifts reports whether the share went one way slowly.
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
