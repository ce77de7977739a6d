// Package loading reads KV from a disk for requests while they wait. Package schedule decides how long they wait.
package loading

import (
	"context"
	"sync"
	"time"

	"grebe/engine"
	"grebe/internal/record"
	"grebe/kv"
	"grebe/schedule"
)

// Loading is KV that is being read from a disk for parts of a job that blends. It implements engine.Load: the job waits
// for its turn during the read. When rows are chosen, Take returns what has arrived.
//
// One goroutine reads. It calls Next before each entry and Came after it, or Here if the entry is in memory, and End
// after the last. It keeps its references to the entries until the job has ended. After Stop nobody waits for it. The
// other methods may be called at any time, but only the engine that computes the job may call Take, which writes to
// parts.
type Loading struct {
	pace *Pace
	stop chan struct{} // closed: no more is wanted

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each arrival
	came    []arrival     // arrivals not yet taken
	all     int           // tokens
	left    int           // of these, tokens whose KV has not arrived
	reading int           // of these, tokens of the entry that is being read; 0: none
	since   time.Time     // when that read began
	ended   bool
	stopped bool

	rec *record.Room
}

// arrival is an entry that has arrived, for some parts.
type arrival struct {
	entry *kv.Entry
	parts []int
}

// New returns a Loading for the KV of a number of tokens. It uses the pace of earlier reads and updates it.
func New(tokens int, pace *Pace) *Loading {
	return &Loading{pace: pace, stop: make(chan struct{}), changed: make(chan struct{}), all: tokens, left: tokens}
}

// Record makes it record arrivals and waits. It MUST be called before first use.
func (l *Loading) Record(r *record.Room) {
	l.rec = r
	l.rec.In("wants", l.all)
}

// Next begins a read of an entry with that number of tokens. It reports whether the entry is still wanted.
func (l *Loading) Next(tokens int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	l.reading, l.since = tokens, time.Now()
	if l.rec.On() {
		l.rec.In("next", tokens)
	}
	l.change()
	return true
}

// Came ends the read that Next began. The entry replaces some parts. It is nil if it could not be read or no longer
// exists.
func (l *Loading) Came(e *kv.Entry, parts []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	took := time.Since(l.since)
	if l.rec.On() {
		l.rec.In("came", l.reading, e != nil, took)
	}
	if e != nil {
		l.pace.note(l.reading, took)
	}
	l.arrive(l.reading, e, parts)
}

// Here adds an entry that is already in memory, because another request has read it.
func (l *Loading) Here(tokens int, e *kv.Entry, parts []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rec.On() {
		l.rec.In("here", tokens)
	}
	l.arrive(tokens, e, parts)
}

// arrive records an entry, or that there is none. The caller holds the lock.
func (l *Loading) arrive(tokens int, e *kv.Entry, parts []int) {
	if e != nil {
		l.came = append(l.came, arrival{e, parts})
	}
	l.left, l.reading = l.left-tokens, 0
	l.change()
}

// End says that nothing more will arrive.
func (l *Loading) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rec.On() {
		l.rec.In("end")
	}
	l.ended, l.left, l.reading = true, 0, 0
	l.change()
}

// Stop ends all waits for entries that have not arrived, and all further reads.
func (l *Loading) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped {
		l.stopped = true
		if l.rec.On() {
			l.rec.In("stop")
		}
		close(l.stop)
	}
}

// Stopped returns a channel that Stop closes.
func (l *Loading) Stopped() <-chan struct{} { return l.stop }

// change wakes all waiters. The caller holds the lock.
func (l *Loading) change() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Wait returns when everything that will arrive has arrived, or the context has ended.
func (l *Loading) Wait(ctx context.Context) error {
	for {
		ended, changed := l.state()
		if ended {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.stop:
			return nil
		case <-changed:
		}
	}
}

func (l *Loading) state() (ended bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended, l.changed
}

// Near returns when the rest is expected within a time, or as Wait does. If the pace of the disk is unknown, or it has
// not begun, Near waits for everything.
func (l *Loading) Near(ctx context.Context, within time.Duration) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		near, again, changed := l.near(within)
		if near {
			return nil
		}
		var due <-chan time.Time
		if again > 0 {
			timer.Reset(again)
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.stop:
			return nil
		case <-changed:
		case <-due:
		}
	}
}

// near reports whether the rest is expected within a time. If not, it returns after how long to ask again even if
// nothing arrives; 0: not before a change.
func (l *Loading) near(within time.Duration) (near bool, again time.Duration, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return true, 0, nil
	}
	pace, _ := l.pace.State()
	r := schedule.Reading{Left: l.left, Now: l.reading, Begun: !l.since.IsZero()}
	if l.reading > 0 {
		r.Took = time.Since(l.since)
	}
	near, again = pace.Near(&r, within)
	if l.rec.On() {
		l.rec.In("rest", within, pace.Token, r.Left, r.Now, r.Begun, r.Took)
		l.rec.Did("near", near, again)
	}
	return near, again, l.changed
}

// Expect returns how long the rest is expected to take, or 0 if unknown.
func (l *Loading) Expect() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	pace, _ := l.pace.State()
	d, _ := pace.Expect(l.left)
	return d
}

// most returns how long a batch waits for the rest. Negative means not at all, 0 means without a limit.
func (l *Loading) most(w engine.Wait) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := schedule.BatchWait(w.Patience, w.First, w.Waited, l.left, l.all)
	if l.rec.On() {
		l.rec.In("batch", w.Patience, w.First, w.Waited, l.left, l.all)
		l.rec.Did("most", most)
	}
	return most
}

// Take waits for the rest, no longer than w allows, and sets the entries of the parts that have arrived. It returns how
// long it waited. A further call adds later arrivals.
func (l *Loading) Take(parts []engine.Part, w engine.Wait) (waited time.Duration) {
	most := l.most(w)
	start := time.Now()
	ctx := context.Background()
	if most != 0 {
		within, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		ctx = within
	}
	if ended, _ := l.state(); !ended {
		_ = l.Wait(ctx) // the rest is computed
		waited = time.Since(start)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rec.On() {
		l.rec.In("take", most, waited)
		l.rec.Did("took", len(l.came), l.left)
	}
	for _, a := range l.came {
		for _, p := range a.parts {
			if part := &parts[p]; part.First+part.Tokens <= a.entry.Len() { // a shorter entry is not the one wanted
				part.Entry = a.entry
			}
		}
	}
	l.came = l.came[:0]
	return waited
}
