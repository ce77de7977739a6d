package dispatch

import (
	"time"

	"grebe/schedule"
)

// recordOpen records the batcher's initial state.
func (d *Dispatcher) recordOpen(c *schedule.BatcherConfig) {
	if d.rec.On() {
		m := &d.model
		d.rec.In("open", len(d.engines), c.Capacity, c.SLO, c.MaxRows, c.Efficiency, c.Margin, c.Answer)
		l := &m.Quality.Largest
		d.rec.In("model", m.Fixed, m.Row, m.Square, m.Key, m.Request, l.Rows, l.Keys, l.Requests)
	}
}

// recordStep records the decision for a free engine. The caller holds the lock.
func (d *Dispatcher) recordStep(engine int, now time.Duration, jobs, shed []schedule.Job, wake time.Duration) {
	ids := func(jobs []schedule.Job) []uint64 {
		out := make([]uint64, len(jobs))
		for i := range jobs {
			out[i] = jobs[i].ID
		}
		return out
	}
	d.rec.In("step", engine, now)
	d.rec.Did("run", ids(jobs), ids(shed), wake)
}

// recordAdd records a new job, its place and its number. The caller holds the lock.
func (d *Dispatcher) recordAdd(j *schedule.Job, p *Place, number int) {
	place := 0
	if p != nil && p.d == d {
		place = p.id
	}
	d.rec.In("add", j.ID, place, j.Rows, j.Keys, j.Arrival, j.Deadline, number)
}

// recordPrice records the prediction for a request. The caller holds the lock.
func (d *Dispatcher) recordPrice(p *schedule.Price, now, deadline time.Duration) {
	d.rec.In("price", p.Own, deadline, now)
	d.rec.Did("takes", p.Takes, max(0, p.Late))
}
