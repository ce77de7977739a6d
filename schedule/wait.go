package schedule

import "time"

// These functions decide how long to wait for a disk or a peer. Computing is always the alternative, so a wait never
// costs a request its deadline.

// PrefixWait returns how long a request waits for a read of its KV before it is queued. It is half of the time that is
// left after the queue and computing everything, both in milliseconds. 0 means no limit: there is no deadline, or so
// little time that only a read can help.
func PrefixWait(left time.Duration, deadline bool, queue, compute float64) time.Duration {
	spare := left - time.Duration((queue+compute)*float64(time.Millisecond))
	if !deadline || spare <= 0 {
		return 0
	}
	return max(spare/2, 1)
}

// FetchWait returns how long a request waits for KV that peers send, before it is queued. It is as long as the request
// would queue and compute that KV itself, and at most PrefixWait. Without the KV computing takes alone milliseconds,
// and with it with.
func FetchWait(left time.Duration, deadline bool, queue, alone, with float64) time.Duration {
	wait := time.Duration((queue + alone - with) * float64(time.Millisecond))
	if most := PrefixWait(left, deadline, queue, alone); most > 0 {
		wait = min(wait, most)
	}
	return max(wait, 0)
}

// leastSaved is the milliseconds that a fetch from peers has to save. Single round trips are longer than predicted by
// about as much, and a fetch that is late costs its whole wait.
const leastSaved = 2

// FetchPays reports whether a request asks peers, if that is predicted to take so many milliseconds and it would wait
// for as long as FetchWait says.
func FetchPays(takes float64, wait time.Duration) bool {
	return takes+leastSaved < float64(wait)/float64(time.Millisecond)
}

// BlockWait returns how long a request waits for its blocks before it is queued. takes is its time without them. The
// wait leaves twice that time, because predictions err, and the milliseconds of the queue. 0 means no limit, as for
// PrefixWait.
func BlockWait(left time.Duration, deadline bool, queue float64, takes time.Duration) time.Duration {
	if !deadline {
		return 0
	}
	return max(0, left-2*takes-time.Duration(queue*float64(time.Millisecond)))
}

// SkipDisk reports whether a request does not wait for its blocks at all: if reading is predicted to take more than
// twice as long as computing, beyond the milliseconds of the queue. Predictions err, and a waiting request leaves the
// engine to others.
func SkipDisk(read, compute time.Duration, queue float64) bool {
	return read > 2*compute+time.Duration(queue*float64(time.Millisecond))
}

// BatchWait returns how long a batch waits for a member's blocks when rows are chosen. It waits for the time of the
// first layers, if these are computed meanwhile, and for a share of the member's patience: the tokens left among all.
// Jobs of a batch wait together, so the time already waited counts. A negative result means no wait. 0, for a patience
// of 0, means no limit.
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

// Reading is the progress of a request's reads.
type Reading struct {
	Left  int           // tokens whose KV has not arrived yet
	Now   int           // of these, tokens of the entry that is being read; 0: none
	Begun bool          // a read has begun or ended
	Took  time.Duration // time so far of the entry that is being read
}

// Near reports whether the rest is expected within a time. If not, it returns after how long to ask again even if
// nothing arrives; 0: not before something arrives. A disk whose pace is unknown, or that has not begun, is not near.
//
// The current entry is expected to take its share of the pace, but at least as long again as it took so far: a read
// that hangs is not about to end.
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
