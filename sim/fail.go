package sim

import "slices"

// befall does what an event of the scenario says.
func (f *fleet) befall(e *event) {
	what := &f.scenario.Events[e.arg]
	n := f.nodes[max(what.Node, 0)]
	switch what.Do {
	case "slow":
		n.slow = what.Factor
	case "fail":
		n.stop()
	case "start":
		f.boot(n)
	}
}

// stop kills a node. Its calls fail.
func (n *node) stop() {
	if !n.up {
		return
	}
	n.up = false
	n.gen++
	var failed []int32
	for i := range n.here {
		failed = append(failed, i)
	}
	slices.Sort(failed)
	for _, i := range failed {
		c := n.f.calls.all[i]
		c.gen++ // its events are no longer for it
		n.f.failed(i, c)
	}
}

// boot puts a node up.
func (f *fleet) boot(n *node) {
	if n.up {
		return
	}
	if err := n.start(f.now); err != nil {
		panic(err) // it started before with the same sizes
	}
	f.awake(n)
}
