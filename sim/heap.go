package sim

import "time"

// kind says what happens at an event.
type kind uint8

const (
	arrives   kind = iota // the next request reaches a router
	reaches               // a call reaches its node
	asks                  // a GET of a call reaches a peer: arg is a flow
	flows                 // the first byte of a flow reaches its receiver
	lands                 // the last byte of a flow reaches its receiver
	patience              // a call waits no longer for its flows
	steps                 // a node looks at its queue again: arg is the number of the wake
	ends                  // a batch ends: arg is the engine
	answers               // an answer reaches the router
	beats                 // a node sends heartbeat and feed
	hears                 // a router gets a heartbeat: arg is the message
	counts                // a node counts the noted accesses
	epochs                // a node's controller looks at the boundary
	enters                // the embedding rows of a call are there
	refreshes             // the placement map is made again
	fills                 // a node brings items that the map gives it
	fails                 // an event of the scenario: arg is its number
	boots                 // a node that was restarted is up
	empties               // a node that drains looks whether it is done
	samples               // a sample of the time series
)

// event is something that happens at a time. Events at the same time happen in the order in which they were added.
type event struct {
	at   time.Duration
	seq  uint64
	kind kind
	node int32
	arg  int32
	gen  uint32 // of arg or of the node, so that an event of something that is gone is ignored
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// heap is a heap of events with four children per event.
type heap struct {
	events []event
	seq    uint64
}

func (h *heap) push(e event) {
	h.seq++
	e.seq = h.seq
	i := len(h.events)
	h.events = append(h.events, e)
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&h.events[up]) {
			break
		}
		h.events[i] = h.events[up]
		i = up
	}
	h.events[i] = e
}

// pop removes the first event. The heap MUST NOT be empty.
func (h *heap) pop() event {
	first := h.events[0]
	n := len(h.events) - 1
	last := h.events[n]
	h.events = h.events[:n]
	if n == 0 {
		return first
	}
	i := 0
	for {
		child := 4*i + 1
		if child >= n {
			break
		}
		best := child
		for c := child + 1; c < min(child+4, n); c++ {
			if h.events[c].before(&h.events[best]) {
				best = c
			}
		}
		if !h.events[best].before(&last) {
			break
		}
		h.events[i] = h.events[best]
		i = best
	}
	h.events[i] = last
	return first
}
