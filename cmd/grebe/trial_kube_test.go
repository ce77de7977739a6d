package main

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"grebe/cluster/coord/coordtest"
	"grebe/cluster/coord/kube/kubetest"
)

// onKubernetes lets the API server of Kubernetes coordinate a trial, through a link that can be stalled.
func (c *trial) onKubernetes() (*kubetest.Server, *coordtest.Proxy) {
	c.Helper()
	server := kubetest.New()
	u, err := url.Parse(server.Listen(c, "trial"))
	if err != nil {
		c.Fatal(err)
	}
	link := coordtest.NewProxy(c, u.Host)
	u.Host = link.Addr()
	c.at = u.String()
	return server, link
}

// While the API server of Kubernetes is away, stopped or failing, for longer than all leases, nothing changes for clients. Soon
// after it is back, all nodes are registered.
func TestTrialKubernetesAway(t *testing.T) {
	if !trialFull() {
		t.Skip("it takes minutes: GREBE_TRIAL=full runs it, and TestTrialChart has a short form")
	}
	c := prepareTrial(t, 3)
	server, link := c.onKubernetes()
	c.startAll()
	pool := questions(t, 300, 6)
	every := c.half(pool)
	type fault struct {
		name     string
		down, up func()
	}
	fails := func() { server.Fail(1 << 30); server.DropWatches(true) }
	const lasts = time.Minute
	for _, f := range []fault{{"stopped", link.Stall, link.Resume}, {"failing", fails, func() { server.Fail(0) }}} {
		load := startTraffic(t, every, pool, anyOf(c.nodes...), nil)
		boots := c.boots()
		f.down()
		c.until(time.Minute, func() string { // all notice
			for _, m := range c.nodes {
				if s, err := m.status(); err != nil || s.Coordinator == "up" {
					return m.id + " does not notice"
				}
			}
			return ""
		})
		time.Sleep(lasts)
		f.up()
		took := c.settled(time.Minute, c.nodes...)
		t.Logf("the API server %s for %v: %d requests, none failed; all registered after %.2f s",
			f.name, lasts, len(load.stop()), took.Seconds())
		c.running()
		for id, boot := range c.boots() {
			if boots[id] != boot {
				t.Errorf("%s restarted", id)
			}
		}
	}
	out, errs, code := grebe(t, "cluster", "status", "--server", "http://"+c.nodes[0].admin)
	if code != 0 || !strings.Contains(out, `"coordinator":"up"`) {
		t.Errorf("grebe cluster status exits with %d: %s%s", code, out, errs)
	}
}
