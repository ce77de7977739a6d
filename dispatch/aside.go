package dispatch

import (
	"context"
	"slices"
	"time"

	"grebe/engine"
)

// Pauser is an engine whose batches give way to others. engine.Engine implements it.
type Pauser interface {
	RunPausing(jobs []*engine.Job, out []engine.Outcome, pause func())
}

// aside are jobs that run in the background, one at a time on each engine. Dispatcher.mu guards the list.
type aside struct {
	engines []Pauser // by engine; nil: there are none
	waiting []*call  // in order of arrival
	most    int      // of them
}

type backgroundKey struct{}

// Background returns a context whose jobs run in the background: while no other job has a batch to run, first come
// first served. Their batches pause between layers for others, so another job waits for a part of a layer at most. They
// count in no prediction. A Dispatcher without Options.Aside runs them like any others.
func Background(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

// InBackground reports whether jobs of a context run in the background.
func InBackground(ctx context.Context) bool { return ctx.Value(backgroundKey{}) != nil }

// Pauses reports whether jobs can run in the background.
func (d *Dispatcher) Pauses() bool { return d != nil && d.aside.engines != nil }

// doAside is Do for a job in the background. It waits for all of the job's reads first.
func (d *Dispatcher) doAside(ctx context.Context, j *engine.Job) (*engine.Result, error) {
	if l := reads(j); l != nil {
		_ = l.Wait(ctx)
	}
	if err := ended(ctx); err != nil {
		return nil, err
	}
	if j.Meanwhile != nil {
		j.Meanwhile()
	}
	c := &call{job: j, queued: time.Now(), done: make(chan struct{}, 1)}
	if err := d.addAside(c); err != nil {
		return nil, err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if d.removeAside(c) {
			return nil, ended(ctx)
		}
		<-c.done // it runs, and uses the job's memory until it ends
	}
	return j.Deliver(&c.out)
}

func (d *Dispatcher) addAside(c *call) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return engine.ErrClosed
	case len(d.aside.waiting) >= d.aside.most:
		return ErrQueueFull
	}
	d.aside.waiting = append(d.aside.waiting, c)
	d.signal()
	return nil
}

// removeAside removes a job that has not begun. It returns false if there is none.
func (d *Dispatcher) removeAside(c *call) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.Index(d.aside.waiting, c)
	if i >= 0 {
		d.aside.waiting = slices.Delete(d.aside.waiting, i, i+1)
	}
	return i >= 0
}

// closeAside fails the jobs that wait. The caller holds the lock.
func (d *Dispatcher) closeAside() {
	for _, c := range d.aside.waiting {
		c.out.Err = engine.ErrClosed
		c.done <- struct{}{}
	}
	d.aside.waiting = nil
}

// takeAside takes the next job in the background, or returns nil.
func (d *Dispatcher) takeAside() *call {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.aside.waiting) == 0 {
		return nil
	}
	c := d.aside.waiting[0]
	d.aside.waiting = slices.Delete(d.aside.waiting, 0, 1)
	return c
}

// runAside runs a job in the background, and the batches of others while it pauses. It returns false if there is none.
// Its time says nothing of batches, so nothing is learned from it.
func (d *Dispatcher) runAside(e Engine, b *batch, n int) bool {
	c := d.takeAside()
	if c == nil {
		return false
	}
	start := time.Now()
	own := batch{calls: []*call{c}, jobs: []*engine.Job{c.job}, out: make([]engine.Outcome, 1)}
	d.run(&own, func(jobs []*engine.Job, out []engine.Outcome) {
		d.aside.engines[n].RunPausing(jobs, out, func() { d.giveWay(e, b, n) })
	})
	d.watch(own.out)
	c.out = own.out[0]
	c.out.Queue = start.Sub(c.queued)
	c.done <- struct{}{}
	return true
}

// giveWay runs the batches that are due.
func (d *Dispatcher) giveWay(e Engine, b *batch, n int) {
	for d.anyWaits() {
		d.turn(n).take()
		if _, open := d.take(b, n); !open || len(b.calls) == 0 {
			d.turn(n).give()
			return
		}
		d.serve(e, b, n)
	}
}

// anyWaits reports whether a job waits that is not in the background.
func (d *Dispatcher) anyWaits() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting) > 0
}
