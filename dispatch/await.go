package dispatch

import (
	"time"

	"grebe/schedule"
)

// await is the wait of a call for KV that other engines compute.
type await struct {
	held    bool
	since   time.Duration // when it was first held
	arrived int           // tokens whose KV has arrived since then, when its batch begins
}

// holds decides whether a job that could run waits for KV that batches on other engines compute. If so, it puts the
// job back into the queue and returns true. The caller holds the lock.
func (d *Dispatcher) holds(job *schedule.Job, now time.Duration) bool {
	c := d.waiting[job.ID]
	if c == nil || len(d.claims) == 0 {
		return false
	}
	rows, keys, ends := 0, 0, time.Duration(0)
	for i := range c.job.Segments {
		u, cost := c.job.Awaits(i)
		if u == nil {
			continue
		}
		if by, claimed := d.claims[u]; claimed {
			rows, keys, ends = rows+cost.Rows, keys+cost.Keys, max(ends, d.admission.Ends(by))
		}
	}
	if rows == 0 {
		return false
	}
	since := now
	if c.await.held {
		since = c.await.since
	}
	until := d.batcher.Await(job, rows, keys, ends, since, now)
	if d.rec.On() {
		d.rec.In("await", job.ID, rows, keys, ends, since, now)
		d.rec.Did("until", until)
	}
	if until <= now {
		return false
	}
	c.await.held, c.await.since = true, since
	d.batcher.Hold(*job, until)
	return true
}

// claim records the KV that a batch will compute on engine n, and the KV that has arrived for those of its jobs that
// waited. The caller holds the lock.
func (d *Dispatcher) claim(b *batch, n int) {
	if d.claims == nil {
		return
	}
	for _, c := range b.calls {
		for i := range c.job.Segments {
			u, _ := c.job.Awaits(i)
			if u == nil {
				continue
			}
			if _, claimed := d.claims[u]; !claimed {
				d.claims[u] = n
				b.claims = append(b.claims, u)
			}
		}
		if c.await.held {
			c.await.arrived = c.job.Arrived()
		}
	}
}

// disclaim ends the claims of a batch that ended. Jobs that waited for it can then run: they find the KV, or compute
// it. The caller holds the lock.
func (d *Dispatcher) disclaim(b *batch, n int) {
	if d.claims == nil {
		return
	}
	for _, u := range b.claims {
		delete(d.claims, u)
	}
	if d.batcher.Resume() {
		if d.rec.On() {
			d.rec.In("resume", n)
		}
		d.signal()
	}
}
