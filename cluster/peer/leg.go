package peer

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"
)

// job is a Fetch under way.
type job struct {
	get      *Get
	place    Place
	began    time.Time
	deadline time.Time

	mu      sync.Mutex
	legs    []*leg
	readers []*leg // by want: the leg that reads its payload now
}

// leg is a job's GET at one peer.
type leg struct {
	use
	job    *job
	peer   *peer
	cancel context.CancelFunc
	list   []uint16      // wants, in the order of the GET
	ended  chan struct{} // closed when run has returned
	err    error         // why it ended early, unless its time was over

	owes [MaxWants / 64]uint64 // wants that it may still bring; guarded by job.mu
	open int                   // their number
	seen [MaxWants / 64]uint64 // places in the GET that were answered

	first time.Time // when the first answer came; zero: none came
	bytes int64     // of all answers that began to arrive
}

// start adds a leg for some wants. The caller runs it.
func (j *job) start(ctx context.Context, p *peer, list []uint16) *leg {
	l := &leg{job: j, peer: p, list: list, ended: make(chan struct{})}
	l.ctx, l.cancel = context.WithDeadline(ctx, j.deadline)
	for _, i := range list {
		l.owes[i/64] |= 1 << (i % 64)
	}
	l.open = len(list)
	j.mu.Lock()
	j.legs = append(j.legs, l)
	j.mu.Unlock()
	return l
}

// run makes the GET and reads its answers.
func (l *leg) run() {
	defer close(l.ended)
	defer l.cancel()
	stop := context.AfterFunc(l.ctx, l.interrupt)
	defer stop()
	for again := true; ; again = false {
		n, err := l.peer.acquire(l.ctx)
		if err != nil {
			l.fail(err)
			return
		}
		if err := l.attach(n, l.job.deadline); err != nil {
			l.detach()
			l.peer.release(n)
			l.fail(err)
			return
		}
		err = l.exchange(n)
		l.detach()
		switch {
		case err == nil && n.left == 0 && n.skip == 0:
			l.peer.release(n)
			return
		case !n.cut && (err == nil || over(err)): // the other leg was faster, or the time is over
			l.peer.drainLater(n)
			return
		}
		l.peer.drop(n)
		if damage(err) {
			l.peer.counts.of[Damaged].Add(1)
		}
		if !again || !n.used || !l.first.IsZero() || l.ctx.Err() != nil {
			l.fail(fmt.Errorf("peer: fetch from node %s: %w", l.peer.node, err))
			return
		}
		l.peer.dropIdle() // the peer closed a connection that was idle: it was probably restarted
	}
}

func (l *leg) fail(err error) {
	if !over(err) {
		l.err = err
	}
}

// exchange sends the GET and reads answers until the leg owes nothing.
func (l *leg) exchange(n *conn) error {
	asked := time.Now()
	n.id++
	n.left, n.skip = len(l.list), 0
	budget := max(0, l.job.deadline.Sub(asked)+time.Millisecond-1) / time.Millisecond
	n.out = appendGet(n.out[:0], n.id, l.job.get, uint32(budget), l.list)
	if _, err := n.c.Write(n.out); err != nil {
		n.cut = true
		return err
	}
	err := l.read(n)
	l.peer.measured(asked, l.first, l.bytes-n.skip)
	return err
}

// read reads answers until the leg owes nothing.
func (l *leg) read(n *conn) error {
	for n.left > 0 && l.owing() {
		a, size, sum, err := n.answer()
		if err != nil {
			return err
		}
		if int(a.index) >= len(l.list) || l.seen[a.index/64]>>(a.index%64)&1 != 0 {
			return fmt.Errorf("%w: an answer for key %d of %d, or a second one", errGarbage, a.index, len(l.list))
		}
		l.seen[a.index/64] |= 1 << (a.index % 64)
		if l.first.IsZero() {
			l.first, n.used = time.Now(), true
		}
		l.bytes += int64(size) + a.payload
		n.await(&a)
		if a.status != Hit {
			l.settle(l.list[a.index], a.status)
			_, _ = n.r.Discard(size)
			continue
		}
		if err := l.receive(n, &a, size, sum); err != nil {
			return err
		}
	}
	return nil
}

