// Package team runs data-parallel jobs on a fixed set of workers that spin briefly between jobs, so
// that an operation of a few microseconds is worth splitting.
//
// A job's tasks are claimed one by one by an atomic counter: which worker runs which task is not
// fixed, so tasks must not depend on it for their results. Run allocates nothing. If a task panics, Run panics with it
// when the others have ended.
package team

import (
	"sync"
	"sync/atomic"
	"time"

	"grebe/internal/contain"
)

// spinFor is how long an idle worker spins before it parks. Operations of a layer follow each
// other within microseconds; between batches the workers sleep.
const spinFor = 100 * time.Microsecond

// MaxTasks is the largest number of tasks of one Run.
const MaxTasks = 1<<20 - 1

// Job is a function run for many tasks. Make it once and use it for every Run: worker is in
// [0, Threads), task in [0, n).
type Job struct{ Do func(worker, task int) }

// Team is a set of workers; the goroutine that calls Run is worker 0.
type Team struct {
	threads int
	// state packs generation<<40 | tasks<<20 | next task. A claim is one compare-and-swap, which
	// fails when the generation moved on, so a late worker cannot touch a newer job's tasks.
	state  atomic.Uint64
	job    atomic.Pointer[Job]
	done   atomic.Int64
	parked atomic.Int64
	closed atomic.Bool
	failed contain.First
	mu     sync.Mutex // guards waiting on wake; held by nobody while a job runs
	wake   *sync.Cond
	wg     sync.WaitGroup
}

// New starts a team of threads workers, at least one. The caller MUST Close it.
func New(threads int) *Team {
	t := &Team{threads: max(1, threads)}
	t.wake = sync.NewCond(&t.mu)
	for w := 1; w < t.threads; w++ {
		t.wg.Add(1)
		go t.work(w)
	}
	return t
}

// Threads returns the number of workers.
func (t *Team) Threads() int { return t.threads }

// Run calls job.Do for every task in [0, n) and returns when all are done. One caller at a time.
func (t *Team) Run(n int, job *Job) {
	if n <= 0 {
		return
	}
	if t.threads == 1 || n == 1 {
		for i := range n {
			job.Do(0, i)
		}
		return
	}
	if n > MaxTasks {
		panic("team: too many tasks")
	}
	t.done.Store(0)
	t.job.Store(job)
	gen := t.state.Load()>>40 + 1
	t.state.Store(gen<<40 | uint64(n)<<20)
	if t.parked.Load() > 0 {
		t.mu.Lock()
		t.wake.Broadcast()
		t.mu.Unlock()
	}
	for t.step(0) {
	}
	for t.done.Load() != int64(n) {
		pause()
	}
	t.failed.Raise()
}

// step claims and runs one task; it reports false when there is none.
func (t *Team) step(w int) bool {
	for {
		s := t.state.Load()
		n, next := s>>20&MaxTasks, s&MaxTasks
		if next >= n {
			return false
		}
		j := t.job.Load()
		if t.state.CompareAndSwap(s, s+1) {
			t.do(j, w, int(next))
			return true
		}
	}
}

// do runs one task. A panic is kept for Run's caller: in a worker it would end the process.
func (t *Team) do(j *Job, w, task int) {
	defer func() {
		t.failed.Note(recover())
		t.done.Add(1)
	}()
	j.Do(w, task)
}

func (t *Team) idle() bool {
	s := t.state.Load()
	return s&MaxTasks >= s>>20&MaxTasks
}

func (t *Team) work(w int) {
	defer t.wg.Done()
	for !t.closed.Load() {
		if t.step(w) {
			continue
		}
		for start := time.Now(); t.idle() && time.Since(start) < spinFor; {
			for range 16 {
				pause()
			}
		}
		if !t.idle() {
			continue
		}
		t.mu.Lock()
		t.parked.Add(1)
		for t.idle() && !t.closed.Load() {
			t.wake.Wait()
		}
		t.parked.Add(-1)
		t.mu.Unlock()
	}
}

// Close stops the workers and waits for them. No Run may be under way.
func (t *Team) Close() {
	t.closed.Store(true)
	t.mu.Lock()
	t.wake.Broadcast()
	t.mu.Unlock()
	t.wg.Wait()
}
