package dispatch

import "sync"

// Turns lets the batches of several Dispatchers run one after the other on a device that they share, first come first
// served. Without it a GPU runs the kernels of both at once, and each kernel waits for those of the other: the batch
// with many short kernels, a group of searches, is slowed down most.
type Turns struct {
	mu      sync.Mutex
	free    int
	waiting []chan struct{} // in order of arrival; at most one for each engine
}

// NewTurns makes Turns for a device that runs so many batches at once.
func NewTurns(most int) *Turns { return &Turns{free: most} }

// take waits for a turn. The caller MUST call give. A nil Turns does not wait.
func (t *Turns) take() {
	if t == nil {
		return
	}
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return
	}
	mine := make(chan struct{})
	t.waiting = append(t.waiting, mine)
	t.mu.Unlock()
	<-mine
}

// give ends a turn, and begins that of whoever waits longest.
func (t *Turns) give() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		t.free++
		return
	}
	close(t.waiting[0])
	t.waiting = t.waiting[1:]
}

// turn returns the turns of an engine's device.
func (d *Dispatcher) turn(engine int) *Turns {
	if d.turns == nil {
		return nil
	}
	return d.turns[engine]
}
