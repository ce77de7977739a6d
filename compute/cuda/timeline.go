package cuda

import (
	"time"

	"grebe/compute/cuda/driver"
)

// Phase is a part of a search, as Timeline returns it.
type Phase struct {
	Name string
	// Host is when the host had put the phase into the stream, Device when the GPU had done it. Both count from the begin
	// of the search on the host.
	Host, Device time.Duration
}

// timeline has the phases of the last search. Its events cost a few microseconds each, so it is off by default.
type timeline struct {
	on     bool
	began  time.Time
	events []*driver.Event // the first is at the begin
	phases []Phase
}

// Trace switches measuring the phases of searches on or off.
func (r *runner) Trace(on bool) { r.search.times.on = on }

// Timeline returns the phases of the last search that was found.
func (r *runner) Timeline() []Phase { return r.search.times.phases }

// mark notes that a phase was put into the stream. The first of a search is its begin.
func (r *runner) mark(phase string) error {
	t := &r.search.times
	if !t.on {
		return nil
	}
	n := len(t.phases)
	if n == len(t.events) {
		e, err := r.dev.c.NewEvent(true)
		if err != nil {
			return err
		}
		t.events = append(t.events, e)
	}
	if n == 0 {
		t.began = time.Now()
	}
	t.phases = append(t.phases, Phase{Name: phase, Host: time.Since(t.began)})
	return t.events[n].Record(r.stream)
}

// read asks for the times of the GPU. Its work is done.
func (t *timeline) read() error {
	if !t.on || len(t.phases) == 0 {
		return nil
	}
	base := t.phases[0].Host
	for i := range t.phases {
		took, err := t.events[i].Since(t.events[0])
		if err != nil {
			return err
		}
		t.phases[i].Device = base + took
	}
	return nil
}

func (t *timeline) close() {
	for _, e := range t.events {
		_ = e.Close()
	}
	t.events = nil
}
