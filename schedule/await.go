package schedule

import "time"

// Several engines may serve one queue. A job that could run on a free one may need KV that a batch on another engine is
// computing. It then either stays in the queue until that batch ends, or computes the KV once more.
//
// Only jobs in the queue wait, and only for batches that run. A running batch never waits for the queue, so nobody
// waits for itself.

// Await returns until when a job that Step returned waits for KV that running batches compute; now means that it does
// not wait. rows and keys are the part of the job that it would not compute then. ends is when the batches are
// predicted to end. since is when the job first waited for a batch; now if it has not.
//
// A job waits if the batches are predicted to end before it would have computed the KV itself, which is the end of its
// own batch. It must also lose less time than its engine saves: the job ends later by the rest of the batches' time,
// less what it does not compute. So nobody waits long for a short preamble.
//
// A batch that should have ended is expected to take as much longer as it is late. A job waits no longer than computing
// takes in all, however often its batches fail. It waits for at most half of the time that it could begin later and
// still compute everything by its deadline.
func (b *Batcher) Await(j *Job, rows, keys int, ends, since, now time.Duration) (until time.Duration) {
	alone := b.Alone(j.Rows, j.Keys)
	saved := alone - b.Alone(max(0, j.Rows-rows), max(0, j.Keys-keys))
	spare := j.Deadline - now - alone - b.config.Answer
	until = min(since+min(alone, 2*saved), now+spare/2)
	if now+max(ends-now, now-ends) >= until {
		return now
	}
	return until
}

// Hold puts a job that the last Step returned back into the queue. Step does not return it again before the given time
// or the next Resume, unless to shed it.
func (b *Batcher) Hold(j Job, until time.Duration) {
	if slot, ok := b.take(&j); ok {
		b.held.push(slot, until, b.seq)
	}
}

// Resume ends the wait of all held jobs, and reports whether there were any.
func (b *Batcher) Resume() bool { return b.resume(Never) }

// resume ends the wait of the held jobs whose time has come.
func (b *Batcher) resume(now time.Duration) (any bool) {
	for b.held.len() > 0 {
		slot, until := b.held.first()
		if until > now {
			break
		}
		b.held.remove(slot)
		b.seq++
		b.enter(slot)
		any = true
	}
	return any
}
