package schedule

import (
	"fmt"
	"math"
	"time"
)

// Never is the wake time of a Batcher that waits only for the next request.
const Never = time.Duration(math.MaxInt64)

// BatcherConfig configures a Batcher.
type BatcherConfig struct {
	Capacity int           // most requests that wait; further ones are refused
	SLO      time.Duration // promised latency; the deadline of requests without one
	MaxRows  int           // rows that fit on the device; a larger request runs alone. 0: no limit
	// Efficiency limits the size of batches, in (0, 1). A batch is large enough when this share of its time is not
	// fixed cost; beyond that the delay outweighs the gain. Default 0.95.
	Efficiency float64
	// Margin is added to every prediction, as a share of it, for the model's error. Default 0.
	Margin float64
	// Answer is the time from the end of a batch until its clients have their answers. Default 0.
	Answer time.Duration
}

// DefaultBatcher returns the defaults for an SLO.
func DefaultBatcher(capacity int, slo time.Duration) BatcherConfig {
	return BatcherConfig{Capacity: capacity, SLO: slo, Efficiency: .95}
}

// Validate returns an error for the first invalid field.
func (c BatcherConfig) Validate() error {
	switch {
	case c.Capacity < 1 || c.Capacity > math.MaxInt32:
		return fmt.Errorf("schedule: batcher for %d requests", c.Capacity)
	case c.SLO <= 0:
		return fmt.Errorf("schedule: batcher with an SLO of %v", c.SLO)
	case c.MaxRows < 0:
		return fmt.Errorf("schedule: batcher with at most %d rows", c.MaxRows)
	case !(c.Efficiency > 0 && c.Efficiency < 1):
		return fmt.Errorf("schedule: batcher efficiency %v is not in (0, 1)", c.Efficiency)
	case !(c.Margin >= 0) || math.IsInf(c.Margin, 1) || c.Answer < 0:
		return fmt.Errorf("schedule: batcher margin %v, %v for answers", c.Margin, c.Answer)
	}
	return nil
}

// Job is a waiting request.
type Job struct {
	ID       uint64
	Rows     int // tokens to compute
	Keys     int // keys that they attend to, summed
	Arrival  time.Duration
	Deadline time.Duration // 0: arrival plus the SLO
}

// Batcher decides which waiting requests a worker runs next. One batch runs at a time. Step is called when the worker
// is free. If it had nothing to run, it is called again after an Add or at the wake time.
//
// No constant depends on the machine. A batch grows in order of deadlines, without skipping a request, while three
// conditions hold: it is predicted to meet the deadlines of all its members, to take at most the target, and to be
// faster than running the next request after it. The target is the time at which the fixed cost, the only cost that
// members share, is down to 1-Efficiency of the batch. It is at most half the SLO, so that a request that just missed a
// batch can still be served by the next.
//
// A batch that is not full may be held for another request. It is held only while the time until the next arrival, as
// estimated from the last ones, costs the members together less than the fixed cost that one more member saves. It is
// never held for longer than the fixed cost, counted from when the first member was queued, and never so long that a
// member would miss its deadline.
//
// A request is shed, before any compute, only if it would miss its deadline even if it ran alone at once. So each
// request leaves the queue by the first step at or after its deadline less its own time. A deadline is met if the
// answer reaches the client by then: Answer after the end of the batch.
//
// A request that alone takes more than half the SLO is huge. It runs alone, and only in one of three cases: no small
// request waits; all small ones can still be served in time after it; or small ones have had as much time as it takes
// while huge ones waited. So small requests that would miss their deadlines have at least half of the worker, and wait
// for at most one huge request. The first huge request waits for small batches of at most its own time and half an SLO,
// or is shed at its deadline.
type Batcher struct {
	config BatcherConfig
	model  PrefillModel

	jobs    []Job
	alone   []time.Duration // by slot: predicted time alone
	free    []int32
	where   slots
	seq     uint64
	small   heap // by deadline
	huge    heap // by deadline
	held    heap // neither small nor huge at the moment, by when they are again: see Hold
	latest  heap // all, by deadline less the time alone
	smalls  load // sum of small
	holding time.Duration
	passed  time.Duration // time of small batches while the first huge request waited

	arrivals gap
	batch    []Job
	shed     []Job
}

// load is the size of a batch.
type load struct{ rows, keys, requests int }

func (l load) plus(j *Job) load { return load{l.rows + j.Rows, l.keys + j.Keys, l.requests + 1} }

func (l load) minus(j *Job) load { return load{l.rows - j.Rows, l.keys - j.Keys, l.requests - 1} }

