package engine

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"grebe/blend"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/kv"
)

// reads is what is read for a job: entries of 10 tokens, of which some came and one hangs.
type reads struct {
	came, all int
	patience  time.Duration
}

func (r reads) task() task {
	l := NewLoading(10*r.all, &Pace{})
	for range r.came {
		l.Next(10)
		l.Came(&kv.Entry{}, nil)
	}
	l.Next(10)
	return task{job: &Job{Blend: &Blend{Load: l, Patience: r.patience, First: 8 * time.Millisecond}}, out: &Outcome{}}
}

// Jobs of a batch wait together for a disk that hangs: as long as the most patient of them does, and each by what it still misses. A device
// that computes the first layers meanwhile waits for as long as these take as well, which is no wait.
func TestPatience(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		jobs []reads
		want time.Duration
	}{
		"alone":              {[]reads{{0, 1, 40 * ms}}, 40 * ms},
		"equals":             {[]reads{{0, 1, 40 * ms}, {0, 1, 40 * ms}, {0, 1, 40 * ms}}, 40 * ms},
		"a patient one last": {[]reads{{0, 1, 10 * ms}, {0, 1, 40 * ms}}, 40 * ms},
		"no time at all":     {[]reads{{0, 1, 1}, {1, 2, 1}}, 1},
		"most of it came":    {[]reads{{9, 10, 40 * ms}, {3, 4, 20 * ms}}, 5 * ms},
	} {
		test := func(t *testing.T, starts bool) {
			p, first := pass{starts: starts}, time.Duration(0)
			if starts {
				first = 8 * ms
			}
			for _, r := range c.jobs {
				p.tasks = append(p.tasks, r.task())
			}
			start := time.Now()
			guard := time.AfterFunc(time.Second, func() {
				for i := range p.tasks {
					p.tasks[i].job.Leave()
				}
			})
			defer guard.Stop()
			if p.take(); time.Since(start) != first+c.want || p.waited != c.want {
				t.Errorf("%s: the batch waited for %v, and says %v, want %v and %v", name, time.Since(start), p.waited, first+c.want, c.want)
			}
		}
		synctest.Test(t, func(t *testing.T) { test(t, false) })
		synctest.Test(t, func(t *testing.T) { test(t, true) })
	}
}

// Jobs that become several batches say what all of these waited, as they say what all of them took.
func TestWaitsOfSeveralBatchesAddUp(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	w := openOnDisk(t, dev, t.TempDir(), 32<<20)
	o := makeOrdinary(t, w.tiny, rand.New(rand.NewPCG(1, 2)))
	for _, b := range o.blocks {
		b.Release()
	}
	const patience = 20 * time.Millisecond
	late := func(rule *Rule) *Job {
		parts := o.parts()
		for i := range parts {
			parts[i].Entry = nil
		}
		return o.job(&Blend{Parts: parts, Budget: blend.Budget{Items: 0.3}, Layers: 1, Rule: rule, Load: NewLoading(o.tokens(), &Pace{}), Patience: patience})
	}
	other := &Rule{Score: func(score, _ []float32, _ []blend.Source, _ []compute.Segment) { clear(score) }}
	jobs, out := []*Job{late(nil), late(other)}, make([]Outcome, 2)
	w.Run(jobs, out)
	if out[0].Err != nil || out[1].Err != nil || !slices.Equal(out[0].Logits[0], out[1].Logits[0]) {
		t.Fatalf("%v, %v, or answers differ that are all computed", out[0].Err, out[1].Err)
	}
	if out[0].Waited < patience || out[1].Waited < 2*patience || out[1].Waited > out[1].Compute {
		t.Errorf("two batches waited for %v each, and say %v and %v of %v", patience, out[0].Waited, out[1].Waited, out[1].Compute)
	}
}
