package kube

import (
	"testing"
	"testing/synctest"
	"time"

	"grebe/cluster/coord"
	"grebe/cluster/coord/coordtest"
	"grebe/cluster/coord/kube/kubetest"
)

// world is an API server in memory, as the suite sees it.
type world struct {
	*kubetest.Server
	net *kubetest.Network
}

func newWorld(t testing.TB) *world {
	s := kubetest.New()
	return &world{s, kubetest.NewNetwork(t, s)}
}

func (w *world) Open(t testing.TB) (coord.Coordinator, coordtest.Link) {
	t.Helper()
	c, l := w.open(t)
	return c, l
}

func (w *world) open(t testing.TB) (*Client, *kubetest.Link) {
	t.Helper()
	l := w.net.Link()
	c, err := Open(Options{Server: "kubernetes:443", Namespace: "shop", Cluster: "c1", Dial: l.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, l
}

func (w *world) Restart(testing.TB)    { w.net.Restart() }
func (w *world) Compact(testing.TB)    { w.Server.Compact() }
func (w *world) MinTTL() time.Duration { return 2 * time.Second }

// virtual runs a test in virtual time.
func virtual(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newWorld(t)) })
}

func TestSuite(t *testing.T) {
	for _, c := range coordtest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			virtual(t, func(t *testing.T, w *world) { c.Run(t, w) })
		})
	}
}