// receive reads a block.
func (l *leg) receive(n *conn, a *answer, size int, sum uint32) error {
	i := l.list[a.index]
	pieces, ok := l.claim(i, a)
	_, _ = n.r.Discard(size) // the metadata is no longer needed
	if !ok {
		return n.pass()
	}
	right, err := n.payload(pieces, seal(sum, &l.job.get.Wants[i].Key))
	switch {
	case err != nil:
		l.unclaim(i)
		return err
	case !right:
		l.settle(i, Damaged)
	default:
		l.peer.counts.bytes.Add(a.payload)
		l.settle(i, Hit)
	}
	return nil
}

// claim returns the memory for a block that begins to arrive. It returns false if the block is not needed: it is there
// already, or the other leg is reading it. If the other leg has stalled, it is ended, and this one takes over.
func (l *leg) claim(i uint16, a *answer) ([][]byte, bool) {
	j := l.job
	j.mu.Lock()
	defer j.mu.Unlock()
	if o := j.readers[i]; o != nil {
		stalled := false
		o.view(func(c *line) { stalled = c.stalled(time.Now()) })
		if stalled {
			j.mu.Unlock()
			o.cancel()
			<-o.ended
			j.mu.Lock()
		}
	}
	if j.get.Wants[i].Status == Hit || j.readers[i] != nil {
		return nil, false
	}
	pieces, err := j.place(int(i), a.meta, a.payload)
	var n int64
	for _, p := range pieces {
		n += int64(len(p))
	}
	if err == nil && n != a.payload {
		err = fmt.Errorf("peer: place for %d bytes, the block has %d", n, a.payload)
		l.fail(err)
	}
	if err != nil {
		l.settled(i, Declined)
		return nil, false
	}
	j.readers[i] = l
	return pieces, true
}

func (l *leg) unclaim(i uint16) {
	l.job.mu.Lock()
	defer l.job.mu.Unlock()
	l.job.readers[i] = nil
}

// settle notes the answer for a want.
func (l *leg) settle(i uint16, s Status) {
	l.job.mu.Lock()
	defer l.job.mu.Unlock()
	l.settled(i, s)
}

// settled is settle with the job's lock held.
func (l *leg) settled(i uint16, s Status) {
	l.peer.counts.of[s].Add(1)
	j := l.job
	if j.readers[i] == l {
		j.readers[i] = nil
	}
	l.pay(i)
	if j.get.Wants[i].Status == Hit {
		return
	}
	j.get.Wants[i].Status = s
	if s != Hit {
		return
	}
	for _, o := range j.legs {
		if o != l && o.pay(i) && o.open == 0 {
			o.cancel() // what is still to come from there is not needed
		}
	}
}

// pay notes that a leg does not owe a want any more, and reports whether it did. It is called with the job's lock held.
func (l *leg) pay(i uint16) bool {
	bit := uint64(1) << (i % 64)
	if l.owes[i/64]&bit == 0 {
		return false
	}
	l.owes[i/64] &^= bit
	l.open--
	return true
}

func (l *leg) owing() bool {
	l.job.mu.Lock()
	defer l.job.mu.Unlock()
	return l.open > 0
}

// missing returns the wants that a leg owes, the last of its GET first. Peers answer about in the order of the GET, so
// that two of them meet in the middle.
func (l *leg) missing() []uint16 {
	l.job.mu.Lock()
	defer l.job.mu.Unlock()
	out := make([]uint16, 0, l.open)
	for word, set := range l.owes {
		for ; set != 0; set &= set - 1 {
			out = append(out, uint16(word*64+bits.TrailingZeros64(set)))
		}
	}
	slices.Reverse(out)
	return out
}