// NewBatcher makes a Batcher. It allocates all the memory that the Batcher will need.
func NewBatcher(c BatcherConfig, m PrefillModel) (*Batcher, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := m.Validate(); err != nil {
		return nil, err
	}
	n := c.Capacity
	b := &Batcher{
		config: c, model: m,
		jobs: make([]Job, n), alone: make([]time.Duration, n), free: make([]int32, n), where: newSlots(n),
		small: newHeap(n), huge: newHeap(n), held: newHeap(n), latest: newHeap(n),
		batch: make([]Job, 0, n), shed: make([]Job, 0, n),
	}
	for i := range b.free {
		b.free[i] = int32(n - 1 - i)
	}
	return b, nil
}

// SetModel changes the model of later predictions. Waiting requests keep the prediction of their own time, which
// decides whether they are huge and when they are shed.
func (b *Batcher) SetModel(m PrefillModel) { b.model = m }

// SetSLO changes the promised latency. Deadlines of waiting requests do not change.
func (b *Batcher) SetSLO(slo time.Duration) { b.config.SLO = slo }

// SetSlack changes Margin and Answer.
func (b *Batcher) SetSlack(margin float64, answer time.Duration) {
	b.config.Margin, b.config.Answer = max(0, margin), max(0, answer)
}

// Alone predicts the time of a request that runs alone.
func (b *Batcher) Alone(rows, keys int) time.Duration { return b.predict(load{rows, keys, 1}) }

// Margin returns the share that is added to every prediction.
func (b *Batcher) Margin() float64 { return b.config.Margin }

// Answer returns the time from the end of a batch until its clients have their answers.
func (b *Batcher) Answer() time.Duration { return b.config.Answer }

// Ahead predicts the time of the waiting requests with an earlier deadline, in batches as full as the target allows.
func (b *Batcher) Ahead(deadline time.Duration) time.Duration {
	fixed := b.time(b.model.Fixed)
	var work time.Duration
	n := 0
	for _, slot := range b.latest.order {
		if b.jobs[slot].Deadline <= deadline {
			work += max(0, b.alone[slot]-fixed)
			n++
		}
	}
	batches := n
	if room := b.Target() - fixed; room > 0 {
		batches = min(n, int((work+room-1)/room))
	}
	return work + time.Duration(batches)*fixed
}

// Len returns the number of waiting requests.
func (b *Batcher) Len() int { return b.latest.len() }

// Target returns the predicted time beyond which a batch does not grow.
func (b *Batcher) Target() time.Duration {
	return min(b.time(b.model.Fixed/(1-b.config.Efficiency)), b.config.SLO/2)
}

// Add queues a request. It returns false if the queue is full or the id is already waiting.
func (b *Batcher) Add(j Job) bool {
	if j.Deadline == 0 {
		j.Deadline = j.Arrival + b.config.SLO
	}
	slot, ok := b.take(&j)
	if ok && b.enter(slot) {
		b.arrivals.observe(j.Arrival)
	}
	return ok
}

// take gives a request a slot, in which it waits.
func (b *Batcher) take(j *Job) (slot int32, ok bool) {
	at, known := b.where.find(j.ID)
	if known || len(b.free) == 0 {
		return 0, false
	}
	slot = b.free[len(b.free)-1]
	b.free = b.free[:len(b.free)-1]
	b.where.ids[at], b.where.slot[at] = j.ID, slot
	b.seq++
	b.jobs[slot] = *j
	b.alone[slot] = b.predict(load{}.plus(j))
	b.latest.push(slot, j.Deadline-b.alone[slot], b.seq)
	return slot, true
}

// enter lets the request in a slot run, and reports whether it is small.
func (b *Batcher) enter(slot int32) (small bool) {
	j := &b.jobs[slot]
	if b.alone[slot] > b.config.SLO/2 {
		b.huge.push(slot, j.Deadline, b.seq)
		return false
	}
	if b.small.len() == 0 {
		b.holding = j.Arrival
	}
	b.small.push(slot, j.Deadline, b.seq)
	b.smalls = b.smalls.plus(j)
	return true
}

// Remove removes a request whose client has gone. It returns false if the request is not waiting.
func (b *Batcher) Remove(id uint64) bool {
	at, ok := b.where.find(id)
	if ok {
		b.drop(b.where.slot[at])
	}
	return ok
}

