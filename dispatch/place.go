package dispatch

import (
	"context"
	"fmt"
	"time"

	"grebe/schedule"
)

// ShedError refuses a request that is predicted to miss its deadline. It is an ErrShed.
type ShedError struct {
	After time.Duration // when a request like it is predicted to be answered in time
}

func (e *ShedError) Error() string {
	return fmt.Sprintf("%v: ask again in %v", ErrShed, e.After.Round(time.Millisecond))
}

// Unwrap makes it an ErrShed.
func (e *ShedError) Unwrap() error { return ErrShed }

// Kind tells requests apart whose times are alike.
type Kind = schedule.Kind

// Kinds of requests.
const (
	Single = schedule.Single // one job
	Rounds = schedule.Rounds // jobs one after the other, as many as a search needs
)

// Place is a request between its admission and its answer. Its work counts among what is ahead of others, also while it has
// no job in the queue: before the first, and between two.
type Place struct {
	d    *Dispatcher
	id   int // of those that were recorded
	work schedule.Place
}

type placeKey struct{}

// Within returns a context whose jobs are the place's.
func (p *Place) Within(ctx context.Context) context.Context {
	return context.WithValue(ctx, placeKey{}, p)
}

// Admit takes a place for a request of a size, such as its number of candidates, before anything is computed for it. Where it
// is predicted to miss its deadline behind what waits, it returns a ShedError. When nothing is under way, the request is tried
// whatever is predicted. The caller MUST call Leave.
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

// Leave gives the place back.
func (p *Place) Leave() {
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	delay := d.admission.Leave(&p.work, time.Since(d.start))
	if d.rec.On() {
		d.rec.In("leave", p.id)
		if delay != 0 {
			d.rec.In("delay", delay)
		}
	}
}

// enter decides on a job of a place. Called with the lock held.
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

// correct has the batcher allow for how far predictions were off. Called with the lock held.
func (d *Dispatcher) correct() {
	margin, answer := d.admission.Slack()
	if d.rec.On() {
		m := &d.model
		d.rec.Did("learnt", m.Fixed, m.Row, m.Square, m.Key, m.Request, margin, answer)
	}
	d.batcher.SetSlack(margin, answer)
}

// done notes whether a job of the place was computed.
func (p *Place) done(err error) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.work.Done(err == nil)
}

// woke notes how long after the end of its batch a caller went on.
func (d *Dispatcher) woke(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ms := float64(after) / float64(time.Millisecond)
	if d.rec.On() {
		d.rec.In("woke", ms)
	}
	d.admission.Woke(ms)
}
