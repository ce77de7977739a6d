package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"grebe/bench/report"
)

// Over links of 0.1, 1 and 10 Gb/s, nodes that fetch KV from each other answer no later than nodes that never do. Two
// clusters of two nodes get the same requests in pairs. Each node is in a network namespace, and a token bucket bounds
// the link between two nodes.
//
// The device takes a known time and nothing of the processor, so that clusters do not disturb each other. A token has
// 2 KiB of KV. So a device of 15 µs a token computes about as fast as 1 Gb/s brings KV, and one of 150 µs as 0.1
// Gb/s. With 15 µs answers are short, so that the same noise is a larger part of them: there are more pairs.
func TestTrialLinks(t *testing.T) {
	if !trialFull() {
		t.Skip("takes ten minutes: GREBE_TRIAL=full, or `make cluster-test`")
	}
	if !inNetwork(t) {
		return
	}
	n := newRates(t)
	for _, mbit := range []int{100, 1000, 10_000} {
		for _, d := range []slowness{{"15us", 60}, {"150us", 20}} {
			for _, routing := range []string{"round-robin", "predicted"} {
				t.Run(fmt.Sprintf("%dMbit-%s-%s", mbit, d.token, routing), func(t *testing.T) {
					n.compare(t, mbit, d, routing)
				})
			}
		}
	}
}

// slowness is the time that a device takes for a token, and how many blocks of pairs measure it.
type slowness struct {
	token  string
	blocks int
}

// rates is a network of two pairs of hosts and a coordinator.
type rates struct {
	etcd  string      // address of the coordinator
	hosts [2][2]*host // of the cluster that fetches, and of the other one
	addrs [2][2]string

	started int // clusters; each has a name of its own
}

func newRates(t *testing.T) *rates {
	t.Helper()
	startHub(t)
	n := &rates{etcd: startLinkAt(t, hub+":2379", startEtcd(t).addr).addr()}
	for i := range n.hosts {
		h, a := &n.hosts[i], &n.addrs[i]
		h[0], h[1] = startHost(t, 2*i), startHost(t, 2*i+1)
		a[0], a[1] = joinHosts(t, i, h[0], h[1])
	}
	n.limit(t, 10_000) // the whole test is skipped if links cannot be limited
	return n
}

// limit bounds the rates of the links between nodes.
func (n *rates) limit(t *testing.T, mbit int) {
	t.Helper()
	for i := range n.hosts {
		for _, h := range n.hosts[i] {
			h.limit(t, mbit)
		}
	}
}

// cluster starts a cluster on two of the hosts.
func (n *rates) cluster(t *testing.T, i int, settings ...string) *trial {
	t.Helper()
	n.started++
	c := prepareTrial(t, 2, append(settings, fmt.Sprint("cluster.name=pair", n.started), "cluster.insecure=true")...)
	c.at = "etcd://" + n.etcd
	for k, m := range c.nodes {
		h := n.hosts[i][k]
		m.listen, m.admin, m.peer = h.addr+":8080", h.addr+":8081", n.addrs[i][k]+":7070"
		m.advertise = m.peer
		command := h.within(append([]string{binary}, c.demoArgs(m)...)...)
		m.binary, m.args = command[0], command[1:]
	}
	c.startAll()
	return c
}

const (
	rateWarm  = 100 // pairs before the measured ones
	rateBlock = 20  // pairs whose times are added up
	rateMost  = 1.03
)