// Step decides when the worker is free: it returns a batch to run now, and requests to shed. Without a batch, wake is
// when to call again unless a request is added first. The slices are valid until the next call.
func (b *Batcher) Step(now time.Duration) (batch, shed []Job, wake time.Duration) {
	b.batch, b.shed = b.batch[:0], b.shed[:0]
	b.resume(now)
	for b.latest.len() > 0 {
		slot, latest := b.latest.first()
		if latest-b.config.Answer >= now {
			break
		}
		b.shed = append(b.shed, b.drop(slot))
	}
	wake = Never
	switch {
	case b.hugeIsNext(now):
		slot, deadline := b.huge.first()
		if b.late(now, b.Alone(b.jobs[slot].Rows, b.jobs[slot].Keys), deadline) {
			b.shed = append(b.shed, b.drop(slot))
			wake = now
			break
		}
		b.passed = 0
		b.batch = append(b.batch, b.drop(slot))
	case b.small.len() > 0:
		if hold := b.holdUntil(now); hold > now {
			wake = hold
			break
		}
		b.fill(now)
	}
	if b.held.len() > 0 {
		_, until := b.held.first()
		wake = min(wake, until)
	}
	return b.batch, b.shed, wake
}

// hugeIsNext decides whether the first huge request runs now; see Batcher.
func (b *Batcher) hugeIsNext(now time.Duration) bool {
	if b.huge.len() == 0 {
		return false
	}
	if b.small.len() == 0 {
		return true
	}
	slot, _ := b.huge.first()
	takes := b.alone[slot]
	if b.passed >= takes {
		return true
	}
	// The small ones can wait if all of them together would meet their earliest deadline.
	_, deadline := b.small.first()
	return !b.late(now, takes+b.predict(b.smalls), deadline)
}

// late reports whether work that starts now and takes so long misses a deadline.
func (b *Batcher) late(now, takes, deadline time.Duration) bool {
	return now+takes+b.config.Answer > deadline
}

// fill moves the next small batch out of the queue.
func (b *Batcher) fill(now time.Duration) {
	var sum load
	var first, took time.Duration // first: the earliest deadline
	for b.small.len() > 0 {
		slot, deadline := b.small.first()
		next := sum.plus(&b.jobs[slot])
		takes := b.predict(next)
		if sum.requests == 0 {
			if b.late(now, takes, deadline) { // the model changed since the request arrived
				b.shed = append(b.shed, b.drop(slot))
				continue
			}
			first = deadline
		} else if !b.fits(next, takes) || b.late(now, takes, first) || takes >= took+b.alone[slot] {
			break
		}
		sum, took = next, takes
		b.batch = append(b.batch, b.drop(slot))
	}
	if b.huge.len() > 0 {
		b.passed += took
	}
}

// fits reports whether a batch of more than one request stays within the target and MaxRows.
func (b *Batcher) fits(l load, takes time.Duration) bool {
	return takes <= b.Target() && (b.config.MaxRows == 0 || l.rows <= b.config.MaxRows)
}

// holdUntil returns until when the small requests wait for another one; a time up to now means that they do not wait.
func (b *Batcher) holdUntil(now time.Duration) time.Duration {
	if b.huge.len() > 0 {
		return now // the worker has other work
	}
	n := b.smalls.requests
	companion := load{b.smalls.rows / n, b.smalls.keys / n, 1}
	with := load{b.smalls.rows + companion.rows, b.smalls.keys + companion.keys, n + 1}
	takes := b.predict(with)
	saved := b.predict(b.smalls) + b.predict(companion) - takes
	if !b.fits(with, takes) || saved <= 0 {
		return now
	}
	due, known := b.arrivals.next(now)
	if !known || time.Duration(n)*(due-now) >= saved {
		return now
	}
	_, deadline := b.small.first()
	return min(due, b.holding+b.time(b.model.Fixed), deadline-takes-b.config.Answer)
}

// drop removes a slot from the queue.
func (b *Batcher) drop(slot int32) Job {
	j := b.jobs[slot]
	if b.small.place[slot] >= 0 {
		b.smalls = b.smalls.minus(&j)
	}
	b.small.remove(slot)
	b.huge.remove(slot)
	b.held.remove(slot)
	b.latest.remove(slot)
	b.where.remove(j.ID)
	b.free = append(b.free, slot)
	if b.huge.len() == 0 {
		b.passed = 0
	}
	return j
}

func (b *Batcher) predict(l load) time.Duration {
	return b.time(b.model.Predict(l.rows, l.keys, l.requests))
}

// time converts predicted milliseconds and adds the margin. It returns at most a year, so that sums stay in range.
func (b *Batcher) time(ms float64) time.Duration {
	const year = 365 * 24 * time.Hour
	return time.Duration(math.Round(min(ms*(1+b.config.Margin)*float64(time.Millisecond), float64(year))))
}
