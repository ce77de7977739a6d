// Package tick has periodic work happen at the same moments in all processes: at multiples of its period on the wall
// clock.
//
// A process that wakes up pays for that, whatever it does then. Work that is done at the same moment shares the price,
// and a message that another process sends at that moment arrives while this one is awake.
package tick

import "time"

// Wait returns the time until the next multiple of a period, which is at most the period and never 0. Clocks that do
// not agree, or that are set, change when work is done, and not how often.
func Wait(every time.Duration) time.Duration { return wait(time.Now(), every) }

func wait(now time.Time, every time.Duration) time.Duration {
	return every - time.Duration(now.UnixNano()%int64(every))
}
