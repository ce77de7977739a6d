// Package dispatch connects requests and engines: a bounded queue, batches as package schedule decides them, and one
// goroutine per engine.
//
// Engines pull. A free engine asks the Batcher for its next batch, so load spreads by itself. A request that cannot
// meet its deadline leaves the queue without computing. The time of each batch updates the model of prefill times that
// decisions use. If an engine panics, the jobs of its batch fail with ErrPanicked and the engine continues with the
// next batch.
//
// Admit refuses a request before any work is done for it, if it is predicted to miss its deadline because of the work
// ahead of it. Predictions include a margin for their own measured error, and the time for the answer to reach the
// client.
//
// A job may wait for blocks that are read from a disk. Its first layers need none of them. So it joins the queue when
// the blocks are expected by the time these layers are computed. It waits for the disk or for these layers, whichever
// takes longer, and other jobs of its batch do not wait for the disk. If the disk is slower than expected, the batch
// waits no longer than it takes to compute the missing blocks, and then computes them. If the disk hangs, the job joins
// the queue without the rest while it can still meet its deadline. If reading is known to take far longer than
// computing, the job joins the queue at once, and uses only the blocks that arrive in time.
//
// If there are several engines, a job may need KV that a batch on another engine is computing. It then stays in the
// queue until that batch ends, if that is predicted to be sooner than computing the KV once more. If the batch fails,
// the job computes the KV.
//
// Package schedule decides all of this. A Dispatcher calls it under its lock, with the time, and carries out its
// decisions.
//
// Lock order: Dispatcher.mu is a leaf.
package dispatch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"grebe/dispatch/loading"
	"grebe/engine"
	"grebe/internal/contain"
	"grebe/internal/record"
	"grebe/schedule"
)

// Errors that callers branch on.
var (
	ErrQueueFull = errors.New("dispatch: the queue is full")
	ErrExpired   = errors.New("dispatch: the deadline passed in the queue")
	ErrShed      = errors.New("dispatch: the deadline cannot be met")
	ErrPanicked  = errors.New("dispatch: the engine panicked")
)

// Engine computes batches. engine.Engine implements it.
type Engine interface {
	Check(*engine.Job) (engine.Cost, error)
	Run([]*engine.Job, []engine.Outcome)
	MaxTokens() int
}

// Options configure a Dispatcher. Zero means the default.
type Options struct {
	Queue int           // most requests that wait; 1024
	SLO   time.Duration // target latency of batches; 200 ms
	Model schedule.PrefillModel
	// Like is a Dispatcher whose jobs take the same times: what it learned of them is taken over, in place of Model; nil:
	// there is none.
	Like *Dispatcher
	// ReadAhead makes a job join the queue only after all its reads from disk have ended, so that none overlaps its own
	// layers.
	ReadAhead bool
	// Lost is called once, when an engine's device is lost (engine.ErrLost). The engine does no more work, and jobs
	// fail from then on. Lost MUST return soon. It may be nil.
	Lost func(error)
	// Panicked is called with the panic of an engine. It MUST return soon. It may be nil.
	Panicked func(*contain.Panic)
	// Aside has one engine for each of the others, on the same device, with memory of its own. It runs jobs in the
	// background, between batches and between their layers: see Background. Nil: there are no such jobs.
	Aside []Pauser
	// Turns has, for each engine, those of the device that it shares with engines of other Dispatchers. Nil: they share
	// no device.
	Turns []*Turns
	// Record records inputs and decisions; nil: nothing is recorded.
	Record *record.Room
}

// Dispatcher queues jobs and runs them in batches.
type Dispatcher struct {
	engines []Engine
	ahead   bool      // see Options.ReadAhead
	start   time.Time // the epoch of the Batcher's times
	wg      sync.WaitGroup
	calls   sync.Pool // unused *call
	lost    func(error)
	losing  sync.Once
	alarm   func(*contain.Panic)
	rec     *record.Room
	aside   aside
	turns   []*Turns

	mu      sync.Mutex
	batcher *schedule.Batcher
	tuner   *schedule.Tuner
	model   schedule.PrefillModel // the tuner's current model
	waiting map[uint64]*call
	next    uint64
	queued  engine.Cost // of all waiting jobs
	closed  bool

	admission *schedule.Admission
	claims    map[*engine.Underway]int // KV that running batches compute, and on which engine; nil if there is only one
	wakes     []chan struct{}          // by engine: holds a token if its goroutine may have work to do
	recorded  int                      // places recorded so far
}

// call is a job that is waiting or running.
type call struct {
	job    *engine.Job
	cost   engine.Cost
	queued time.Time
	ended  time.Time // when its batch ended
	out    engine.Outcome
	done   chan struct{} // receives one value when out is set
	await  await
}