// compare asks both clusters.
func (n *rates) compare(t *testing.T, mbit int, d slowness, routing string) {
	n.limit(t, mbit)
	settings := []string{"device=none:2ms+" + d.token, "cluster.routing=" + routing, "cache.host_memory=16MiB"}
	on := n.cluster(t, 0, append(settings, "cluster.fetch=on")...)
	off := n.cluster(t, 1, append(settings, "cluster.fetch=off")...)
	asks, workers := turns(rateWarm+rateBlock*d.blocks), 1
	if routing == "predicted" {
		asks, workers = returns(rateWarm+rateBlock*d.blocks), 3
	}
	took := [2][]float64{make([]float64, len(asks)), make([]float64, len(asks))}
	var mu sync.Mutex
	var cached [2]int
	parallel(workers, len(asks), func(i int) {
		if t.Failed() {
			return
		}
		for k := range 2 {
			which := (i/2 + k) % 2 // each is first at every node as often as second
			c := []*trial{on, off}[which]
			began := time.Now()
			a, err := asks[i].ask(c.nodes[asks[i].entry].listen)
			took[which][i] = ms(time.Since(began))
			mu.Lock()
			cached[which] += a.Usage.Cached
			mu.Unlock()
			if err != nil && !t.Failed() {
				t.Error(err)
			}
		}
	})
	if t.Failed() {
		return
	}
	sums := [2][]float64{}
	for which := range sums {
		for b := range d.blocks {
			sum := 0.
			for _, v := range took[which][rateWarm+b*rateBlock:][:rateBlock] {
				sum += v
			}
			sums[which] = append(sums[which], sum/rateBlock)
		}
	}
	ratios := report.Ratios(sums[0], sums[1])
	low, high := report.Interval(ratios)
	ratio := report.Median(ratios)
	fetched, text := on.transfers(mbit)
	t.Logf("fetching takes %.3f of the time, 95 %% of medians in [%.3f, %.3f], of %d blocks of %d pairs; "+
		"means %.2f and %.2f ms; %d and %d tokens were cached;%s", ratio, low, high, d.blocks, rateBlock,
		report.Median(sums[0]), report.Median(sums[1]), cached[0], cached[1], text)
	if ratio > rateMost {
		t.Errorf("nodes that fetch take %.3f of the time of others, want at most %.2f", ratio, rateMost)
	}
	if mbit == 10_000 && fetched == 0 {
		t.Error("nothing was fetched over the fastest link")
	}
	on.running()
	off.running()
}

// transfers returns how many blocks the nodes fetched, and a text about them. A rate that is far above the link's fails
// the test: the link is not limited then.
func (c *trial) transfers(mbit int) (blocks int64, text string) {
	c.Helper()
	for _, m := range c.nodes {
		s, err := m.status()
		if err != nil {
			c.Fatal(err)
		}
		for _, x := range s.Transfers {
			if x.To == m.id {
				blocks += x.Blocks
				if most := 2 * float64(mbit) / 8; x.Bytes > 64<<20 && x.RateMB > most {
					c.Errorf("%s fetches %.0f MB/s over a link of %d Mb/s", x.To, x.RateMB, mbit)
				}
				text += fmt.Sprintf(" %s fetched %d blocks of %.1f MB from %s, %d were late, %.1f MB/s, trip %.2f ms;",
					x.To, x.Blocks, float64(x.Bytes)/1e6, x.From, x.Late, x.RateMB, x.TripMs)
			}
		}
	}
	return blocks, text
}

// turn is a question and the node at which it enters.
type turn struct {
	*question
	entry int
}

func newTurn(entry int, request map[string]any) turn {
	body, err := json.Marshal(request)
	if err != nil {
		panic(err)
	}
	return turn{&question{path: "/v1/rank", body: body}, entry}
}

// words returns a text of about n tokens.
func words(r *rand.Rand, n int) string {
	text := ""
	for range n / 2 {
		text += fmt.Sprintf("%d ", r.IntN(100))
	}
	return text
}

// turns returns requests of which every second one repeats an earlier one. Nodes take turns, so the other node has that
// one's KV: of a user, or of items.
func turns(n int) (out []turn) {
	const apart = 16 // requests; meanwhile the nodes learn what the other one has
	r := rand.New(rand.NewPCG(31, 31))
	var made []turn
	for i := 0; len(out) < n; i++ {
		user, candidates, prefix := words(r, 30+r.IntN(400)), 4, "user"
		if i%2 == 1 {
			user, candidates, prefix = words(r, 20), 12, "item"
		}
		var items []map[string]any
		for k := range candidates {
			items = append(items, map[string]any{
				"id": fmt.Sprint("new-", i, "-", k), "text": words(r, 10+r.IntN(40)), "identifier": 10 + k,
			})
		}
		made = append(made, newTurn(0, map[string]any{"user": map[string]any{"id": fmt.Sprint("user-", i), "text": user},
			"candidates": items, "prefix": prefix}))
		out = append(out, made[i], made[max(0, i-apart)])
	}
	return out[:n]
}

// returns are requests of users who come again, at any node. The users' KV is more than a node can hold.
func returns(n int) (out []turn) {
	r := rand.New(rand.NewPCG(32, 32))
	users := make([]string, 64)
	for i := range users {
		users[i] = words(r, 30+r.IntN(500))
	}
	for range n {
		u := r.IntN(len(users))
		var items []map[string]any
		for _, i := range r.Perm(48)[:8] {
			items = append(items, map[string]any{"id": fmt.Sprint("i", 1+i)})
		}
		user := map[string]any{"id": fmt.Sprint("user-", u), "text": users[u]}
		out = append(out, newTurn(r.IntN(2), map[string]any{"user": user, "candidates": items}))
	}
	return out
}
