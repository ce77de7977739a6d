package sim

import (
	"slices"
	"time"
)

// befall does what an event of the scenario says. Its second part, if it has one, ends it.
func (f *fleet) befall(e *event) {
	what := &f.scenario.Events[e.arg]
	if what.Node < 0 {
		f.restartNext(e)
		return
	}
	n := f.nodes[what.Node]
	ends := e.gen == 1
	switch {
	case what.Do == "slow" && ends:
		n.slow = 1
	case what.Do == "slow":
		n.slow = what.Factor
	case what.Do == "fail" && ends, what.Do == "start":
		f.boot(n)
		if !n.member {
			n.member = true
			f.joined()
		}
	case what.Do == "fail":
		n.stop()
	case what.Do == "drain":
		n.member = false
		f.joined()
		n.drain(false)
	case what.Do == "restart":
		n.drain(true)
	}
	if what.For.Duration > 0 && !ends && (what.Do == "slow" || what.Do == "fail") {
		f.push(event{at: f.now + what.For.Duration, kind: fails, arg: e.arg, gen: 1})
	}
}

// restartNext restarts all nodes, one after the other: e.node is the next one. A node is restarted when the one before
// it is up again.
func (f *fleet) restartNext(e *event) {
	i := int(e.node)
	if i > 0 && !f.nodes[i-1].up || i > 0 && f.nodes[i-1].drains {
		f.push(event{at: f.now + drainLook, kind: fails, node: e.node, arg: e.arg})
		return
	}
	if i < len(f.nodes) && f.nodes[i].up {
		f.nodes[i].drain(true)
	}
	if i++; i <= f.scenario.Fleet.Nodes {
		f.push(event{at: f.now + drainLook, kind: fails, node: int32(i), arg: e.arg})
	}
}

const (
	drainLook = 100 * time.Millisecond
	// drainMost is how long a node that leaves waits for others to copy what it has.
	drainMost = time.Minute
)

// drain has a node take no more requests. It stops when those that it has are answered.
func (n *node) drain(again bool) {
	if !n.up || n.drains {
		return
	}
	n.drains, n.again, n.drained = true, again, n.f.now
	for _, r := range n.f.routers {
		r.view.Lost(int(n.id))
	}
	n.f.push(event{at: n.f.now + drainLook, kind: empties, node: n.id, gen: n.gen})
}

// empty stops a node that drains when nothing is left to do.
func (n *node) empty() {
	f := n.f
	copied := n.again || f.now-n.drained > drainMost || !slices.ContainsFunc(f.nodes, func(o *node) bool {
		return slices.ContainsFunc(o.back.tasks, func(t task) bool { return t.from == n.id })
	})
	if n.here > 0 || !copied {
		f.push(event{at: f.now + drainLook, kind: empties, node: n.id, gen: n.gen})
		return
	}
	n.stop()
	if n.again {
		f.push(event{at: f.now + f.scenario.Fleet.Boot.Duration, kind: boots, node: n.id, gen: n.gen})
	}
}

// stop kills a node. Its calls fail, and what it held is gone.
func (n *node) stop() {
	if !n.up {
		return
	}
	n.up, n.drains = false, false
	n.gen++
	n.back.tasks, n.back.active = nil, false
	for i, c := range n.f.calls.all {
		if c.here && c.node == n.id {
			c.here = false
			c.gen++ // its events are no longer for it
			n.f.failed(int32(i), c)
		}
	}
}

// boot puts a node up, with nothing in its memory.
func (f *fleet) boot(n *node) {
	if n.up {
		return
	}
	if err := n.start(); err != nil {
		panic(err) // it started before with the same sizes
	}
	f.awake(n)
	n.refill()
}
