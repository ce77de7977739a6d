package team

import (
	"sync/atomic"
	"testing"
	"time"
)

func TestEveryTaskRunsOnce(t *testing.T) {
	tm := New(3)
	defer tm.Close()
	var counts [97]atomic.Int32
	job := &Job{Do: func(w, i int) {
		if w < 0 || w >= 3 {
			t.Errorf("worker %d of 3", w)
		}
		counts[i].Add(1)
	}}
	for round := range 2000 {
		n := round % (len(counts) + 1)
		tm.Run(n, job)
		for i := range counts {
			want := int32(0)
			if i < n {
				want = 1
			}
			if got := counts[i].Swap(0); got != want {
				t.Fatalf("round %d of %d tasks: task %d ran %d times", round, n, i, got)
			}
		}
		if round%500 == 0 {
			time.Sleep(2 * spinFor) // let the workers park
		}
	}
}

func TestRunAllocatesNothing(t *testing.T) {
	tm := New(2)
	defer tm.Close()
	job := &Job{Do: func(w, i int) {}}
	if n := testing.AllocsPerRun(100, func() { tm.Run(8, job) }); n != 0 {
		t.Errorf("Run allocates %v times", n)
	}
}
