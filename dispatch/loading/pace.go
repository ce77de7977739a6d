package loading

import (
	"sync"
	"time"

	"grebe/internal/record"
	"grebe/schedule"
)

// Pace is a schedule.Pace that the loads of a cache share. The zero value is unknown. It is safe for concurrent use.
type Pace struct {
	mu    sync.Mutex
	pace  schedule.Pace
	epoch time.Time // zero of its clock: the end of the first read
	rec   *record.Room
}

// Record makes it record the times of reads, and the pace after each. It MUST be called before first use.
func (p *Pace) Record(r *record.Room) { p.rec = r }

// note adds a read that just ended.
func (p *Pace) note(tokens int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoch.IsZero() {
		p.epoch = time.Now()
	}
	p.pace.Observe(tokens, took, time.Since(p.epoch))
	if p.rec.On() && tokens > 0 {
		p.rec.In("read", tokens, took)
		p.rec.Did("pace", p.pace.Token)
	}
}

// State returns the pace, and the time on its clock.
func (p *Pace) State() (pace schedule.Pace, now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pace, time.Since(p.epoch)
}
