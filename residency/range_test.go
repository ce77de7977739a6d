package residency

import (
	"maps"
	"math"
	"math/rand/v2"
	"testing"

	"grebe/plan"
)

// visited returns a node's entries in a range.
func visited(t *testing.T, x *Index, node int, r Range) map[uint64]Entry {
	t.Helper()
	all := map[uint64]Entry{}
	x.Visit(node, r, func(at uint64, e Entry) {
		if _, twice := all[at]; twice {
			t.Fatalf("entry %x of node %d is visited twice", at, node)
		}
		all[at] = e
	})
	return all
}

// Ranges that divide all keys have each entry of a node once, in tables that are nearly full and wrap around. Replace
// leaves the entries outside its range, and those of other nodes, as they are.
func TestRangesDivideTheIndex(t *testing.T) {
	const nodes, keys = 3, 60
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		x, err := NewIndex(IndexConfig{Nodes: nodes, Users: nodes * keys / 2, Items: keys})
		if err != nil {
			t.Fatal(err)
		}
		var truth [nodes]map[uint64]Entry
		draw := func(k int) Event {
			e := Entry{Kind: plan.Item, Tier: plan.Device + plan.Tier(rng.IntN(3))}
			if k%2 == 0 {
				e.Kind, e.Tokens, e.Digest = plan.User, int32(rng.IntN(100)), rng.Uint64()
			}
			return Event{Key: item(k).Key, Entry: e}
		}
		for n := range nodes {
			truth[n] = map[uint64]Entry{}
			var all []Event
			for k := range keys {
				if rng.IntN(4) > 0 {
					e := draw(k)
					all = append(all, e)
					truth[n][Mix(Hash(e.Key))] = e.Entry
				}
			}
			x.Snapshot(n, 1, 0, all, true)
		}
		for range 30 {
			n := rng.IntN(nodes)
			r := Range{0, math.MaxUint64}
			if a, b := rng.Uint64(), rng.Uint64(); rng.IntN(8) > 0 {
				r = Range{min(a, b), max(a, b)}
			}
			maps.DeleteFunc(truth[n], func(at uint64, _ Entry) bool { return r.From <= at && at <= r.To })
			var entries []Event
			for k := range keys {
				e := draw(k)
				at := Mix(Hash(e.Key))
				if inside := r.From <= at && at <= r.To; !inside || rng.IntN(2) == 0 { // those outside have no effect
					entries = append(entries, e)
					if inside {
						truth[n][at] = e.Entry
					}
				}
			}
			x.Replace(n, r, entries)
			for n := range nodes {
				got, cut := map[uint64]Entry{}, rng.Uint64N(math.MaxUint64)
				for _, r := range []Range{{0, cut}, {cut + 1, math.MaxUint64}} {
					for at, e := range visited(t, x, n, r) {
						if at < r.From || at > r.To {
							t.Fatalf("seed %d: entry %x is outside %x", seed, at, r)
						}
						got[at] = e
					}
				}
				if !maps.Equal(got, truth[n]) {
					t.Fatalf("seed %d: node %d has %d entries, want %d; or others", seed, n, len(got), len(truth[n]))
				}
			}
		}
		for n := range nodes {
			x.remove(n)
		}
		if !empty(x.users.words) || !empty(x.others.words) {
			t.Fatalf("seed %d: something is left of no node", seed)
		}
	}
}

// A part that was lost takes events, and is known again without a snapshot if it has all of them.
func TestIndexResumes(t *testing.T) {
	x, err := NewIndex(IndexConfig{Nodes: 1, Users: 10, Items: 10})
	if err != nil {
		t.Fatal(err)
	}
	put := func(seq uint64, k int) []Event {
		return []Event{{Seq: seq, Key: item(k).Key, Entry: Entry{Kind: plan.Item, Tier: plan.Host}}}
	}
	if x.Resume(0, 0, 0) || x.Apply(0, 0, put(1, 1)) {
		t.Error("a part without a snapshot is known")
	}
	x.Snapshot(0, 7, 4, put(0, 1), true)
	x.Lose(0)
	if x.Known(0) || x.Apply(0, 7, put(5, 2)) || x.Resume(0, 7, 4) || x.Resume(0, 8, 5) || x.Known(0) {
		t.Error("a lost part is known")
	}
	if !x.Resume(0, 7, 5) || !x.Known(0) || len(visited(t, x, 0, Range{0, math.MaxUint64})) != 2 {
		t.Error("a part with all events is not known again")
	}
	if x.Apply(0, 7, put(7, 3)) || x.Known(0) || !x.Resume(0, 7, 5) {
		t.Error("events behind a gap are applied")
	}
	x.Snapshot(0, 7, 9, put(0, 1), false)
	if x.Known(0) || x.Resume(0, 7, 9) {
		t.Error("a part is known before its snapshot is complete")
	}
}