// New starts one goroutine per engine. The caller MUST Close the Dispatcher, before the engines.
func New(engines []Engine, opt Options) (*Dispatcher, error) {
	if len(engines) == 0 {
		return nil, errors.New("dispatch: no engine")
	}
	if opt.Queue == 0 {
		opt.Queue = 1024
	}
	if opt.SLO == 0 {
		opt.SLO = 200 * time.Millisecond
	}
	if opt.Like != nil {
		opt.Model = opt.Like.Model()
	}
	cfg := schedule.DefaultBatcher(opt.Queue, opt.SLO)
	cfg.MaxRows = mostRows(engines[0])
	b, err := schedule.NewBatcher(cfg, opt.Model)
	if err != nil {
		return nil, fmt.Errorf("dispatch: %w", err)
	}
	tuner, err := schedule.NewTuner(opt.Model, tunerMemory)
	if err != nil {
		return nil, fmt.Errorf("dispatch: %w", err)
	}
	d := &Dispatcher{
		engines: engines, ahead: opt.ReadAhead, start: time.Now(), batcher: b, tuner: tuner, lost: opt.Lost,
		alarm: opt.Panicked, turns: opt.Turns,
		waiting: map[uint64]*call{}, model: tuner.Model(), admission: schedule.NewAdmission(b, len(engines)), rec: opt.Record,
	}
	if d.aside.engines = opt.Aside; opt.Aside != nil && len(opt.Aside) != len(engines) {
		return nil, fmt.Errorf("dispatch: %d engines for jobs in the background, want %d", len(opt.Aside), len(engines))
	}
	if opt.Turns != nil && len(opt.Turns) != len(engines) {
		return nil, fmt.Errorf("dispatch: turns of %d engines, want %d", len(opt.Turns), len(engines))
	}
	d.aside.most = opt.Queue
	if opt.Like != nil {
		d.learn(opt.Like)
		cfg.Margin, cfg.Answer = d.admission.Slack()
		b.SetSlack(cfg.Margin, cfg.Answer)
	}
	if len(engines) > 1 {
		d.claims = map[*engine.Underway]int{}
	}
	d.recordOpen(&cfg)
	for range engines {
		d.wakes = append(d.wakes, make(chan struct{}, 1))
	}
	for i, e := range engines {
		d.wg.Add(1)
		go d.work(e, i)
	}
	return d, nil
}

// learn takes over what another Dispatcher learned. Nothing uses d yet.
func (d *Dispatcher) learn(from *Dispatcher) {
	from.mu.Lock()
	defer from.mu.Unlock()
	d.admission.Learn(from.admission)
}

// mostRows returns the most rows of a batch: as many as the engine takes, or as many as it was prepared for if it
// prepares. A new size costs such a device seconds.
func mostRows(e Engine) int {
	if s, ok := e.(sized); ok && len(s.Sizes(prepared)) > 0 {
		return min(prepared, e.MaxTokens())
	}
	return e.MaxTokens()
}

// tunerMemory is the number of batches that the model of prefill times remembers.
const tunerMemory = 256

// Do queues a job and waits for its result. The context's deadline is the job's. If the context ends while the job
// waits, the job leaves the queue. A job with reads from a disk joins the queue when these are nearly done.
func (d *Dispatcher) Do(ctx context.Context, j *engine.Job) (*engine.Result, error) {
	cost, err := d.engines[0].Check(j)
	if err != nil {
		return nil, err
	}
	if err := ended(ctx); err != nil {
		return nil, err
	}
	if d.aside.engines != nil && InBackground(ctx) {
		return d.doAside(ctx, j)
	}
	c, _ := d.calls.Get().(*call)
	if c == nil {
		c = &call{done: make(chan struct{}, 1)}
	}
	c.job, c.cost, c.queued = j, cost, time.Now() // its time in the queue counts from now, even while it waits for reads
	if err := d.approach(ctx, c); err != nil {
		c.job = nil
		d.calls.Put(c)
		return nil, err
	}
	id, err := d.add(ctx, c)
	if err != nil {
		return nil, err
	}
	if j.Meanwhile != nil {
		d.meanwhile(j, id, c)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if d.remove(id) {
			return nil, ended(ctx)
		}
		j.Leave() // the batch need not wait for a disk on its behalf
		<-c.done  // its batch runs, and uses the job's memory until it ends
	}
	if !c.ended.IsZero() {
		d.woke(time.Since(c.ended))
	}
	if p, ok := ctx.Value(placeKey{}).(*Place); ok && p.d == d {
		p.done(c.out.Err)
	}
	out := c.out
	c.job, c.out, c.ended, c.await = nil, engine.Outcome{}, time.Time{}, await{}
	d.calls.Put(c)
	return j.Deliver(&out)
}

