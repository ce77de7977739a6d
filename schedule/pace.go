package schedule

import "time"

// Pace is the time to read KV from a disk, measured on the last reads. The zero value is unknown.
type Pace struct {
	Token float64       // nanoseconds per token of KV; 0: unknown
	Last  time.Duration // when the last read ended, on the caller's clock
}

// paceMemory is the number of tokens after which a new pace counts half.
const paceMemory = 1024

// Observe adds a read that ended now. A read of no tokens is ignored.
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

// paceLasts is how long the pace of past reads is used. After that a slow disk is tried again: decisions that avoid it
// would never notice that it became faster.
const paceLasts = 30 * time.Second

// Expect predicts how long it takes to read the KV of a number of tokens, and reports whether that is known.
func (p *Pace) Expect(tokens int) (time.Duration, bool) {
	return time.Duration(p.Token * float64(tokens)), p.Token > 0
}

// Ms predicts the milliseconds to read entries of tokens in all: by the pace if it is recent, else by a guess.
func (p *Pace) Ms(now time.Duration, entries, tokens int, guess Transfer) float64 {
	if d, known := p.Expect(tokens); known && now-p.Last < paceLasts {
		return float64(d) / float64(time.Millisecond)
	}
	return float64(entries)*guess.Entry + float64(tokens)*guess.Token
}
