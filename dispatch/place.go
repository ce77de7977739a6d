package dispatch

import (
	"context"
	"fmt"
	"time"

	"grebe/schedule"
)

// ShedError refuses a request that is predicted to miss its deadline. It wraps ErrShed.
type ShedError struct {
	After time.Duration // time after which such a request is predicted to meet its deadline
}

func (e *ShedError) Error() string {
	return fmt.Sprintf("%v: ask again in %v", ErrShed, e.After.Round(time.Millisecond))
}

// Unwrap returns ErrShed.
func (e *ShedError) Unwrap() error { return ErrShed }

// Kind groups requests that take a similar time.
type Kind = schedule.Kind

// Kinds of requests.
const (
	Single = schedule.Single // one job
	Rounds = schedule.Rounds // one job after the other, as many as a search needs
)

// Place is an admitted request that is not answered yet. Its work counts as ahead of other requests even while it has
// no job in the queue: before its first job, and between two.
type Place struct {
	d    *Dispatcher
	id   int // among recorded places
	work schedule.Place
}

type placeKey struct{}

// Within returns a context whose jobs belong to the place.
func (p *Place) Within(ctx context.Context) context.Context {
	return context.WithValue(ctx, placeKey{}, p)
}

// Admit takes a place for a request of a size, such as its number of candidates, before anything is computed for it. It
// returns a ShedError if the request is predicted to miss its deadline because of the work ahead of it. If nothing is
// running or waiting, it admits the request whatever is predicted. The caller MUST call Leave.
func (d *Dispatcher) Admit(kind Kind, size int, deadline time.Time) (*Place, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, until := time.Since(d.start), deadline.Sub(d.start)
	work, price := d.admission.Admit(kind, size, now, until)
	p := &Place{d: d, work: work}
	if d.rec.On() {
		d.recorded++
		p.id = d.recorded
		d.rec.In("admit", p.id, int(kind), size)
		d.recordPrice(&price, now, until)
	}
	if price.Late > 0 {
		return nil, &ShedError{After: price.Late}
	}
	return p, nil
}

// Leave ends the place.
func (p *Place) Leave() {
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Since(d.start)
	delay := d.admission.Leave(&p.work, now)
	if d.rec.On() {
		d.rec.In("leave", p.id, now)
		if delay != 0 {
			d.rec.In("delay", delay)
		}
	}
}

// enter decides about a job of a place. The caller holds the lock.
func (d *Dispatcher) enter(p *Place, job *schedule.Job) error {
	now := time.Since(d.start)
	price, decided := d.admission.Enter(&p.work, d.model.Predict(job.Rows, job.Keys, 1), now, job.Deadline)
	if decided && d.rec.On() {
		d.recordPrice(&price, now, job.Deadline)
	}
	if price.Late > 0 {
		return &ShedError{After: price.Late}
	}
	return nil
}

// correct sets the batcher's margins from the measured errors of predictions. The caller holds the lock.
func (d *Dispatcher) correct() {
	margin, answer := d.admission.Slack()
	if d.rec.On() {
		m := &d.model
		d.rec.Did("learnt", m.Fixed, m.Row, m.Square, m.Key, m.Request, margin, answer)
	}
	d.batcher.SetSlack(margin, answer)
}

// done records whether a job of the place was computed.
func (p *Place) done(err error) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.work.Done(err == nil)
}

// woke records how long after the end of its batch a caller continued.
func (d *Dispatcher) woke(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ms := float64(after) / float64(time.Millisecond)
	if d.rec.On() {
		d.rec.In("woke", ms)
	}
	d.admission.Woke(ms)
}
