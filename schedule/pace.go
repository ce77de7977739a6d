package schedule

import "time"

// Pace is how long it takes to read KV from a disk, as the last reads did. The zero value knows nothing.
type Pace struct {
	Token float64       // nanoseconds per token's KV; 0: nothing was read yet
	Last  time.Duration // when the last read ended, on the caller's clock
}

// paceMemory is how many tokens' KV make up half of the pace.
const paceMemory = 1024

// Observe counts a read that ended now. One of no tokens says nothing.
func (p *Pace) Observe(tokens int, took, now time.Duration) {
	if tokens <= 0 {
		return
	}
	one := max(float64(took)/float64(tokens), 1)
	weight := float64(tokens) / float64(tokens+paceMemory)
	if p.Token == 0 {
		weight = 1
	}
	p.Token += weight * (one - p.Token)
	p.Last = now
}

// paceLasts is for how long the pace of reads predicts that of the next. Afterwards a slow disk is asked again: choices
// that avoid it would never learn that it became faster.
const paceLasts = 30 * time.Second

// Expect predicts how long reading so many tokens' KV takes, and reports whether that is known.
func (p *Pace) Expect(tokens int) (time.Duration, bool) {
	return time.Duration(p.Token * float64(tokens)), p.Token > 0
}

// Ms predicts how many milliseconds it takes to read entries with so many tokens, by the pace while that is recent, or by
// a guess.
func (p *Pace) Ms(now time.Duration, entries, tokens int, guess Transfer) float64 {
	if d, known := p.Expect(tokens); known && now-p.Last < paceLasts {
		return float64(d) / float64(time.Millisecond)
	}
	return float64(entries)*guess.Entry + float64(tokens)*guess.Token
}
