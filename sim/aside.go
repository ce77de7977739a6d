package sim

import (
	"time"

	"grebe/residency"
)

// aside counts the accesses that nodes noted, in a goroutine of its own: that waits for memory most of the time, and
// nothing needs the counts before the node's next event. A node that has work there settles before it does anything.
type aside struct {
	jobs chan counting
	done chan struct{}
}

// counting is the work of one node.
type counting struct {
	hot   *residency.Hotness
	now   time.Duration
	ended chan<- struct{}
}

// countAside has accesses counted aside. The caller MUST call the function that it returns: it ends the goroutine.
func (f *fleet) countAside() (end func()) {
	a := &aside{jobs: make(chan counting, len(f.nodes)), done: make(chan struct{})} // a node has one job at most
	f.aside = a
	go func() {
		defer close(a.done)
		for j := range a.jobs {
			j.count()
			j.ended <- struct{}{}
		}
	}()
	return func() {
		f.aside = nil
		close(a.jobs)
		<-a.done
	}
}

func (j *counting) count() {
	for j.hot.Apply(j.now) {
	}
}

// count counts noted accesses, as Cache.Run does, and trains models of when entries return, as Store.Predict does.
func (n *node) count() {
	j := counting{n.hot, n.f.now, n.counted}
	if n.f.aside == nil {
		j.count()
	} else {
		n.counting = true
		n.f.aside.jobs <- j
	}
	n.users.train()
	if n.items != n.users {
		n.items.train()
	}
}

// settle waits for the node's work that is done aside.
func (n *node) settle() {
	if n.counting {
		<-n.counted
		n.counting = false
	}
}
