package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"grebe/cluster/coord"
)

// Options of a job's election.
type Options struct {
	Key  string        // of the election, such as leader/placement
	Self string        // this process; MUST be unique to its start, such as n1/3f9c
	TTL  time.Duration // after which another process takes over; the same for all; default 10 s
	Log  *slog.Logger  // nil: none
}

// Validate checks the options.
func (o Options) Validate() error {
	if o.Self == "" {
		return errors.New("leader: a process without a name")
	}
	if o.TTL < 0 || o.TTL > 0 && o.TTL < 100*time.Millisecond {
		return fmt.Errorf("leader: ttl %v is shorter than 100 ms", o.TTL)
	}
	return coord.Check(o.Key, nil)
}

// Term is a time in which this process leads.
type Term struct {
	Number int64
	c      coord.Coordinator

	mu     sync.Mutex
	until  time.Time
	higher int64 // a higher term that was found in an object
}

// Leading reports whether the term lasts, by this process's clock.
func (t *Term) Leading() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Now().Before(t.until)
}

func (t *Term) extend(until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = until
}

func (t *Term) found(higher int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.higher = max(t.higher, higher)
}

// Run takes part in an election until ctx ends. While this process leads, lead runs: it claims what it will write and
// then acts. Its context ends with the term, and it MUST return soon after that. If it returns by itself, the process
// resigns and waits a ttl. Run returns after lead has.
func Run(ctx context.Context, c coord.Coordinator, o Options, lead func(context.Context, *Term) error) error {
	if o.TTL == 0 {
		o.TTL = 10 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := o.Validate(); err != nil {
		return err
	}
	r := &runner{c: c, o: o, e: NewElection(o.Self, o.TTL), lead: lead}
	for ctx.Err() == nil {
		won := r.stand(ctx)
		if won && r.serve(ctx) && !sleep(ctx, o.TTL) {
			break
		}
	}
	return nil
}

type runner struct {
	c    coord.Coordinator
	o    Options
	e    *Election
	lead func(context.Context, *Term) error
}

// stand reads the key until this process leads. It returns false if ctx ended.
func (r *runner) stand(ctx context.Context) bool {
	for {
		r.look(ctx)
		if r.write(ctx) {
			return true
		}
		if !sleep(ctx, time.Until(r.e.Wake(time.Now()))) {
			return false
		}
	}
}

// look reads the key. If the coordinator does not answer, what was seen last stays: the version guards against writing
// over a change.
func (r *runner) look(ctx context.Context) {
	entry, err := r.c.Get(ctx, r.o.Key)
	if err != nil {
		r.o.Log.Debug("cannot read the election", "key", r.o.Key, "error", err)
		return
	}
	var seen Record
	if entry.Version != 0 {
		if seen, err = parse(entry.Data); err != nil {
			r.o.Log.Error("nobody can lead: delete the key", "key", r.o.Key, "error", err)
			return
		}
	}
	r.e.Saw(time.Now(), seen, entry.Version)
}

// write sends what the election wants to write, and returns whether that was answered with success.
func (r *runner) write(ctx context.Context) bool {
	sent := time.Now()
	record, expected, ok := r.e.Next(sent)
	if !ok {
		return false
	}
	r.e.Trying(sent)
	version, err := r.c.Swap(ctx, r.o.Key, record.bytes(), expected, nil)
	if err != nil {
		r.o.Log.Debug("cannot write the election", "key", r.o.Key, "error", err)
		return false
	}
	r.e.Wrote(sent, time.Now(), record, version)
	return true
}

// serve leads and renews until the term ends. It returns whether lead returned by itself.
func (r *runner) serve(ctx context.Context) bool {
	now := time.Now()
	t := &Term{Number: r.e.Leading(now), c: r.c, until: r.e.Until()}
	if t.Number == 0 {
		return false // the answer took longer than the term
	}
	r.o.Log.Info("leading", "key", r.o.Key, "term", t.Number)
	leading, end := context.WithCancel(ctx)
	defer end()
	done := make(chan error, 1)
	go func() { done <- r.lead(leading, t) }()
	err, alone := r.renew(leading, t, done)
	if !alone {
		end()
		err = <-done
	}
	r.ended(ctx, t, err, alone)
	t.mu.Lock()
	r.e.Raise(t.higher)
	t.mu.Unlock()
	r.resign(ctx)
	return alone
}

// ended logs the end of a term, unless ctx ended it. err is what lead returned, and alone says whether by itself.
func (r *runner) ended(ctx context.Context, t *Term, err error, alone bool) {
	switch {
	case ctx.Err() != nil:
		r.o.Log.Debug("no longer leading", "key", r.o.Key, "term", t.Number)
		return
	case err == nil && alone:
		err = errors.New("leader: the job has ended")
	case !alone && (err == nil || errors.Is(err, context.Canceled)):
		err = errors.New("leader: the term was not renewed in time, or another process leads")
	}
	r.o.Log.Warn("no longer leading", "key", r.o.Key, "term", t.Number, "error", err)
}

// renew keeps the term until it ends, or lead returns: then it returns lead's error and true.
func (r *runner) renew(ctx context.Context, t *Term, done <-chan error) (error, bool) {
	for r.e.Leading(time.Now()) != 0 {
		timer := time.NewTimer(time.Until(r.e.Wake(time.Now())))
		select {
		case err := <-done:
			timer.Stop()
			return err, true
		case <-ctx.Done():
			timer.Stop()
			return nil, false
		case <-timer.C:
		}
		attempt, cancel := context.WithDeadline(ctx, r.e.Until()) // a call that is not answered must not delay the term's end
		if !r.write(attempt) {
			r.look(attempt) // someone may have taken over, or our last write was not answered
		}
		cancel()
		t.extend(r.e.Until())
	}
	return nil, false
}

// resign lets others take over at once, if they can be told.
func (r *runner) resign(ctx context.Context) {
	record, expected, ok := r.e.Resign()
	if !ok {
		return
	}
	brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(time.Second, r.o.TTL/3))
	defer cancel()
	if _, err := r.c.Swap(brief, r.o.Key, record.bytes(), expected, nil); err != nil {
		r.o.Log.Debug("resign", "key", r.o.Key, "error", err)
	}
}

// sleep returns false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