// approach waits until a job joins the queue: at once, unless blocks are read for it from a disk. Otherwise it waits
// until the rest is expected to arrive while the first layers are computed. Blocks that have not arrived by the latest
// time to compute them are computed.
func (d *Dispatcher) approach(ctx context.Context, c *call) error {
	j, cost := c.job, &c.cost
	l := reads(j)
	if l == nil {
		return nil
	}
	if d.ahead {
		_ = l.Wait(ctx)
		return ended(ctx)
	}
	m := d.Model()
	ms := m.Predict(cost.Rows, cost.Keys, 1)
	of := func(share float64) time.Duration { return time.Duration(ms * share * float64(time.Millisecond)) }
	first, late := of(cost.First), of(cost.Late)
	within, cancel := d.inTime(ctx, of(1+cost.Late))
	defer cancel()
	if d.skips(l.Expect()-first, late) { // blocks that arrive in time are used; the rest is read for other requests
		j.Blend.First, j.Blend.Patience = max(first, 0), 1
	} else {
		j.Blend.First, j.Blend.Patience = max(first, 0), max(late, 1)
		if l.Near(within, first) == nil || ctx.Err() != nil {
			return ended(ctx)
		}
		l.Stop()
	}
	cost.Rows += int(cost.Late * float64(cost.Rows))
	cost.Keys += int(cost.Late * float64(cost.Keys))
	return ended(ctx)
}

// reads returns the reads for a job, or nil if there are none.
func reads(j *engine.Job) *loading.Loading {
	if j.Blend == nil {
		return nil
	}
	l, _ := j.Blend.Load.(*loading.Loading)
	return l
}

// skips reports whether a job does not wait for the disk: disk is the time to read its blocks, computed the time to
// compute them.
func (d *Dispatcher) skips(disk, computed time.Duration) bool {
	queue, _ := d.Backlog()
	skips := schedule.SkipDisk(disk, computed, queue)
	if d.rec.On() {
		d.rec.Lock()
		defer d.rec.Unlock()
		d.rec.In("disk", disk, computed, queue)
		d.rec.Did("slower", skips)
	}
	return skips
}

// inTime returns a context that ends at the latest time to begin computing what takes so long, or with ctx.
func (d *Dispatcher) inTime(ctx context.Context, takes time.Duration) (context.Context, context.CancelFunc) {
	queue, _ := d.Backlog()
	deadline, ok := ctx.Deadline()
	left := time.Duration(0)
	if ok {
		left = time.Until(deadline)
	}
	wait := schedule.BlockWait(left, ok, queue, takes)
	if d.rec.On() {
		d.rec.Lock()
		d.rec.In("patience", takes, queue, ok, left)
		d.rec.Did("within", wait)
		d.rec.Unlock()
	}
	if wait == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, wait)
}

// meanwhile runs the caller's work while the job waits. If that panics, the panic continues only when the job is no
// longer in a batch, because until then its memory is in use.
func (d *Dispatcher) meanwhile(j *engine.Job, id uint64, c *call) {
	returned := false
	defer func() {
		if !returned && !d.remove(id) {
			<-c.done
		}
	}()
	j.Meanwhile()
	returned = true
}

func (d *Dispatcher) add(ctx context.Context, c *call) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return 0, engine.ErrClosed
	}
	d.next++
	job := schedule.Job{ID: d.next, Rows: c.cost.Rows, Keys: c.cost.Keys, Arrival: c.queued.Sub(d.start)}
	if deadline, ok := ctx.Deadline(); ok {
		job.Deadline = deadline.Sub(d.start)
	}
	p, ok := ctx.Value(placeKey{}).(*Place)
	if d.rec.On() {
		d.recordAdd(&job, p, c.job.Number)
	}
	if ok && p.d == d {
		if err := d.enter(p, &job); err != nil {
			return 0, err
		}
	}
	if !d.batcher.Add(job) {
		if d.rec.On() {
			d.rec.Did("full")
		}
		return 0, ErrQueueFull
	}
	if d.rec.On() {
		d.rec.Did("queued")
	}
	d.waiting[d.next] = c
	d.queued.Rows += c.cost.Rows
	d.queued.Keys += c.cost.Keys
	d.signal()
	return d.next, nil
}

