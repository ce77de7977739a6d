package main

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// While etcd is away, killed or only stopped, for longer than all leases, nothing changes for clients. Soon after it is
// back, all nodes are registered.
func TestTrialCoordinatorAway(t *testing.T) {
	c := newTrial(t, 3)
	pool := questions(t, long(300, 40), 6)
	every := c.half(pool)
	c.warm(pool)
	for _, f := range []fault{
		{"etcd killed", c.etcd.kill, c.etcd.start},
		{"etcd stopped", func() { c.etcd.signal(syscall.SIGSTOP) }, func() { c.etcd.signal(syscall.SIGCONT) }},
	} {
		if took := c.away(f, long(60*time.Second, 5*time.Second), every, pool, anyOf(c.nodes...)); took > 5*time.Second {
			t.Errorf("registered after %v, want at most 5 s", took)
		}
	}
}

// warm asks all questions until the caches are warm.
func (c *trial) warm(pool []*question) {
	c.Helper()
	for range long(10, 1) {
		parallel(4, len(pool), func(i int) {
			if _, err := pool[i].ask(c.nodes[i%len(c.nodes)].listen); err != nil {
				c.Error(err)
			}
		})
	}
}

// fault keeps the coordinator away from all processes.
type fault struct {
	name     string
	down, up func()
}

// away lets the coordinator be away for a time under load. Clients notice nothing, and no process restarts. It returns
// how long it took until all were registered again.
func (c *trial) away(f fault, lasts, every time.Duration, pool []*question,
	entry func(r *rand.Rand) string) time.Duration {
	c.Helper()
	load := startTraffic(c.T, every, pool, entry, nil)
	began := time.Now()
	time.Sleep(lasts / 5)
	boots := c.boots()
	fell := time.Now()
	f.down()
	time.Sleep(lasts)
	if trialFull() { // a short one is over before a lease is
		for _, m := range c.nodes {
			if s, err := m.status(); err != nil || s.Coordinator == "up" {
				c.Errorf("%s does not notice %s: %v", m.id, f.name, err)
			}
		}
	}
	f.up()
	back := time.Now()
	took := c.settled(time.Minute, c.nodes...)
	list := load.stop()
	c.Logf("%s for %v: %d requests, none failed; all registered after %.2f s",
		f.name, back.Sub(fell).Round(time.Second), len(list), took.Seconds())
	c.reuseStays(between(list, began, fell), between(list, fell, back))
	c.same(boots)
	return took
}

// reuseStays checks that reuse did not fall by more than a point. A short trial has too few requests to tell.
func (c *trial) reuseStays(before, while []sample) {
	c.Helper()
	was, is, n := reusedAlike(before, while)
	c.Logf("reuse of %d questions was %.2f %% before and %.2f %% meanwhile; of all requests %.2f %% and %.2f %%",
		n, 100*was, 100*is, 100*reused(before), 100*reused(while))
	if trialFull() && (is < was-.01 || n < 100) {
		c.Errorf("reuse of %d questions fell from %.4f to %.4f", n, was, is)
	}
}

// same checks that all processes are those of before.
func (c *trial) same(boots map[string]string) {
	c.Helper()
	c.running()
	for id, boot := range c.boots() {
		if boots[id] != boot {
			c.Errorf("%s restarted", id)
		}
	}
}

// boots returns the processes of the nodes as they call themselves.
func (c *trial) boots() map[string]string {
	c.Helper()
	out := map[string]string{}
	for _, m := range c.nodes {
		s, err := m.status()
		if err != nil {
			c.Fatal(err)
		}
		for _, n := range s.Nodes {
			if n.ID == m.id {
				out[n.ID] = n.Boot
			}
		}
	}
	return out
}
