package cuda

import (
	"sync"
	"time"
)

// busyTime is how long a GPU had work of at least one runner: from the first launch of a batch until the host knows
// that all of it has ended. Its lock is a leaf.
type busyTime struct {
	mu    sync.Mutex
	count int       // runners with work
	since time.Time // when the first of them began
	total time.Duration
}

func (b *busyTime) begin(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.count == 0 {
		b.since = now
	}
	b.count++
}

func (b *busyTime) end(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.count--; b.count == 0 {
		b.total += now.Sub(b.since)
	}
}

// sum returns the time so far, up to now.
func (b *busyTime) sum(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.count == 0 {
		return b.total
	}
	return b.total + now.Sub(b.since)
}

// works notes that the runner has work in its stream.
func (r *runner) works() {
	if r.busy = true; !r.counted {
		r.counted = true
		r.dev.busy.begin(time.Now())
	}
}

// rests notes that all of it has ended.
func (r *runner) rests() {
	r.busy, r.sums.fills = false, false
	if r.counted {
		r.counted = false
		r.dev.busy.end(time.Now())
	}
}

// Busy returns how long the GPU had work since it was opened.
func (d *device) Busy() time.Duration { return d.busy.sum(time.Now()) }
