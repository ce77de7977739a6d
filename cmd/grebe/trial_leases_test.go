package main

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// revokeAll ends all leases that the coordinator has given, at once. It returns how many.
func (c *trial) revokeAll() int {
	c.Helper()
	k, err := clientv3.New(clientv3.Config{Endpoints: []string{c.etcd.addr}, DialTimeout: 5 * time.Second})
	if err != nil {
		c.Fatal(err)
	}
	defer k.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	all, err := k.Leases(ctx)
	if err != nil {
		c.Fatal(err)
	}
	for _, l := range all.Leases {
		if _, err := k.Revoke(ctx, l.ID); err != nil {
			c.Fatal(err)
		}
	}
	return len(all.Leases)
}

// The leases of all nodes end at once. Clients notice nothing, and soon all nodes are registered again.
func TestTrialLeasesGone(t *testing.T) {
	c := newTrial(t, 3)
	pool := questions(t, long(300, 40), 16)
	load := startTraffic(t, c.half(pool), pool, anyOf(c.nodes...), nil)
	boots := c.boots()
	rounds, leases := long(10, 1), 0
	var worst time.Duration
	for range rounds {
		time.Sleep(long(3*time.Second, 500*time.Millisecond))
		n := c.revokeAll()
		if n < len(c.nodes) {
			t.Fatalf("there were %d leases of %d nodes", n, len(c.nodes))
		}
		leases += n
		worst = max(worst, c.settled(30*time.Second, c.nodes...))
	}
	time.Sleep(500 * time.Millisecond)
	list := load.stop()
	c.running()
	for id, boot := range c.boots() {
		if boots[id] != boot {
			t.Errorf("%s restarted", id)
		}
	}
	t.Logf("%d times all leases were revoked, %d in all: %d requests, none failed; all registered after at most %.2f s",
		rounds, leases, len(list), worst.Seconds())
	if worst > 5*time.Second {
		t.Errorf("registered after %v, want at most 5 s", worst)
	}
}
