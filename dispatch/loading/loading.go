// Package loading brings KV from a disk beside the requests that want it. Package schedule decides how long anybody waits.
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

// Loading is KV on its way from a disk to parts of a job that blends. It is an engine.Load: the job takes its turn while it
// is read, and Take, when rows are chosen, has what came.
//
// One goroutine reads. It calls Next before each entry and Came after it, or Here where there is nothing to read, and End after
// the last. It keeps its references to what came until the job has ended; after Stop nobody waits for it. The other methods may
// be called by anybody at any time but for Take, which is for whoever computes the job: it writes to parts.
type Loading struct {
	pace *Pace
	stop chan struct{} // closed: nobody wants more

	mu      sync.Mutex
	changed chan struct{} // closed, and made anew, when something came
	came    []arrival     // that was not taken yet
	all     int           // tokens
	left    int           // of these, those whose KV is not here yet
	reading int           // of these, tokens of what is read now; 0: nothing is
	since   time.Time     // when that began
	ended   bool
	stopped bool

	rec *record.Room
}

// arrival is an entry that came, for some parts.
type arrival struct {
	entry *kv.Entry
	parts []int
}

// New returns what brings the KV of so many tokens, at a pace that reads before it had and that it adds to.
func New(tokens int, pace *Pace) *Loading {
	return &Loading{pace: pace, stop: make(chan struct{}), changed: make(chan struct{}), all: tokens, left: tokens}
}

// Record has it write what comes and how long it waits. It MUST be called before it is used.
func (l *Loading) Record(r *record.Room) {
	l.rec = r
	l.rec.In("wants", l.all)
}

// Next begins to read an entry of so many tokens. It reports whether anybody wants it.
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

// Came ends what Next began: the entry is to stand in for some parts. It is nil when it could not be read, or is nowhere any more.
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

// Here is an entry of so many tokens that was in memory: somebody else brought it.
func (l *Loading) Here(tokens int, e *kv.Entry, parts []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rec.On() {
		l.rec.In("here", tokens)
	}
	l.arrive(tokens, e, parts)
}

// arrive notes an entry, or that there is none. The lock is held.
func (l *Loading) arrive(tokens int, e *kv.Entry, parts []int) {
	if e != nil {
		l.came = append(l.came, arrival{e, parts})
	}
	l.left, l.reading = l.left-tokens, 0
	l.change()
}

// End says that no more comes.
func (l *Loading) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rec.On() {
		l.rec.In("end")
	}
	l.ended, l.left, l.reading = true, 0, 0
	l.change()
}

// Stop has nobody wait for what did not come, and nothing more be read.
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

// Stopped is closed by Stop.
func (l *Loading) Stopped() <-chan struct{} { return l.stop }

// change wakes all who wait. The lock is held.
func (l *Loading) change() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Wait returns when all has come that will, or the context has ended.
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

// Near returns when all that is left is expected to come within a time, or as Wait does. A disk whose pace is not known yet,
// or that has not begun, is near when it has brought all.
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

// near reports whether the rest is expected within a time and, where it is not, after how long to ask again though nothing
// came; 0: not before something changed.
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

// Expect returns how long the rest is expected to take, 0 where nothing is known of that.
func (l *Loading) Expect() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	pace, _ := l.pace.State()
	d, _ := pace.Expect(l.left)
	return d
}

// most returns how long a batch waits for the rest, negative for not at all and 0 for as long as it takes.
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

// Take sets the entries of the parts that came, after it waited for all that comes, no longer than w allows. It returns how
// long it waited. It may be called again, and then adds what came since.
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
		_ = l.Wait(ctx) // what did not come by then is computed
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
			if part := &parts[p]; part.First+part.Tokens <= a.entry.Len() { // another one cannot be what is wanted
				part.Entry = a.entry
			}
		}
	}
	l.came = l.came[:0]
	return waited
}
