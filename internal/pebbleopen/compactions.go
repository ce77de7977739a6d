package pebbleopen

import (
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// lookEvery is the time between two looks at a compaction that waits.
const lookEvery = 100 * time.Millisecond

// compactions lets as many compactions of a database run as the database allows, as Pebble's own scheduler does. That
// one looks ten times a second whether a compaction waits, for as long as the database is open. This one looks while a
// compaction waits. A database begins to wait only when TrySchedule refuses it, so nothing is missed.
//
// Mutexes of the database are taken before mu, so mu is not held during calls that take them.
type compactions struct {
	db pebble.DBForCompaction // set before all other calls

	mu       sync.Mutex
	idle     sync.Cond   // granting became false
	running  int         // compactions
	waits    bool        // the database was refused, and may still want to compact
	granting bool        // the database is being asked
	closed   bool        // the database closes
	timer    *time.Timer // nil: no look is due
}

func newCompactions() *compactions {
	c := new(compactions)
	c.idle.L = &c.mu
	return c
}

// Register implements pebble.CompactionScheduler.
func (c *compactions) Register(_ int, db pebble.DBForCompaction) { c.db = db }

// Unregister implements pebble.CompactionScheduler. The database is not called any more after it.
func (c *compactions) Unregister() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.wait()
}

// wait waits until the database is not being asked. It is called with mu held.
func (c *compactions) wait() {
	for c.granting {
		c.idle.Wait()
	}
}

// TrySchedule implements pebble.CompactionScheduler.
func (c *compactions) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false, nil
	}
	if c.db.GetAllowedWithoutPermission() > c.running {
		c.running++
		return true, c
	}
	c.waits = true
	c.later()
	return false, nil
}

// later has the database looked at again if it waits. It is called with mu held.
func (c *compactions) later() {
	if c.waits && !c.closed && c.timer == nil {
		c.timer = time.AfterFunc(lookEvery, c.look)
	}
}

func (c *compactions) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = nil
	c.grant()
}

// UpdateGetAllowedWithoutPermission implements pebble.CompactionScheduler.
func (c *compactions) UpdateGetAllowedWithoutPermission() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil && c.timer.Stop() { // else look runs already, and waits for mu
		c.timer.Reset(0)
	}
}

// Started, MeasureCPU and CumulativeStats implement pebble.CompactionGrantHandle.
func (c *compactions) Started()                                          {}
func (c *compactions) MeasureCPU(pebble.CompactionGoroutineKind)         {}
func (c *compactions) CumulativeStats(pebble.CompactionGrantHandleStats) {}

// Done implements pebble.CompactionGrantHandle.
func (c *compactions) Done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	c.grant()
}

// grant starts compactions that wait. It is called with mu held, and lets go of it meanwhile.
func (c *compactions) grant() {
	c.wait()
	if c.closed || !c.waits {
		return
	}
	free := c.db.GetAllowedWithoutPermission() - c.running
	if free > 0 {
		c.waits, c.granting = false, true
		more := c.start(free)
		c.granting = false
		c.waits = c.waits || more
		c.idle.Broadcast()
	}
	c.later()
}

// start starts at most free compactions, and reports whether more may wait. It is called with mu held.
func (c *compactions) start(free int) (more bool) {
	for ; free > 0; free-- {
		c.running++
		c.mu.Unlock()
		waiting, _ := c.db.GetWaitingCompaction()
		started := waiting && c.db.Schedule(c)
		c.mu.Lock()
		if !started {
			c.running--
			return waiting // it found another one meanwhile, or none: the next look says it
		}
	}
	return true
}