// remove removes a job from the queue. It returns false if it is no longer there.
func (d *Dispatcher) remove(id uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leave(id)
	removed := d.batcher.Remove(id)
	if d.rec.On() {
		d.rec.In("remove", id, removed)
	}
	return removed
}

// leave removes a call from those that wait, or returns nil if it is not among them. The caller holds the lock.
func (d *Dispatcher) leave(id uint64) *call {
	c := d.waiting[id]
	if c != nil {
		delete(d.waiting, id)
		d.queued.Rows -= c.cost.Rows
		d.queued.Keys -= c.cost.Keys
	}
	return c
}

// ended returns why a context ended, or nil if it has not.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return ErrExpired
	}
	return err
}

// signal wakes the engines' goroutines. The caller holds the lock.
func (d *Dispatcher) signal() {
	for _, w := range d.wakes {
		select {
		case w <- struct{}{}:
		default: // already signalled
		}
	}
}

// work runs batches on one engine until the Dispatcher is closed.
func (d *Dispatcher) work(e Engine, n int) {
	defer d.wg.Done()
	wake := d.wakes[n]
	timer := time.NewTimer(0)
	defer timer.Stop()
	var b batch
	for {
		d.turn(n).take() // before the batch is chosen, so that requests that arrive meanwhile can be in it
		at, open := d.take(&b, n)
		if len(b.calls) > 0 {
			d.serve(e, &b, n)
			continue
		}
		d.turn(n).give()
		switch {
		case !open:
			return
		case !d.runAside(e, &b, n):
			d.sleep(timer, at, wake)
		}
	}
}

// serve runs a batch and answers its jobs.
func (d *Dispatcher) serve(e Engine, b *batch, n int) {
	start := time.Now()
	d.run(b, e.Run)
	end := time.Now()
	d.turn(n).give()
	took := end.Sub(start)
	d.watch(b.out)
	d.free(b, n) // before the answers, so that a caller with an answer finds the engine free
	for i, c := range b.calls {
		b.waited, b.late = max(b.waited, b.out[i].Waited), b.late || b.out[i].Late > 0
		b.spared.Rows += b.out[i].Shared.Cost.Rows
		b.spared.Keys += b.out[i].Shared.Cost.Keys
		c.out = b.out[i]
		c.out.Queue = start.Sub(c.queued)
		c.out.Shared.Awaited = c.await.arrived
		c.ended = end
		c.done <- struct{}{} // from here on the call may be reused
	}
	d.observe(b, took, n)
	runtime.Gosched() // with few cores, let the answers go out before the next batch begins
}

// run runs a batch. A panic fails all its jobs.
func (d *Dispatcher) run(b *batch, run func([]*engine.Job, []engine.Outcome)) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		p := contain.Of(r)
		for i := range b.out {
			b.out[i] = engine.Outcome{Err: fmt.Errorf("%w: %v", ErrPanicked, p)}
		}
		b.late = true // its time is not a valid measurement
		if d.alarm != nil {
			d.alarm(p)
		}
	}()
	run(b.jobs, b.out)
}

// watch reports a lost device.
func (d *Dispatcher) watch(out []engine.Outcome) {
	for i := range out {
		if err := out[i].Err; d.lost != nil && errors.Is(err, engine.ErrLost) {
			d.losing.Do(func() { d.lost(err) })
		}
	}
}

// batch is an engine's next batch, with its predicted time.
type batch struct {
	calls     []*call
	jobs      []*engine.Job
	out       []engine.Outcome
	cost      engine.Cost
	predicted float64       // milliseconds
	waited    time.Duration // part of its time spent waiting for disks
	late      bool          // some KV did not arrive and was computed
	spared    engine.Cost   // part of cost that was computed once for several jobs or segments
	claims    []*engine.Underway
}

// reset clears the batch and its references.
func (b *batch) reset() {
	clear(b.calls)
	clear(b.jobs)
	clear(b.out)
	clear(b.claims)
	b.calls, b.jobs, b.out, b.claims = b.calls[:0], b.jobs[:0], b.out[:0], b.claims[:0]
	b.cost, b.spared, b.predicted, b.waited, b.late = engine.Cost{}, engine.Cost{}, 0, 0, false
}

func (b *batch) add(c *call) {
	b.calls, b.jobs, b.out = append(b.calls, c), append(b.jobs, c.job), append(b.out, engine.Outcome{})
	b.cost.Rows += c.cost.Rows
	b.cost.Keys += c.cost.Keys
}

