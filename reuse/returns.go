package reuse

import (
	"sync"
	"time"

	"grebe/internal/record"
	"grebe/schedule"
)

// returns is a schedule.Returns that requests share. It records its calls in order.
type returns struct {
	mu   sync.Mutex
	core *schedule.Returns
	rec  *record.Room
}

// note counts a request of a user that had this frequency before it.
func (r *returns) note(user uint64, frequency float64, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec.On() {
		r.rec.In("came", user, frequency, now)
	}
	r.core.Came(user, frequency, now)
}

// evicted reports that a user's entry was dropped.
func (r *returns) evicted(user uint64, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec.On() {
		r.rec.In("evicted", user, now)
	}
	r.core.Evicted(user, now)
}

// expect predicts how often a user of this frequency will find its KV if it is kept now.
func (r *returns) expect(frequency float64) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	total := r.core.Expect(frequency)
	if r.rec.On() {
		r.rec.In("expect", frequency)
		r.rec.Did("returns", total)
	}
	return total
}

// gain returns the share of a user's expected returns that is gained when another user is evicted for it.
func (r *returns) gain(frequency float64) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	share := r.core.Gain(frequency)
	if r.rec.On() {
		r.rec.In("gain", frequency)
		r.rec.Did("share", share)
	}
	return share
}

// kept records, after the user's request, that the user is kept and how many returns are expected.
func (r *returns) kept(user uint64, returns float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec.On() {
		r.rec.In("kept", user, returns)
	}
	r.core.Kept(user, returns)
}

// hit counts a return that found its KV.
func (r *returns) hit(user uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec.On() {
		r.rec.In("hit", user)
	}
	r.core.Hit(user)
}
