package reuse

import (
	"sync"
	"time"

	"grebe/internal/record"
	"grebe/schedule"
)

// returns is a schedule.Returns that requests share. Its calls are recorded in their order.
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

// evicted tells of a user's entry that was dropped.
func (r *returns) evicted(user uint64, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec.On() {
		r.rec.In("evicted", user, now)
	}
	r.core.Evicted(user, now)
}

// expect predicts how often a user of this frequency will find what is kept now.
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

// gain returns the share of a user's expected returns that is gained when another user makes room.
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

// kept notes, after the user's request, that the user is kept and how many returns are expected.
func (r *returns) kept(user uint64, returns float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec.On() {
		r.rec.In("kept", user, returns)
	}
	r.core.Kept(user, returns)
}

// hit counts a user that was found.
func (r *returns) hit(user uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec.On() {
		r.rec.In("hit", user)
	}
	r.core.Hit(user)
}
