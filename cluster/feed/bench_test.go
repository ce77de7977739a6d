package feed

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/plan"
	"grebe/residency"
)

// deltas returns messages with random events of n keys, of which every other one is a user's.
func deltas(n, count int) []*clusterv1.Message {
	rng := rand.New(rand.NewPCG(1, 1))
	out := make([]*clusterv1.Message, count)
	for i := range out {
		events := make([]residency.Event, maxPiece)
		for j := range events {
			k := rng.IntN(n)
			events[j].Key = bookKey(0, k)
			events[j].Entry = residency.Entry{Kind: plan.User + plan.Kind(k%2), Tier: plan.Tier(rng.IntN(4)), Tokens: 900,
				Digest: rng.Uint64()}
		}
		out[i] = &clusterv1.Message{Boot: 7, Delta: &clusterv1.Delta{
			First: uint64(i*maxPiece) + 1, Entries: secret.entries(events)}}
	}
	return out
}

// BenchmarkApply decodes deltas of 512 events and applies them to an index of a million entries.
func BenchmarkApply(b *testing.B) {
	const entries = 1_000_000
	p := newPair(b, 1, 64)
	p.router = newRouter(b, 2, entries, entries)
	p.follower.Sink = p.router
	if err := p.exchange(b); err != nil {
		b.Fatal(err)
	}
	messages := deltas(entries, 1000)
	var bytes int
	var encoded [][]byte
	for _, m := range messages {
		m.Subscription = p.follower.sub
		e, err := proto.Marshal(m)
		if err != nil {
			b.Fatal(err)
		}
		encoded = append(encoded, e)
		bytes += len(e)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		var m clusterv1.Message
		if err := proto.Unmarshal(encoded[i%len(encoded)], &m); err != nil {
			b.Fatal(err)
		}
		m.Delta.First = uint64(i*maxPiece) + 1
		if err := p.follower.Take(&m, p.now); err != nil || !p.follower.Known() {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*maxPiece/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(bytes)/float64(len(messages)*maxPiece), "wire-bytes/event")
}

// BenchmarkPublish makes and encodes deltas of 512 events.
func BenchmarkPublish(b *testing.B) {
	p := newPair(b, 5000, 1<<16)
	rng := rand.New(rand.NewPCG(1, 1))
	for p.feed.Seq() < 1<<15 {
		p.change(0, rng.IntN(5000), rng, 0)
	}
	if err := p.exchange(b); err != nil {
		b.Fatal(err)
	}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		if p.session.sent+maxPiece > p.feed.Seq() {
			p.session.sent = 0
		}
		m, err := p.session.Next(p.now)
		if err != nil || len(m.Delta.GetEntries().GetKeys()) != maxPiece {
			b.Fatal(m, err)
		}
		if buf, err = (proto.MarshalOptions{}).MarshalAppend(buf[:0], m); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*maxPiece/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkMemory fills indexes through followers and reports bytes per entry, followers and buffers included. Half of
// the entries are users'. An op is a snapshot of 50,000 entries of each of four nodes.
func BenchmarkMemory(b *testing.B) {
	const nodes, keys = 4, 50_000
	perEntry := 0.0
	for b.Loop() {
		before := heapBytes()
		router := newRouter(b, nodes, nodes*keys/2, nodes*keys/2)
		var followers []*Follower
		for i := range nodes {
			f := NewFollower(FollowerConfig{Node: i, ID: "a", Secret: secret, Sink: router})
			f.Connected(time.Hour)
			sub := f.Ask(time.Hour).Number
			f.Take(&clusterv1.Message{Boot: 1, Subscription: sub, Hello: &clusterv1.Hello{Protocol: 1, Check: secret.check()}},
				time.Hour)
			for from := 0; from < keys; from += 500 {
				var events []residency.Event
				for k := from; k < from+500; k++ {
					key := bookKey(i, k)
					events = append(events, residency.Event{Key: key, Entry: residency.Entry{
						Kind: plan.User + plan.Kind(k%2), Tier: plan.Host, Tokens: 900, Digest: uint64(k),
					}})
				}
				m := &clusterv1.Snapshot{Piece: uint32(from / 500), Last: from+500 == keys, Entries: secret.entries(events)}
				if err := f.Take(&clusterv1.Message{Boot: 1, Subscription: sub, Snapshot: m}, time.Hour); err != nil {
					b.Fatal(err)
				}
			}
			f.Take(&clusterv1.Message{Boot: 1, Subscription: sub, Heartbeat: &clusterv1.Heartbeat{Ask: sub}}, time.Hour)
			followers = append(followers, f)
		}
		users, others, refused := router.Index().Entries()
		if users+others != nodes*keys || refused != 0 || !followers[nodes-1].Known() {
			b.Fatal(users, others, refused)
		}
		perEntry = float64(heapBytes()-before) / (nodes * keys)
		if perEntry > 64 {
			b.Errorf("%.1f bytes per entry, want at most 64", perEntry)
		}
		runtime.KeepAlive(followers)
	}
	b.ReportMetric(perEntry, "bytes/entry")
}
