package main

import (
	"context"
	"math/rand/v2"
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
	every := c.half(pool)
	if trialFull() {
		c.warm(pool)
	}
	there := func() string { return "" } // etcd deletes what had a lease before it answers
	if worst := c.leasesGone(c.revokeAll, there, every, pool, anyOf(c.nodes...)); worst > 5*time.Second {
		t.Errorf("registered after %v, want at most 5 s", worst)
	}
}

// leasesGone ends all leases under load, again and again, and waits until there reports no problem and all are
// registered. Clients notice nothing, and no process restarts. It returns how long it took at most.
func (c *trial) leasesGone(revoke func() int, there func() string, every time.Duration, pool []*question,
	entry func(r *rand.Rand) string) (worst time.Duration) {
	c.Helper()
	load := startTraffic(c.T, every, pool, entry, nil)
	boots := c.boots()
	began := time.Now()
	time.Sleep(long(12*time.Second, 0)) // so much that reuse can be compared
	first := time.Now()
	rounds, leases := long(10, 1), 0
	for range rounds {
		time.Sleep(long(3*time.Second, 500*time.Millisecond))
		n := revoke()
		if n < len(c.nodes) {
			c.Fatalf("there were %d leases of %d nodes", n, len(c.nodes))
		}
		leases += n
		worst = max(worst, c.until(time.Minute, func() string {
			if p := there(); p != "" {
				return p
			}
			return c.unsettled(c.nodes...)
		}))
	}
	time.Sleep(500 * time.Millisecond)
	list := load.stop()
	c.same(boots)
	c.Logf("%d times all leases were revoked, %d in all: %d requests, none failed; all registered after at most %.2f s",
		rounds, leases, len(list), worst.Seconds())
	if trialFull() { // otherwise there is nothing before
		c.reuseStays(between(list, began, first), between(list, first, time.Now()))
	}
	return worst
}
