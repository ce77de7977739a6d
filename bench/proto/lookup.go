package proto

import (
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"grebe/bench/report"
	pool "grebe/kv/proto"
)

// rounds is how often all unseen histories are looked up; the median counts.
const rounds = 7

// time looks up all unseen histories on several threads.
func (o *Options) time(x *pool.Index, l *Lookup) {
	tokens, longest := 0, 0
	for _, h := range o.Unseen {
		tokens += len(h)
		longest = max(longest, len(h))
	}
	scratch, out := make([]pool.Scratch, o.Threads), make([][]pool.Match, o.Threads)
	for i := range out {
		out[i] = make([]pool.Match, longest)
	}
	var rates []float64
	used, looked := processorTime(), 0
	for range rounds {
		// As many tokens as take a while: a round is long beside the start of its threads.
		times := 1 + 2_000_000/max(tokens, 1)
		start := o.Now()
		var wait sync.WaitGroup
		for t := range o.Threads {
			wait.Go(func() {
				for range times {
					for i := t; i < len(o.Unseen); i += o.Threads {
						x.Match(&scratch[t], o.Unseen[i], 0, 1, out[t])
					}
				}
			})
		}
		wait.Wait()
		looked += times * tokens
		rates = append(rates, float64(times*tokens)/o.Now().Sub(start).Seconds())
	}
	l.Nanos = float64(processorTime()-used) / float64(looked)
	l.Slowest, l.PerSecond, l.Fastest = slices.Min(rates), report.Median(rates), slices.Max(rates)
}

// processorTime is what the process used: on a shared machine it says more than the time that went by.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// samples is how many tokens are searched exactly.
const samples = 2000

// recall compares lookups with exact search.
func (o *Options) recall(x *pool.Index, l *Lookup) {
	r := rand.New(rand.NewPCG(o.Seed, 2))
	var s pool.Scratch
	inReach, nearest, found := 0, 0, 0
	for l.Sampled < samples {
		h := o.Unseen[r.IntN(len(o.Unseen))]
		out := make([]pool.Match, len(h))
		x.Match(&s, h, 0, 1, out)
		for range 8 {
			at := r.IntN(len(h))
			if l.Sampled++; !o.Pool.Natural(h[at]) {
				continue
			}
			best := x.Exhaustive(h, at)
			if best.Prototype < 0 {
				continue
			}
			inReach++
			if out[at].Prototype >= 0 {
				found++
				l.Drift += float64(out[at].Drift)
				l.BestDrift += float64(best.Drift)
			}
			if out[at].Prototype >= 0 && out[at].Drift == best.Drift {
				nearest++
			}
		}
	}
	l.Drift, l.BestDrift = l.Drift/float64(max(found, 1)), l.BestDrift/float64(max(found, 1))
	l.Recall, l.Found = float64(nearest)/float64(max(inReach, 1)), float64(found)/float64(max(inReach, 1))
}
