package main

import (
	"syscall"
	"testing"
	"time"
)

// While etcd is away, killed or only stopped, for longer than all leases, nothing changes for clients. Soon after it is back, all
// nodes are registered.
func TestTrialCoordinatorAway(t *testing.T) {
	c := newTrial(t, 3)
	pool := questions(t, long(300, 40), 6)
	every := c.half(pool)
	for range long(10, 1) { // the caches are warm
		parallel(4, len(pool), func(i int) {
			if _, err := pool[i].ask(c.nodes[i%3].listen); err != nil {
				t.Error(err)
			}
		})
	}
	for _, fault := range []struct {
		name     string
		down, up func()
	}{
		{"killed", c.etcd.kill, c.etcd.start},
		{"stopped", func() { c.etcd.signal(syscall.SIGSTOP) }, func() { c.etcd.signal(syscall.SIGCONT) }},
	} {
		lasts := long(60*time.Second, 5*time.Second)
		load := startTraffic(t, every, pool, anyOf(c.nodes...), nil)
		began := time.Now()
		time.Sleep(lasts / 5)
		boots := c.boots()
		fell := time.Now()
		fault.down()
		time.Sleep(lasts)
		fault.up()
		back := time.Now()
		took := c.settled(30*time.Second, c.nodes...)
		list := load.stop()
		before, while := reused(between(list, began, fell)), reused(between(list, fell, back))
		t.Logf("etcd %s for %v: %d requests, none failed; reuse %.2f %% before and %.2f %% meanwhile; all registered after %.2f s",
			fault.name, back.Sub(fell).Round(time.Second), len(list), 100*before, 100*while, took.Seconds())
		if took > 5*time.Second {
			t.Errorf("registered after %v, want at most 5 s", took)
		}
		if trialFull() && while < before-.01 { // a short one has too few requests to tell
			t.Errorf("reuse fell from %.4f to %.4f", before, while)
		}
		c.running()
		for id, boot := range c.boots() {
			if boots[id] != boot {
				t.Errorf("%s restarted", id)
			}
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
