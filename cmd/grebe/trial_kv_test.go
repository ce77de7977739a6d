package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"
)

// prepareKV makes a cluster of two nodes with little memory and two members that hold KV and compute nothing.
func prepareKV(t *testing.T) (c *trial, nodes, holders []*member) {
	t.Helper()
	c = prepareTrial(t, 4)
	nodes, holders = c.nodes[:2], c.nodes[2:]
	for _, m := range nodes {
		m.set = []string{"cache.host_memory=1MiB"}
	}
	for _, m := range holders {
		m.set = []string{"cluster.roles=[kv]"}
	}
	return c, nodes, holders
}

// held returns how many entries a member holds, and how many blocks it fetched and sent, as it says itself.
func (c *trial) held(m *member) (entries int, fetched, sent int64) {
	c.Helper()
	s, err := m.status()
	if err != nil {
		c.Fatal(err)
	}
	for _, n := range s.Nodes {
		if n.ID == m.id {
			entries = n.Models[0].Entries
		}
	}
	for _, x := range s.Transfers {
		switch m.id {
		case x.To:
			fetched += x.Blocks
		case x.From:
			sent += x.Blocks
		}
	}
	return entries, fetched, sent
}

// With two nodes that compute and two members that hold KV alone, requests that enter at any member get the bits of a
// single server, and some of the KV comes from members that did not compute it.
func TestTrialSameBitsKV(t *testing.T) {
	c, nodes, holders := prepareKV(t)
	c.startAll()
	pool := questions(t, long(10_000, 150), 21)
	by, _ := c.sameBits(pool)
	if by[nodes[0].id]+by[nodes[1].id] != len(pool) {
		t.Errorf("a member without the role node answered: %v", by)
	}
	for _, m := range holders {
		n, fetched, sent := c.held(m)
		t.Logf("%s holds %d entries, fetched %d blocks and sent %d", m.id, n, fetched, sent)
		if n == 0 || fetched == 0 {
			t.Errorf("%s holds nothing", m.id)
		}
		if trialFull() && sent == 0 {
			t.Errorf("%s sent nothing", m.id)
		}
	}
	c.running()
}

// A member that holds KV is killed under load, again and again: no request fails and no answer is wrong. It costs
// computation alone.
func TestTrialKillKV(t *testing.T) {
	c, _, holders := prepareKV(t)
	c.startAll()
	pool := questions(t, long(500, 40), 23)
	every := c.half(pool)
	r := rand.New(rand.NewPCG(24, uint64(time.Now().UnixNano())))
	asked, text := 0, ""
	for k := range long(20, 2) {
		victim, other := holders[k%2], holders[1-k%2]
		load := startTraffic(t, every, pool, anyOf(c.nodes[0], c.nodes[1], other), nil)
		time.Sleep(time.Second + time.Duration(r.IntN(800))*time.Millisecond)
		killed := time.Now()
		c.end(victim, syscall.SIGKILL)
		time.Sleep(2 * time.Second)
		c.launch(victim)
		c.settled(30*time.Second, c.nodes...)
		list := load.stop()
		asked += len(list)
		text += fmt.Sprintf(" %.0f/%.0f", 100*reused(between(list, list[0].at, killed)),
			100*reused(between(list, killed, killed.Add(2*time.Second))))
		c.running()
		if t.Failed() {
			t.Fatalf("kill %d, of %s", k+1, victim.id)
		}
	}
	t.Logf("%d requests: none failed, no answer was wrong; tokens that were cached before/after each kill, percent:%s",
		asked, text)
}

// A router computes nothing and holds nothing. It has the answers of the node, and without a node it says so.
func TestTrialRouterRole(t *testing.T) {
	c := prepareTrial(t, 2)
	node, router := c.nodes[0], c.nodes[1]
	router.set = []string{"cluster.roles=[router]"}
	c.startAll()
	pool := questions(t, long(500, 40), 25)
	parallel(4, len(pool), func(i int) {
		a, err := pool[i].ask(router.listen)
		if err != nil || a.Node != node.id || !bytes.Equal(a.Results, pool[i].want) {
			t.Errorf("%s: %v, %s answers\n%s\nwant\n%s", pool[i].body, err, a.Node, a.Results, pool[i].want)
		}
	})
	c.end(node, syscall.SIGKILL)
	c.until(30*time.Second, func() string {
		_, err := pool[0].ask(router.listen)
		if err == nil {
			t.Fatal("the router answered without a node")
		}
		if !errors.Is(err, errAway) || !strings.Contains(err.Error(), "no_node") {
			return err.Error()
		}
		return ""
	})
	c.running()
}

// Users who are deleted are deleted on members that hold KV too, also on one that was down meanwhile and has them on
// disk.
func TestTrialDeletedUsersKV(t *testing.T) {
	c, nodes, holders := prepareKV(t)
	for i := range nodes {
		nodes[i].set = nil // room for all users: none leaves before it was offered
		holders[i].set = append(holders[i].set, "cache.disk=64MiB")
	}
	c.startAll()
	var users []*customer
	for i := range 16 {
		u := &customer{id: fmt.Sprint("kv-", i), text: fmt.Sprintf(
			"Customer %d likes lamps, chairs and anything that is %d cm wide.", i, 20+i)}
		users = append(users, u)
		c.put(nodes[0], u)
		c.rank(nodes[i%2], u)
	}
	away, there := holders[0], holders[1]
	c.until(20*time.Second, func() string {
		a, _, _ := c.held(away)
		if b, _, _ := c.held(there); a == 0 || b == 0 || a+b < len(users) {
			return fmt.Sprintf("of %d users %s holds %d and %s %d", len(users), away.id, a, there.id, b)
		}
		return ""
	})
	c.end(away, syscall.SIGTERM)
	for _, u := range users {
		c.remove(nodes[1], u)
	}
	c.until(10*time.Second, func() string {
		if n, _, _ := c.held(there); n != 0 {
			return fmt.Sprintf("%s holds %d deleted users", there.id, n)
		}
		return ""
	})
	c.launch(away)
	c.settled(time.Minute, c.nodes...)
	if n, _, _ := c.held(away); n != 0 {
		t.Errorf("%s was down, and offers %d users who were deleted meanwhile", away.id, n)
	}
	for _, u := range users {
		c.put(nodes[0], u)
		if node, cached, source := c.rank(nodes[0], u); cached != 0 {
			t.Errorf("%d tokens of %s, who was deleted, came from %s on %s", cached, u.id, source, node)
		}
	}
	c.running()
}
