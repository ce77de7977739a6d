package loading

import (
	"sync"
	"time"

	"grebe/internal/record"
	"grebe/schedule"
)

// Pace is a schedule.Pace that the loads of a cache share. The zero value knows nothing. It is safe for concurrent use.
type Pace struct {
	mu    sync.Mutex
	pace  schedule.Pace
	epoch time.Time // of its times: the end of the first read
	rec   *record.Room
}

// Record has it write what reads took, and the pace after each. It MUST be called before it is used.
func (p *Pace) Record(r *record.Room) { p.rec = r }

// note counts a read that ended just now.
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
