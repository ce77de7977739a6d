package schedule

import "time"

// Waits for a disk or a peer. Computing is always the alternative, so a wait never costs a request its deadline.

// PrefixWait is how long a request waits for KV that is read before it is queued. It is half of the time that is left beyond
// the queue and computing everything, both in milliseconds. 0 means no limit of its own: there is no deadline, or so little
// time that only a read can help.
func PrefixWait(left time.Duration, deadline bool, queue, compute float64) time.Duration {
	spare := left - time.Duration((queue+compute)*float64(time.Millisecond))
	if !deadline || spare <= 0 {
		return 0
	}
	return max(spare/2, 1)
}

// BlockWait is how long a request that takes so long without its blocks waits for them before it is queued. It leaves twice
// that time, since predictions err, and the milliseconds of the queue. 0 means no limit of its own, as of PrefixWait.
func BlockWait(left time.Duration, deadline bool, queue float64, takes time.Duration) time.Duration {
	if !deadline {
		return 0
	}
	return max(0, left-2*takes-time.Duration(queue*float64(time.Millisecond)))
}

// SkipDisk reports whether a request does not wait for its blocks at all: if reading is predicted to take more than twice as
// long as computing, beyond the milliseconds of the queue. Predictions err, and who waits leaves the engine to others.
func SkipDisk(read, compute time.Duration, queue float64) bool {
	return read > 2*compute+time.Duration(queue*float64(time.Millisecond))
}

// BatchWait is how long a batch waits for blocks of a member when rows are chosen: for the first layers, if these are computed
// meanwhile, and for the share of the member's patience that the tokens left have among all. Jobs of a batch wait together,
// so what the batch has waited counts. A negative wait is none, and 0, for a patience of 0, is as long as it takes.
func BatchWait(patience, first, waited time.Duration, left, all int) time.Duration {
	if patience <= 0 {
		return patience
	}
	share := max(1, time.Duration(float64(patience)*float64(left)/float64(max(all, 1))))
	if wait := first + share - waited; wait > 0 {
		return wait
	}
	return -1
}

// Reading is how far the reads of a request are.
type Reading struct {
	Left  int           // tokens whose KV is not here yet
	Now   int           // of these, tokens of the entry that is read now; 0: none is
	Begun bool          // an entry is or was read
	Took  time.Duration // of the entry that is read now, so far
}

// Near reports whether the rest is expected within a time. Where it is not, it returns after how long to ask again though
// nothing came; 0: not before. A disk whose pace is not known, or that has not begun, is not near.
//
// The entry that is read now is expected to take its share of the pace, but at least as long again as it took already: one
// read that hangs is not about to end.
func (p *Pace) Near(r *Reading, within time.Duration) (near bool, again time.Duration) {
	one, known := p.Expect(r.Now)
	if !known || !r.Begun {
		return false, 0
	}
	rest, _ := p.Expect(r.Left - r.Now)
	near = rest+max(one-r.Took, r.Took) <= within
	if at := rest + one - within; !near && at > r.Took && 2*at <= one {
		again = at - r.Took
	}
	return near, again
}
