package engine

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"grebe/compute/cpu"
	"grebe/plan"
)

// A batch that pauses computes the same bits, and so do the batches of another engine that run while it pauses. Their
// time is not its own.
func TestABatchPauses(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	now := time.Time{}
	first := newTinyOf(t, dev, "f32", Options{Now: func() time.Time { return now }}, 3)
	aside, err := New(first.model, dev, Options{Cache: first.store, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer aside.Close()
	r := rand.New(rand.NewPCG(3, 9))
	for range 20 {
		a, b := randomPlan(r), randomPlan(r)
		job := func(p *plan.Plan) *Job {
			return &Job{Plan: p, Want: []Want{{Segment: len(p.Segments) - 1, IDs: ids(50)}}}
		}
		want := [2]Outcome{}
		first.Run([]*Job{job(a)}, want[:1])
		first.Run([]*Job{job(b)}, want[1:])
		pauses := 0
		var got, during [1]Outcome
		aside.RunPausing([]*Job{job(a)}, got[:], func() {
			pauses++
			first.Run([]*Job{job(b)}, during[:])
			if during[0].Err != nil || !reflect.DeepEqual(during[0].Logits, want[1].Logits) {
				t.Fatalf("pause %d: another batch computes something else: %v", pauses, during[0].Err)
			}
			now = now.Add(time.Second)
		})
		now = now.Add(time.Millisecond)
		if got[0].Err != nil || !reflect.DeepEqual(got[0].Logits, want[0].Logits) {
			t.Fatalf("a batch that paused computes something else: %v", got[0].Err)
		}
		if pauses != 9 {
			t.Errorf("%d pauses in three layers, want 9", pauses)
		}
		if got[0].Compute != 0 {
			t.Errorf("the batch took %v, without the pauses it takes no time", got[0].Compute)
		}
		aside.Run([]*Job{job(a)}, got[:]) // it does not pause
		if got[0].Err != nil || !reflect.DeepEqual(got[0].Logits, want[0].Logits) || pauses != 9 {
			t.Errorf("a batch after one that paused: %v", got[0].Err)
		}
	}
}
