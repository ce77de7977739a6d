package engine

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"grebe/blend"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/plan"
)

// Jobs of a batch wait together: each is told what the others waited. A device that computes the first layers meanwhile
// waits for as long as these take as well, which is no wait.
func TestPatience(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		starts bool
		first  time.Duration
		want   time.Duration
	}{{false, 0, 15 * ms}, {true, 8 * ms, 7 * ms}} {
		p := pass{starts: c.starts}
		var loads []*brought
		for i, waits := range []time.Duration{10 * ms, 5 * ms} {
			l := newBrought()
			l.waits = waits
			loads = append(loads, l)
			b := &Blend{Load: l, Patience: time.Duration(i+1) * ms, First: 8 * ms}
			p.tasks = append(p.tasks, task{job: &Job{Blend: b}, out: &Outcome{}}, task{job: &Job{}, out: &Outcome{}})
		}
		p.tasks = append(p.tasks, task{job: &Job{Blend: &Blend{Load: newBrought()}}, out: &Outcome{Err: ErrClosed}})
		if p.take(); p.waited != c.want {
			t.Errorf("the batch says that it waited %v, want %v", p.waited, c.want)
		}
		for i, want := range []Wait{{ms, c.first, 0}, {2 * ms, c.first, 10 * ms}} {
			if !slices.Equal(loads[i].asked, []Wait{want}) {
				t.Errorf("load %d is to wait %+v, want %+v", i, loads[i].asked, want)
			}
		}
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
		l := newBrought()
		l.waits = patience
		return o.job(&Blend{Parts: parts, Budget: blend.Budget{Items: 0.3}, Layers: 1, Rule: rule, Load: l,
			Patience: patience})
	}
	other := &Rule{Score: func(score, _ []float32, _ []plan.Source, _ []compute.Segment) { clear(score) }}
	jobs, out := []*Job{late(nil), late(other)}, make([]Outcome, 2)
	w.Run(jobs, out)
	if out[0].Err != nil || out[1].Err != nil || !slices.Equal(out[0].Logits[0], out[1].Logits[0]) {
		t.Fatalf("%v, %v, or answers differ that are all computed", out[0].Err, out[1].Err)
	}
	if out[0].Waited != patience || out[1].Waited != 2*patience {
		t.Errorf("two batches waited for %v each, and say %v and %v", patience, out[0].Waited, out[1].Waited)
	}
}

// A batch takes what the clock that is given says; of several, each takes that of those before it too. Without a clock
// it is 0.
func TestTheClockIsGiven(t *testing.T) {
	const ms = time.Millisecond
	now := time.Time{}
	tick := func() time.Time { now = now.Add(5 * ms); return now }
	for _, c := range []struct {
		clock func() time.Time
		want  [2]time.Duration
	}{{nil, [2]time.Duration{}}, {tick, [2]time.Duration{5 * ms, 10 * ms}}} {
		e := newTiny(t, oneThread(t), "f32", Options{Now: c.clock, MaxTokens: 4})
		jobs, out := []*Job{{Plan: user(1, 2, 3), Hidden: []int{0}}, {Plan: user(4, 5), Hidden: []int{0}}}, make([]Outcome, 2)
		e.Run(jobs, out) // five tokens are two batches
		if out[0].Err != nil || out[1].Err != nil || out[0].Compute != c.want[0] || out[1].Compute != c.want[1] {
			t.Errorf("%v, %v: batches take %v and %v, want %v", out[0].Err, out[1].Err, out[0].Compute, out[1].Compute, c.want)
		}
	}
}