// take gets a batch from the Batcher. If there is none, it returns when to try again.
func (d *Dispatcher) take(b *batch, n int) (at time.Duration, open bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b.reset()
	if d.closed {
		return 0, false
	}
	now := time.Since(d.start)
	for again := true; again; {
		at, again = d.step(b, n, now)
	}
	if len(b.calls) > 0 {
		d.claim(b, n)
		b.predicted = d.model.Predict(b.cost.Rows, b.cost.Keys, len(b.calls))
		d.admission.Begin(n, b.predicted, now)
	}
	if len(b.calls) > 0 && d.batcher.Len() > 0 {
		d.signal() // another engine may be free for the rest
	}
	return at, true
}

// step is one attempt of take. again is true if all jobs of the batch stay in the queue, because others may run
// instead.
func (d *Dispatcher) step(b *batch, n int, now time.Duration) (at time.Duration, again bool) {
	jobs, shed, at := d.batcher.Step(now)
	if d.rec.On() {
		d.recordStep(n, now, jobs, shed, at)
	}
	if len(jobs) == 0 && len(shed) > 0 && d.admission.Tries(d.model.Predict(shed[0].Rows, shed[0].Keys, 1), now,
		shed[0].Deadline) {
		jobs, shed = shed[:1], shed[1:]
		if d.rec.On() {
			d.rec.Did("tries", jobs[0].ID)
		}
	}
	for i := range shed {
		d.answer(shed[i].ID, ErrShed)
	}
	for i := range jobs {
		if d.holds(&jobs[i], now) {
			continue
		}
		if c := d.leave(jobs[i].ID); c != nil {
			b.add(c)
		}
	}
	return at, len(jobs) > 0 && len(b.calls) == 0
}

// answer ends a waiting job with an error. The caller holds the lock.
func (d *Dispatcher) answer(id uint64, err error) {
	if c := d.leave(id); c != nil {
		c.out.Err = err
		c.done <- struct{}{}
	}
}

func (d *Dispatcher) sleep(timer *time.Timer, at time.Duration, wake chan struct{}) {
	if at == schedule.Never {
		<-wake
		return
	}
	timer.Reset(at - time.Since(d.start))
	select {
	case <-wake:
	case <-timer.C:
	}
}

// free records that an engine's batch has ended.
func (d *Dispatcher) free(b *batch, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rec.On() {
		d.rec.In("free", n)
	}
	d.admission.Ended(n, b.predicted)
	d.disclaim(b, n)
}

// observe gives the model the time of a batch, without its waits for disks. It skips a batch that computed more than
// its jobs announced.
func (d *Dispatcher) observe(b *batch, took time.Duration, n int) {
	took -= b.waited
	s := schedule.Sample{Requests: len(b.calls), Rows: b.cost.Rows - b.spared.Rows, Keys: b.cost.Keys - b.spared.Keys,
		Ms: float64(took) / float64(time.Millisecond)}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rec.On() {
		d.rec.In("ran", n, s.Requests, s.Rows, s.Keys, s.Ms, b.late)
	}
	if b.late {
		return
	}
	if b.spared.Rows > 0 {
		b.predicted = d.model.Predict(s.Rows, s.Keys, s.Requests)
	}
	d.admission.Measured(s.Ms, b.predicted)
	d.tuner.Observe(s)
	d.model = d.tuner.Model()
	d.batcher.SetModel(d.model)
	d.correct()
}

// SetSLO changes the target latency of batches.
func (d *Dispatcher) SetSLO(slo time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rec.On() {
		d.rec.In("slo", slo)
	}
	d.batcher.SetSLO(slo)
}

// Crowd tells that others compute on the engines' devices too, until leave is called. Until then requests are admitted
// as if batches took twice as long.
func (d *Dispatcher) Crowd() (leave func()) {
	add := func(n int) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.admission.Crowd(n)
		d.correct()
	}
	add(1)
	return sync.OnceFunc(func() { add(-1) })
}

// Model returns the current model of prefill times.
func (d *Dispatcher) Model() schedule.PrefillModel {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tuner.Model()
}

// Backlog returns the predicted milliseconds of work ahead of a request that arrives now, and how many requests wait.
func (d *Dispatcher) Backlog() (ms float64, requests int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.tuner.Model()
	ahead := d.admission.Running() + m.Predict(d.queued.Rows, d.queued.Keys, len(d.waiting))
	return ahead / float64(len(d.engines)), len(d.waiting)
}

// Close fails waiting jobs with engine.ErrClosed, and returns when the running batches have ended.
func (d *Dispatcher) Close() error {
	d.mu.Lock()
	if !d.closed {
		d.closed = true
		for id := range d.waiting {
			d.batcher.Remove(id)
			d.answer(id, engine.ErrClosed)
		}
		d.closeAside()
		d.signal()
	}
	d.mu.Unlock()
	d.wg.Wait()
	return nil
}
