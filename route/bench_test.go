package route

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"grebe/placement"
	"grebe/plan"
	"grebe/residency"
	"grebe/schedule"
)

// key returns a key with a hash.
func key(hash uint64) (k plan.Key) {
	binary.LittleEndian.PutUint64(k[:], hash)
	return k
}

func userHash(i int) uint64   { return mix(uint64(i) + 1) }
func itemHash(i int32) uint64 { return mix(uint64(i) + 1<<40) }

// large returns a router that knows a million users and a million items. Every item is on its owner, of a hundred the
// hottest is on a quarter of the nodes, and of a thousand on all. A user is on one node, and one of four on a second.
func large(b *testing.B, policy Policy, nodes int) (*Router, []Request) {
	const users, items, candidates, shards = 1_000_000, 1_000_000, 100, 10_000
	c := Config{Policy: policy, Users: users * 5 / 4, Items: items, Owned: plan.Host, Shards: shards, Alpha: 1, Beta: 1,
		MissKV: 20, MissEMB: 5, MissLoad: 10, PeerUsers: true, PeerItems: true}
	costs := schedule.DefaultCosts(schedule.PrefillModel{Fixed: 3, Row: .01, Square: 1e-7, Key: 2e-6})
	costs.Transfer = [plan.NumTiers]schedule.Transfer{
		plan.Host: {Token: 1e-4}, plan.Disk: {Entry: .1, Token: 3e-3}, plan.Peer: {Entry: .02, Token: 2e-3},
	}
	for range nodes {
		c.Nodes = append(c.Nodes, Node{Costs: costs, RTT: .2})
	}
	r, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	m, err := placement.Hash(placement.Config{Members: placement.Members(nodes), Items: items})
	if err != nil {
		b.Fatal(err)
	}
	r.SetMap(m)
	rng := rand.New(rand.NewPCG(1, 2))
	history := make([]int32, 1500)
	for i := range history {
		history[i] = int32(i)
	}
	parts := make([][]residency.Event, nodes)
	for u := range users {
		n := 500 + rng.IntN(1001)
		e := residency.Event{Key: key(userHash(u)), Entry: residency.Entry{
			Kind: plan.User, Tier: plan.Device + plan.Tier(rng.IntN(3)), Tokens: int32(n), Digest: residency.Digest(history[:n]),
		}}
		for range 1 + rng.IntN(4)/3 {
			node := rng.IntN(nodes)
			parts[node] = append(parts[node], e)
		}
	}
	for i := range int32(items) {
		owner, _, _ := m.Place(i)
		for n := range nodes {
			if n == owner || i%1000 == 0 || i%100 == 0 && rng.IntN(4) == 0 {
				e := residency.Entry{Kind: plan.Item, Tier: plan.Host, Tokens: 50}
				parts[n] = append(parts[n], residency.Event{Key: key(itemHash(i)), Entry: e})
			}
		}
	}
	beat := Heartbeat{RowMs: .05, Backlog: 10 * time.Millisecond, Shards: make([]uint32, 2000)}
	for n := range nodes {
		r.Snapshot(n, 1, 0, parts[n], true)
		for i := range beat.Shards {
			beat.Shards[i] = uint32(rng.IntN(shards))
		}
		r.Heard(n, &beat, 0)
	}
	requests := make([]Request, 4096)
	for i := range requests {
		q := &requests[i]
		q.User, q.Tokens = userHash(rng.IntN(users)), history
		q.Prompt = schedule.Request{Preamble: 40, LeadIn: 5, SharedCached: true, Question: 20, User: int32(len(history))}
		q.Prompt.Returns, q.Prompt.ReturnsKnown = 1, true
		for range candidates {
			item := int32(rng.IntN(items))
			switch rng.IntN(3) { // a third of the candidates are hot
			case 0:
				item -= item % 1000
			case 1:
				item -= item % 100
			}
			q.Items = append(q.Items, item)
			q.Keys = append(q.Keys, itemHash(item))
			q.Prompt.Items = append(q.Prompt.Items, int32(30+rng.IntN(50)))
		}
		for range 20 {
			q.Shards = append(q.Shards, uint32(rng.IntN(shards)))
		}
	}
	return r, requests
}

// used returns the processor time that this program has used.
func used(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkPick(b *testing.B) {
	for _, nodes := range []int{16, 64, 256} {
		for policy := range numPolicies {
			b.Run(fmt.Sprintf("%v/%d", policy, nodes), func(b *testing.B) {
				r, requests := large(b, policy, nodes)
				b.ReportAllocs()
				i, priced, start := 0, 0, used(b)
				for b.Loop() {
					q := &requests[i%len(requests)]
					priced += r.Pick(q, time.Duration(i)*100*time.Microsecond%(250*time.Millisecond)).Priced
					i++
				}
				b.ReportMetric(float64(used(b)-start)/float64(i), "cpu-ns/op") // other programs do not count
				b.ReportMetric(float64(priced)/float64(i), "priced/op")
			})
		}
	}
}
