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
	var link *coordtest.Proxy
	c.at, link = listenAPI(c, server, "trial")
	return server, link
}

// listenAPI serves the API server of Kubernetes through a link, and returns the address for cluster.coordinator.
func listenAPI(t testing.TB, server *kubetest.Server, namespace string) (string, *coordtest.Proxy) {
	t.Helper()
	u, err := url.Parse(server.Listen(t, namespace))
	if err != nil {
		t.Fatal(err)
	}
	link := coordtest.NewProxy(t, u.Host)
	u.Host = link.Addr()
	return u.String(), link
}

// apiFaults are the ways in which the API server is away.
func apiFaults(server *kubetest.Server, link *coordtest.Proxy) []fault {
	return []fault{
		{"the API server failing", func() { server.Fail(1 << 30); server.DropWatches(true) }, func() { server.Fail(0) }},
		{"the API server hanging", link.Stall, link.Resume},
	}
}

// While the API server of Kubernetes is away, hanging or failing, for longer than all leases, nothing changes for
// clients. Soon after it is back, all nodes are registered.
func TestTrialKubernetesAway(t *testing.T) {
	if !trialFull() {
		t.Skip("it takes minutes: GREBE_TRIAL=full runs it, and TestTrialChart has a short form")
	}
	c := prepareTrial(t, 3)
	server, link := c.onKubernetes()
	c.startAll()
	pool := questions(t, 300, 6)
	every := c.half(pool)
	c.warm(pool)
	for _, f := range apiFaults(server, link) {
		if took := c.away(f, time.Minute, every, pool, anyOf(c.nodes...)); took > 5*time.Second {
			t.Errorf("registered after %v, want at most 5 s", took)
		}
	}
	out, errs, code := grebe(t, "cluster", "status", "--server", "http://"+c.nodes[0].admin)
	if code != 0 || !strings.Contains(out, `"coordinator":"up"`) {
		t.Errorf("grebe cluster status exits with %d: %s%s", code, out, errs)
	}
}
