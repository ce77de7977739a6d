package residency

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"grebe/plan"
)

// used returns the processor time that this program has used.
func used(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkIndex looks up 100 of a million entries, and applies events, with 64 nodes.
func BenchmarkIndex(b *testing.B) {
	const entries, wanted = 1_000_000, 100
	x, err := NewIndex(IndexConfig{Nodes: 64, Users: entries, Items: entries})
	if err != nil {
		b.Fatal(err)
	}
	event := func(seq uint64, i int, kind plan.Kind, tier plan.Tier) (e Event) {
		e = Event{Seq: seq, Entry: Entry{Kind: kind, Tier: tier, Tokens: 50, Digest: 1}}
		binary.LittleEndian.PutUint64(e.Key[:], uint64(i)<<1|uint64(kind&1))
		return e
	}
	for n := range 64 {
		x.Snapshot(n, 1, 0, nil, true)
	}
	var seqs [64]uint64
	for i := range entries {
		n := i % 64
		seqs[n]++
		x.Apply(n, 1, []Event{event(seqs[n], i, plan.User, plan.Host)})
		seqs[n]++
		x.Apply(n, 1, []Event{event(seqs[n], i, plan.Item, plan.Host)})
	}
	rng := rand.New(rand.NewPCG(1, 1))
	keys, sets := make([]uint64, wanted<<10), make([]uint64, 2*wanted)
	for i := range keys {
		keys[i] = uint64(rng.IntN(entries)) << 1
	}
	for _, share := range []int{0, 50} { // of a hundred keys that nobody has
		for i := range keys {
			if rng.IntN(100) < share {
				keys[i] += 4 * entries
			}
		}
		b.Run(fmt.Sprintf("others/missing=%d", share), func(b *testing.B) {
			b.ReportAllocs()
			start, i := used(b), 0
			for ; b.Loop(); i++ {
				x.Others(keys[i%1024*wanted:][:wanted], sets)
			}
			b.ReportMetric(float64(used(b)-start)/float64(i), "cpu-ns/op") // other programs do not count
		})
	}
	b.Run("apply", func(b *testing.B) {
		b.ReportAllocs()
		var one [1]Event
		for i := 0; b.Loop(); i++ {
			n := i % 64
			seqs[n]++
			one[0] = event(seqs[n], rng.IntN(entries), plan.User+plan.Kind(i/64%2), plan.Tier(i/128%4))
			if !x.Apply(n, 1, one[:]) {
				b.Fatal("a gap")
			}
		}
	})
}
