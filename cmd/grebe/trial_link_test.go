package main

import (
	"testing"
	"time"
)

// A node that is slower gets little of the traffic, and its part again when it is as fast as before.
func TestTrialSlowNode(t *testing.T) {
	if !trialFull() {
		t.Skip("takes two minutes: GREBE_TRIAL=full, or `make cluster-test`")
	}
	for _, policy := range []string{"predicted", "round-robin"} {
		t.Run(policy, func(t *testing.T) { slowNode(t, policy) })
	}
}

func slowNode(t *testing.T, policy string) {
	device := "device=cpu"
	if policy == "predicted" {
		// Each node has its own device, which no other process slows down. So two nodes are slower than three, and a policy
		// that looks at times has a reason to use the third one.
		device = "device=none:3ms+100us"
	}
	c := prepareTrial(t, 3, "cluster.routing="+policy, device)
	slow := c.nodes[2]
	l := startLink(t, slow.peer)
	slow.advertise = l.addr()
	c.startAll()
	pool := questions(t, 300, 12, device)
	load := startTraffic(t, c.half(pool), pool, anyOf(c.nodes[:2]...), nil)
	time.Sleep(10 * time.Second)
	l.later.Store(int64(50 * time.Millisecond))
	fell := time.Now()
	time.Sleep(20 * time.Second)
	l.later.Store(0)
	back := time.Now()
	time.Sleep(25 * time.Second)
	list := load.stop()
	before := share(list, slow, fell.Add(-5*time.Second), fell)
	early, late := share(list, slow, fell, fell.Add(5*time.Second)), share(list, slow, fell.Add(5*time.Second), back)
	after := share(list, slow, back.Add(15*time.Second), back.Add(25*time.Second))
	t.Logf("%d requests; part of the slow node: %.1f %% before, %.1f %% in the first 5 s of 50 ms more, %.1f %% after "+
		"that, "+
		"%.1f %% 15 s after its end", len(list), 100*before, 100*early, 100*late, 100*after)
	for s := fell.Add(-2 * time.Second); s.Before(back.Add(25 * time.Second)); s = s.Add(time.Second) {
		t.Logf("%4.0f s: %.1f %%, P99 %.1f ms", s.Sub(fell).Seconds(), 100*share(list, slow, s, s.Add(time.Second)),
			ms(quantile(between(list, s, s.Add(time.Second)), .99)))
	}
	if before < .2 {
		t.Errorf("the node gets %.1f %% before it is slow: its part then shows nothing", 100*before)
	}
	if late > .1 {
		t.Errorf("the slow node gets %.1f %%, want at most 10 %%", 100*late)
	}
	if after < before/2 {
		t.Errorf("15 s after its end the node gets %.1f %%, before it was %.1f %%", 100*after, 100*before)
	}
}

// share returns a node's part of the answers to requests in [from, to).
func share(list []sample, m *member, from, to time.Time) float64 {
	list = between(list, from, to)
	n := 0
	for _, s := range list {
		if s.node == m.id {
			n++
		}
	}
	return float64(n) / float64(max(1, len(list)))
}

// separable makes a cluster of two nodes that can be cut off from each other, and the second one from the coordinator
// too.
func separable(t *testing.T) (c *trial, links []*link) {
	t.Helper()
	c = prepareTrial(t, 2)
	for _, m := range c.nodes {
		l := startLink(t, m.peer)
		m.advertise = l.addr()
		links = append(links, l)
	}
	c.etcd = startEtcd(t)
	l := startLink(t, c.etcd.addr)
	c.nodes[1].set = []string{"cluster.coordinator=etcd://" + l.addr()}
	return c, append(links, l)
}

// Two nodes cannot reach each other, and one of them not the coordinator. Both go on, and find each other when the
// network is back.
func TestTrialPartition(t *testing.T) {
	if !trialFull() {
		t.Skip("takes a minute: GREBE_TRIAL=full, or `make cluster-test`")
	}
	c, links := separable(t)
	c.startAll()
	pool := questions(t, 300, 13)
	load := startTraffic(t, c.half(pool), pool, anyOf(c.nodes...), nil)
	time.Sleep(5 * time.Second)
	boots := c.boots()
	fell := time.Now()
	for _, l := range links {
		l.cut()
	}
	time.Sleep(30 * time.Second)
	for _, l := range links {
		l.mend()
	}
	back := time.Now()
	took := c.settled(30*time.Second, c.nodes...)
	time.Sleep(5 * time.Second)
	list := load.stop()
	apart := between(list, fell, back)
	t.Logf("%d requests, %d while the nodes were apart: none failed; P99 %.1f ms before, then slowest %.2f s, "+
		"P99 %.1f ms 5 s later; together after %.2f s", len(list), len(apart),
		ms(quantile(between(list, fell.Add(-5*time.Second), fell), .99)),
		quantile(apart, 1).Seconds(), ms(quantile(between(list, fell.Add(5*time.Second), back), .99)), took.Seconds())
	c.running()
	for id, boot := range c.boots() {
		if boots[id] != boot {
			t.Errorf("%s restarted", id)
		}
	}
	if took > 10*time.Second {
		t.Errorf("together after %v", took)
	}
}
