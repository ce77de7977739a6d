package driver

import (
	"sync"
	"time"
	"unsafe"
)

// Stream is a queue of work that runs in order.
type Stream struct {
	c      *Context
	handle uintptr
}

// NewStream returns a stream that does not wait for the default one. The caller MUST Close it.
func (c *Context) NewStream() (*Stream, error) {
	const nonBlocking = 1
	s := &Stream{c: c}
	if err := c.call(cu.streamCreate, uintptr(unsafe.Pointer(&s.handle)), nonBlocking); err != nil {
		return nil, err
	}
	return s, nil
}

// NewUrgentStream is NewStream for work whose blocks go ahead of those of other streams that wait for a multiprocessor.
func (c *Context) NewUrgentStream() (*Stream, error) {
	const nonBlocking, first = 1, 1<<32 - 1 // priorities are ints: −1 goes ahead of 0
	s := &Stream{c: c}
	if err := c.call(cu.streamCreateUrgent, uintptr(unsafe.Pointer(&s.handle)), nonBlocking, first); err != nil {
		return nil, err
	}
	return s, nil
}

// Context returns the GPU that the stream is of.
func (s *Stream) Context() *Context { return s.c }

// Close gives the stream back once its work is done.
func (s *Stream) Close() error { return s.c.call(cu.streamDestroy, s.handle) }

// Sync waits for the stream's work.
func (s *Stream) Sync() error { return s.c.hot(&cu.streamSync, s.handle) }

// Wait makes the stream's further work wait for e.
func (s *Stream) Wait(e *Event) error { return s.c.hot(&cu.streamWait, s.handle, e.handle, 0) }

// WaitOutside is Wait while the stream is captured, for an event that is recorded outside of the capture: the
// graph waits for what was recorded last before it is launched.
func (s *Stream) WaitOutside(e *Event) error {
	const external = 1
	return s.c.hot(&cu.streamWait, s.handle, e.handle, external)
}

// Event is a point in a stream.
type Event struct {
	c      *Context
	handle uintptr
}

// NewEvent returns an event; only a timed one can be used with Elapsed. The caller MUST Close it.
func (c *Context) NewEvent(timed bool) (*Event, error) {
	const blocking, untimed = 1, 2
	flags := uintptr(blocking)
	if !timed {
		flags |= untimed
	}
	e := &Event{c: c}
	if err := c.call(cu.eventCreate, uintptr(unsafe.Pointer(&e.handle)), flags); err != nil {
		return nil, err
	}
	return e, nil
}

// Close gives the event back.
func (e *Event) Close() error { return e.c.call(cu.eventDestroy, e.handle) }

// Record puts the event at the end of the stream's work so far.
func (e *Event) Record(s *Stream) error { return e.c.hot(&cu.eventRecord, e.handle, s.handle) }

// RecordOutside is Record while the stream is captured, for an event that is waited for outside of the capture: each
// launch of the graph records it.
func (e *Event) RecordOutside(s *Stream) error {
	const external = 1
	return e.c.hot(&cu.eventRecordFlags, e.handle, s.handle, external)
}

// Sync waits for the event. The thread sleeps meanwhile.
func (e *Event) Sync() error { return e.c.hot(&cu.eventSync, e.handle) }

// Done reports whether the event has come.
func (e *Event) Done() (bool, error) {
	r, err := e.c.query(&cu.eventQuery, e.handle)
	return err == nil && r == 0, err
}

// Since returns the time from start to e, both of which have come.
func (e *Event) Since(start *Event) (time.Duration, error) {
	var ms float32
	err := e.c.call(cu.eventElapsed, uintptr(unsafe.Pointer(&ms)), start.handle, e.handle)
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}

// Graph is a captured sequence of work that is started as a whole. It holds the addresses and
// numbers of its launches as they were when it was captured.
type Graph struct {
	c      *Context
	handle uintptr // executable
}

// captures is held by those who capture, and for writing by those who wait for a whole context: the driver spoils the
// captures of all threads when one waits. It is one for all GPUs, and for all Contexts of a GPU, which share one of the
// driver's.
var captures sync.RWMutex

// Capture records what f puts into the stream instead of running it. f MUST NOT wait for the GPU
// or allocate its memory. The caller MUST Close the graph after its last launch has run.
func (s *Stream) Capture(f func() error) (*Graph, error) {
	const threadLocal = 1 // allocations of other threads do no harm
	captures.RLock()
	defer captures.RUnlock()
	if err := s.c.call(cu.streamBeginCapture, s.handle, threadLocal); err != nil {
		return nil, err
	}
	failed := f()
	var captured uintptr
	err := s.c.call(cu.streamEndCapture, s.handle, uintptr(unsafe.Pointer(&captured)))
	if failed != nil {
		err = failed // the other one follows from it
	}
	if captured != 0 {
		defer s.c.call(cu.graphDestroy, captured)
	}
	if err != nil {
		return nil, err
	}
	g := &Graph{c: s.c}
	if err := s.c.call(cu.graphInstantiate, uintptr(unsafe.Pointer(&g.handle)), captured, 0); err != nil {
		return nil, err
	}
	return g, nil
}

// Launch starts the graph in the stream's order.
func (g *Graph) Launch(s *Stream) error { return g.c.hot(&cu.graphLaunch, g.handle, s.handle) }

// Close gives the graph back. It MUST NOT be running.
func (g *Graph) Close() error { return g.c.call(cu.graphExecDestroy, g.handle) }
