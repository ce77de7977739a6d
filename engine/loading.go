package engine

import (
	"context"
	"sync"
	"time"

	"grebe/internal/record"
	"grebe/kv"
)

// Loading is what is on its way from a disk to stand in for parts of a job that blends. Layers that compute all tokens need none of
// it: the job takes its turn while it is read, and Take, when rows are chosen, has what came. What did not is computed like any other token.
//
// One goroutine reads: Next before each entry and Came after it, or Here where there is nothing to read, and End after the last. It keeps its
// references to what came until the job has ended; after Stop nobody waits for it. The other methods may be called by anybody at any time but
// for Take, which is the only one that writes to parts: that is for whoever computes the job.
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

// NewLoading returns what brings the KV of so many tokens, at a pace that reads before it had and that it adds to.
func NewLoading(tokens int, pace *Pace) *Loading {
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

// Near returns when all that is left is expected to come within a time, or as Wait does. A disk whose pace is not known yet, or that has
// not begun, is near when it has brought all.
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

// near reports whether the rest is expected within a time and, where it is not, after how long to ask again though nothing came; 0: never.
//
// What is being read is expected to take its share of the time that the pace says, but never less than it has taken already: one read that hangs
// is not about to end.
func (l *Loading) near(within time.Duration) (near bool, again time.Duration, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return true, 0, nil
	}
	token, _ := l.pace.State()
	begun, took := !l.since.IsZero(), time.Duration(0)
	if begun && l.reading > 0 {
		took = time.Since(l.since)
	}
	if token > 0 && begun {
		one, rest := time.Duration(token*float64(l.reading)), time.Duration(token*float64(l.left-l.reading))
		near = rest+max(one-took, took) <= within
		if at := rest + one - within; !near && at > took && 2*at <= one {
			again = at - took
		}
	}
	if l.rec.On() {
		l.rec.In("rest", within, token, l.left, l.reading, begun, took)
		l.rec.Did("near", near, again)
	}
	if near {
		return true, 0, nil
	}
	return false, again, l.changed
}

// expect returns how long what is left takes at the pace so far, and whether that is known.
func (l *Loading) expect() (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pace.Expect(l.left)
}

// most returns how long a batch that has waited for some time waits for what is left, negative for not at all and 0 for as
// long as it takes: for the first layers, and for the share of its patience that the tokens left have among all.
func (l *Loading) most(patience, first, waited time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	most := patience
	if patience > 0 {
		share := max(1, time.Duration(float64(patience)*float64(l.left)/float64(max(l.all, 1))))
		if most = first + share - waited; most <= 0 { // 0 is for ever
			most = -1
		}
	}
	if l.rec.On() {
		l.rec.In("batch", patience, first, waited, l.left, l.all)
		l.rec.Did("most", most)
	}
	return most
}

// Take sets the entries of the parts that came, after it waited for all that comes, at most for a time unless that is 0. It returns
// how long it waited. It may be called again, and then adds what came since.
func (l *Loading) Take(parts []Part, most time.Duration) (waited time.Duration) {
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

// Pace is how long it takes to read entries from a disk. It is safe for concurrent use.
type Pace struct {
	mu    sync.Mutex
	token float64 // nanoseconds per token's KV; 0: nothing was read yet
	last  time.Time
	rec   *record.Room
}

// Record has it write what reads took, and the pace after each. It MUST be called before it is used.
func (p *Pace) Record(r *record.Room) { p.rec = r }

// paceMemory is how many tokens' KV tell half of the pace.
const paceMemory = 1024

// note counts a read.
func (p *Pace) note(tokens int, took time.Duration) {
	if tokens <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	one := max(float64(took)/float64(tokens), 1)
	weight := float64(tokens) / float64(tokens+paceMemory)
	if p.token == 0 {
		weight = 1
	}
	p.token += weight * (one - p.token)
	p.last = time.Now()
	if p.rec.On() {
		p.rec.In("read", tokens, took)
		p.rec.Did("pace", p.token)
	}
}

// State returns the nanoseconds per token, 0 before the first read, and how long ago the last read ended.
func (p *Pace) State() (token float64, age time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.token, time.Since(p.last)
}

// Expect returns how long so many tokens' KV takes, and whether that is known.
func (p *Pace) Expect(tokens int) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.token * float64(tokens)), p.token > 0
}

// loading returns what is on its way for a job; nil: nothing is.
func (j *Job) loading() *Loading {
	if j.Blend == nil {
		return nil
	}
	return j.Blend.Load
}

// Fetch waits for all that Blend.Load brings: the simple way, in which a job takes its turn when nothing is left to wait for.
func (j *Job) Fetch(ctx context.Context) error {
	if l := j.loading(); l != nil {
		return l.Wait(ctx)
	}
	return nil
}

// Approach waits until a job is to take its turn: until what is left of Blend.Load is expected to come within the time that the
// layers before the choice take. A batch then waits for a disk no longer than patience, which is more than nothing.
func (j *Job) Approach(ctx context.Context, first, patience time.Duration) error {
	l := j.loading()
	if l == nil {
		return nil
	}
	j.Blend.First, j.Blend.Patience = max(first, 0), max(patience, 1)
	return l.Near(ctx, first)
}

// Expects returns how long what is left of Blend.Load is expected to take, 0 where nothing is known of that.
func (j *Job) Expects() time.Duration {
	if l := j.loading(); l != nil {
		if d, known := l.expect(); known {
			return d
		}
	}
	return 0
}

// Hasten has a job take its turn though much of Blend.Load is missing: what comes while the layers before the choice are computed, which take
// about first, is used, and no batch waits for the rest.
func (j *Job) Hasten(first time.Duration) {
	if j.loading() != nil {
		j.Blend.First, j.Blend.Patience = max(first, 0), 1
	}
}

// Leave has nobody wait for what a job reads: whoever wanted the answer is gone.
func (j *Job) Leave() {
	if l := j.loading(); l != nil {
		l.Stop()
	}
}
