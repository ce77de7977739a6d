package main

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
)

// Whichever node a request enters at and whichever node answers it, with KV cached or computed, it gets the bits of a
// single server. Each node routes in another way, so that answers come from all of them.
func TestTrialSameBits(t *testing.T) {
	c := prepareTrial(t, 3)
	for i, policy := range []string{"predicted", "round-robin", "least-loaded"} {
		c.nodes[i].set = []string{"cluster.routing=" + policy}
	}
	c.startAll()
	pool := questions(t, long(10_000, 100), 1)
	by, cached := c.sameBits(pool)
	for _, m := range c.nodes {
		if by[m.id] < len(pool)/20 {
			t.Errorf("%s answered %d of %d requests", m.id, by[m.id], len(pool))
		}
	}
	if cached == 0 {
		t.Error("nothing was reused")
	}
	c.running()
}

// sameBits asks all questions at random members and wants the answers of the single server. It returns how many each
// node answered, and the tokens that were cached.
func (c *trial) sameBits(pool []*question) (by map[string]int, cached int) {
	c.Helper()
	r := rand.New(rand.NewPCG(2, 2))
	entries := make([]string, len(pool))
	for i := range entries {
		entries[i] = anyOf(c.nodes...)(r)
	}
	var mu sync.Mutex
	prompt, wrong := 0, 0
	by = map[string]int{}
	parallel(4, len(pool), func(i int) {
		q := pool[i]
		a, err := q.ask(entries[i])
		mu.Lock()
		defer mu.Unlock()
		if err != nil || !bytes.Equal(a.Results, q.want) {
			if wrong++; wrong <= 5 {
				c.Errorf("%s entering at %s: %v, node %s answers\n%s\nwant\n%s", q.body, entries[i], err, a.Node, a.Results, q.want)
			}
		}
		by[a.Node]++
		prompt, cached = prompt+a.Usage.Prompt, cached+a.Usage.Cached
	})
	c.Logf("%d requests, %d failed or wrong; answered by %v; %d of %d tokens were cached", len(pool), wrong, by, cached,
		prompt)
	return by, cached
}
