package embed

import (
	"sync"
	"sync/atomic"

	"grebe/evict"
)

// listener takes accesses of some keys, those whose hash has certain bits 0, to a goroutine. The path hands them over
// without waiting, and what the goroutine cannot take is lost.
type listener struct {
	mask atomic.Uint64

	mu     sync.Mutex
	inbox  []access
	spare  []access
	wake   chan struct{}
	done   chan struct{}
	closed sync.WaitGroup
}

// access is a request for a key, by its hash.
type access struct{ h, now uint64 }

const inboxLen = 1 << 14

func newListener() listener {
	return listener{
		inbox: make([]access, 0, inboxLen), spare: make([]access, 0, inboxLen), wake: make(chan struct{}, 1),
		done: make(chan struct{}),
	}
}

func (l *listener) hears(h uint64) bool { return h&l.mask.Load() == 0 }

// record hands over accesses; they are lost when the goroutine is behind.
func (l *listener) record(as []access) {
	if !l.mu.TryLock() {
		return
	}
	l.inbox = append(l.inbox, as[:min(len(as), cap(l.inbox)-len(l.inbox))]...)
	wake := len(l.inbox) >= inboxLen/4
	l.mu.Unlock()
	if wake {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// each takes what was handed over.
func (l *listener) each(take func(h, now uint64)) {
	l.mu.Lock()
	l.inbox, l.spare = l.spare[:0], l.inbox
	l.mu.Unlock()
	for _, a := range l.spare {
		if l.hears(a.h) {
			take(a.h, a.now)
		}
	}
}

func (l *listener) stop() {
	close(l.done)
	l.closed.Wait()
}

// share makes the mask for one key in 2^shift.
func share(shift int) uint64 { return (1<<shift - 1) << 40 }

// tuner keeps the mode of a cache up to date.
type tuner struct {
	listener
	mode  atomic.Int32
	spare atomic.Bool // missed rows may be left out
	tuner *evict.Tuner
	turns atomic.Int64 // of the goroutine
}

// tunedRows is how many rows caches in miniature have at least, where the cache has as many. More would tell modes
// apart that differ little, and take time of a core in proportion.
const tunedRows = 128

// mostShift bounds how few keys are heard of: of a cache of millions of rows it would take minutes to hear enough of
// one in 2¹⁴.
const mostShift = 10

func newTuner(slab evict.Slab, rows int) *tuner {
	shift := 0
	for rows>>(shift+1) >= tunedRows && shift < mostShift {
		shift++
	}
	t := &tuner{listener: newListener(), tuner: evict.NewTuner(slab, rows>>shift/setSlots)}
	t.mask.Store(share(shift))
	t.mode.Store(int32(t.tuner.Best()))
	return t
}

func (t *tuner) start() {
	t.closed.Go(func() {
		for {
			select {
			case <-t.done:
				return
			case <-t.wake:
				t.turn()
			}
		}
	})
}

// turn hears what was said and chooses.
func (t *tuner) turn() {
	t.each(t.tuner.Access)
	t.mode.Store(int32(t.tuner.Best()))
	t.spare.Store(t.tuner.Spare())
	t.turns.Add(1)
}
