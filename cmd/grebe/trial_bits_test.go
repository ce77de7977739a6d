package main

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
)

// Whichever node a request enters at and whichever node answers it, with KV cached or computed, it gets the bits of a single server.
// Each node routes in another way, so that answers come from all of them.
func TestTrialSameBits(t *testing.T) {
	c := prepareTrial(t, 3)
	for i, policy := range []string{"predicted", "round-robin", "least-loaded"} {
		c.nodes[i].set = []string{"cluster.routing=" + policy}
	}
	c.startAll()
	pool := questions(t, long(10_000, 100), 1)
	r := rand.New(rand.NewPCG(2, 2))
	entries := make([]string, len(pool))
	for i := range entries {
		entries[i] = anyOf(c.nodes...)(r)
	}
	var mu sync.Mutex
	by, prompt, cached, wrong := map[string]int{}, 0, 0, 0
	parallel(4, len(pool), func(i int) {
		a, err := pool[i].ask(entries[i])
		mu.Lock()
		defer mu.Unlock()
		if err != nil || !bytes.Equal(a.Results, pool[i].want) {
			if wrong++; wrong <= 5 {
				t.Errorf("%s entering at %s: %v, node %s answers\n%s\nwant\n%s", pool[i].body, entries[i], err, a.Node, a.Results, pool[i].want)
			}
		}
		by[a.Node]++
		prompt, cached = prompt+a.Usage.Prompt, cached+a.Usage.Cached
	})
	t.Logf("%d requests, %d failed or wrong; answered by %v; %d of %d tokens were cached", len(pool), wrong, by, cached, prompt)
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
