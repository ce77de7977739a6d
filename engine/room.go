package engine

import (
	"errors"
	"math"
	"slices"
	"time"

	"grebe/compute"
)

// room bounds the jobs of a batch after the device ran out of memory, so that not every batch fails first. Others may
// use the same device, and give memory back: after roomTries batches in a row that had room, twice as many are tried.
type room struct {
	jobs int // most of a batch; 0: any number
	had  int // batches in a row
}

const roomTries = 64

func (r *room) most() int {
	if r.jobs == 0 {
		return math.MaxInt
	}
	return r.jobs
}

// ran notes how a batch of so many jobs went.
func (r *room) ran(jobs int, err error) {
	switch {
	case errors.Is(err, ErrNoMemory):
		r.jobs, r.had = max(1, jobs/2), 0
	case r.jobs == 0 || jobs < r.jobs:
	case r.had < roomTries:
		r.had++
	default:
		r.had = 0
		if r.jobs *= 2; r.jobs > mostJobs {
			r.jobs = 0
		}
	}
}

// mostJobs is the largest bound of room.
const mostJobs = 1 << 12

// runSmaller runs tasks that found no memory again: without what the runner keeps from batch to batch, and then in
// halves. A task that finds none alone fails. The error is ErrNoMemory if there is none for all of them together.
func (e *Engine) runSmaller(tasks []task, start time.Time) error {
	e.pass.free()
	if t, ok := e.runner.(compute.Trimmer); ok {
		t.Trim()
	}
	for i := range tasks {
		tasks[i].again()
	}
	err := e.runTasks(tasks, start)
	switch {
	case err == nil || errors.Is(err, ErrLost) || len(tasks) == 1:
		return err // which the outcomes have
	case !errors.Is(err, ErrNoMemory):
		if anyBlends(tasks) {
			e.runApart(tasks, start)
		}
		return err
	}
	half := len(tasks) / 2
	_ = e.runSmaller(tasks[:half], start)
	_ = e.runSmaller(tasks[half:], start)
	return err
}

// anyAlone reports whether a task found no memory by itself: that says nothing of how many jobs batches may have.
func anyAlone(tasks []task) bool {
	return slices.ContainsFunc(tasks, func(t task) bool { return errors.Is(t.out.Err, ErrNoMemory) })
}
