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
type Kind uint8

// Kinds of requests.
const (
	Single Kind = iota // one job
	Rounds             // jobs one after the other, as many as a search needs
	kinds
)

// Place is a request between its admission and its answer. Its work counts among what is ahead of others, also while it has
// no job in the queue: before the first, and between two.
type Place struct {
	d    *Dispatcher
	id   int // of those that were recorded
	kind Kind
	size float64
	left float64 // milliseconds that its jobs are still expected to take
	// spent is what its jobs were predicted to take.
	spent float64
	jobs  int
	// expected is how long after entered, when its first job came, the request was predicted to be answered, without any margin.
	entered, expected time.Duration
	answered          bool // a job of it was computed, and none failed
}

type placeKey struct{}

// Within returns a context whose jobs are the place's.
func (p *Place) Within(ctx context.Context) context.Context {
	return context.WithValue(ctx, placeKey{}, p)
}

// Admit takes a place for a request of a size, such as its number of candidates, before anything is computed for it. Where it is
// predicted to miss its deadline behind what waits, it returns a ShedError. When nothing is under way, the request is tried
// whatever is predicted. The caller MUST call Leave.
func (d *Dispatcher) Admit(kind Kind, size int, deadline time.Time) (*Place, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &Place{d: d, kind: kind, size: float64(max(1, size))}
	p.left = p.size * d.usual[kind].each
	own := p.left
	if kind == Single {
		own *= roughly // its job's size is not known yet
	}
	if d.rec.On() {
		d.recorded++
		p.id = d.recorded
		d.rec.In("admit", p.id, int(kind), size)
	}
	if _, err := d.inTimeFor(own, deadline.Sub(d.start)); err != nil {
		return nil, err
	}
	d.promised += p.left
	d.places++
	return p, nil
}

// roughly is the share of a request's usual time that is taken for granted before its job is known.
const roughly = .7

// Leave gives the place back.
func (p *Place) Leave() {
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rec.On() {
		d.rec.In("leave", p.id)
	}
	d.promised -= p.left
	p.left = 0
	if d.places--; d.places == 0 {
		d.promised = 0 // and no rounding errors
	}
	if p.jobs > 0 {
		d.usual[p.kind].observe(p.spent / p.size)
	}
	if p.answered && p.expected > 0 {
		delay := float64(time.Since(d.start)-p.entered) / float64(p.expected)
		if d.rec.On() {
			d.rec.In("delay", delay)
		}
		d.delays.Observe(delay)
	}
}

// usual is what requests of a kind take, in milliseconds per size.
type usual struct {
	each float64
	seen bool
}

func (u *usual) observe(each float64) {
	if !u.seen {
		u.each, u.seen = each, true
		return
	}
	u.each += (each - u.each) / 16
}

// enter decides on a job of a place, and counts it as no longer expected. Called with the lock held.
func (p *Place) enter(job *schedule.Job) error {
	d := p.d
	own := d.model.Predict(job.Rows, job.Keys, 1)
	if p.jobs == 0 {
		takes := own
		if p.kind == Rounds {
			takes = max(own, p.left)
		}
		d.promised -= p.left
		d.places--
		expected, err := d.inTimeFor(takes, job.Deadline)
		p.entered, p.expected = time.Since(d.start), expected
		d.promised += p.left
		d.places++
		if err != nil {
			return err
		}
	}
	rest := 0.0
	if p.kind == Rounds {
		rest = max(0, p.left-own)
	}
	d.promised += rest - p.left
	p.left = rest
	p.jobs++
	p.spent += own
	return nil
}

// inTimeFor predicts how long it takes until work of so many milliseconds is answered, behind what is under way. It returns a ShedError
// where that is too late for the deadline, with what predictions were off by so far. Called with the lock held.
func (d *Dispatcher) inTimeFor(own float64, deadline time.Duration) (time.Duration, error) {
	now := time.Since(d.start)
	ms := own + d.promised
	for _, end := range d.ends {
		ms += float64(max(0, end-now)) / float64(time.Millisecond)
	}
	ahead := float64(d.batcher.Ahead(deadline))/(1+d.batcher.Margin()) + ms*float64(time.Millisecond)
	takes := time.Duration(ahead) / time.Duration(len(d.engines))
	factor := min(max(d.delays.Value(), 1+leastDelay), 1+mostDelay)
	late := now + time.Duration(factor*float64(takes)) + d.batcher.Answer() - deadline
	if d.busy == 0 && len(d.waiting) == 0 && d.places == 0 {
		late = 0
	}
	if d.rec.On() {
		d.rec.In("price", own, deadline, now)
		d.rec.Did("takes", takes, max(0, late))
	}
	if late <= 0 {
		return takes, nil
	}
	return takes, &ShedError{After: late}
}

// Bounds of what predictions are given on top.
const (
	leastMargin, mostMargin = .05, 1 // of batches
	leastDelay, mostDelay   = .15, 3 // of requests, behind others
	// sending is for making an answer, and for the network between the client and the server.
	sending = 2 * time.Millisecond
)

// correct has the batcher allow for how far predictions were off, and for how long goroutines wait for a core: once to read a
// request and once to write its answer. Called with the lock held.
func (d *Dispatcher) correct() {
	margin := min(max(d.errors.Value()-1, leastMargin), mostMargin)
	wake := time.Duration(d.wakeups.Value() * float64(time.Millisecond))
	if d.rec.On() {
		m := &d.model
		d.rec.Did("learnt", m.Fixed, m.Row, m.Square, m.Key, m.Request, margin, 2*wake+sending)
	}
	d.batcher.SetSlack(margin, 2*wake+sending)
}

// done notes whether a job of the place was computed.
func (p *Place) done(err error) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.answered = err == nil && (p.answered || p.jobs == 1)
}

// woke notes how long after the end of its batch a caller went on.
func (d *Dispatcher) woke(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ms := float64(after) / float64(time.Millisecond)
	if d.rec.On() {
		d.rec.In("woke", ms)
	}
	d.wakeups.Observe(ms)
}
