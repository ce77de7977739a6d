package schedule

import (
	"math"
	"time"
)

// Drift is how much longer transfers take than their estimated costs say. It is a ratio, smoothed over the last
// transfers. The zero value is 1: nothing is known.
type Drift struct {
	log   float64       // of the ratio
	count int           // transfers that were observed
	last  time.Duration // when the last one ended, on the caller's clock
}

const (
	driftWeight = 1. / 8
	driftMost   = 7 * math.Ln2 // a transfer counts as at most 128 times faster or slower than estimated
)

// Observe adds a transfer that ended now. If it ended early, without its KV, it would have taken longer: it counts only
// if it took longer than predicted.
func (d *Drift) Observe(took, estimate float64, ended bool, now time.Duration) {
	if !(estimate > 0) || !(took > 0) {
		return
	}
	ratio := min(max(math.Log(took/estimate), -driftMost), driftMost)
	old := d.at(now)
	if !ended && ratio <= old {
		return
	}
	d.count++
	d.log = old + max(driftWeight, 1/float64(d.count))*(ratio-old)
	d.last = now
}

// Factor returns the ratio. It returns to 1 when there are no transfers, so that a slow disk is tried again: decisions
// that avoid it would never notice that it became faster.
func (d *Drift) Factor(now time.Duration) float64 { return math.Exp(d.at(now)) }

func (d *Drift) at(now time.Duration) float64 {
	return d.log * math.Exp(-max(0, (now-d.last).Seconds())/paceLasts.Seconds())
}

// Times returns the costs of a transfer that takes factor times as long.
func (t Transfer) Times(factor float64) Transfer {
	return Transfer{Entry: factor * t.Entry, Token: factor * t.Token}
}
