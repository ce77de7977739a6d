package residency

import (
	"maps"
	"math/rand/v2"
	"testing"

	"grebe/plan"
)

func nothing() {}

// A follower that applies an interrupted snapshot, and then the events after the number that the feed had before it,
// knows where each entry is. In each pause keys come, go, and move between memory and disk at random.
func TestSnapshotsBesideChanges(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 5))
		w := &world{Core: newCore(t, "lru", 200, 900), t: t, rng: rng, where: map[plan.Key]plan.Tier{},
			pinned: map[plan.Key]bool{}}
		feed := NewFeed(1, 1<<16)
		w.SetFeed(feed)
		change := func(n int) {
			for range n {
				h := item(rng.IntN(4000))
				switch rng.IntN(8) {
				case 0:
					w.Stored(h.Key, Entry{Kind: plan.Item, Tokens: int32(1 + rng.IntN(9))})
				case 1:
					w.Lost(h.Key)
				default:
					w.step(h)
				}
			}
		}
		change(6000)
		for round := range 5 {
			known, pauses := map[plan.Key]Entry{}, 0
			seq := feed.Seq()
			w.Snapshot(func(key plan.Key, e Entry) { known[key] = e }, func() {
				pauses++
				change(rng.IntN(400))
			})
			change(rng.IntN(50))
			events, ok := feed.Since(nil, 1, seq, 1<<20)
			if !ok || pauses < 5 || len(events) == 0 {
				t.Fatalf("%d events behind %d, %v, and %d pauses", len(events), seq, ok, pauses)
			}
			for _, e := range events {
				if known[e.Key] = e.Entry; e.Tier == plan.Missing {
					delete(known, e.Key)
				}
			}
			truth := map[plan.Key]Entry{}
			for i := range 4000 {
				if e, ok := w.Lookup(item(i).Key); ok {
					truth[item(i).Key] = e
				}
			}
			if !maps.Equal(known, truth) {
				t.Fatalf("seed %d, round %d: %d entries are known, and %d are there; or they are elsewhere", seed, round,
					len(known), len(truth))
			}
		}
	}
}

// A snapshot pauses after a bounded number of entries. Entries that are both in memory and on disk are reported once.
func TestSnapshotsPause(t *testing.T) {
	c := newCore(t, "lru", 1000)
	for i := range 1000 {
		c.Publish(item(i), 0, false)
		c.Stored(item(i).Key, Entry{Kind: plan.Item, Tokens: 10})
	}
	told, pauses := 0, 0
	c.Snapshot(func(plan.Key, Entry) { told++ }, func() { pauses++ })
	if told != 1000 || pauses != 2000/piece {
		t.Errorf("%d entries are told, with %d pauses, want 1000 with %d", told, pauses, 2000/piece)
	}
}
