package team

import (
	"strings"
	"sync/atomic"
	"testing"

	"grebe/internal/contain"
)

// A task that panics, on whichever worker, has Run panic when all others have run, and the team goes on to work.
func TestAPanicReachesRun(t *testing.T) {
	for _, threads := range []int{1, 2, 4} {
		team := New(threads)
		var ran atomic.Int64
		bad := &Job{Do: func(_, task int) {
			if ran.Add(1); task%10 == 3 {
				panic("task three")
			}
		}}
		good := &Job{Do: func(int, int) { ran.Add(1) }}
		for range 50 {
			ran.Store(0)
			p := func() (p *contain.Panic) {
				defer func() { p = contain.Of(recover()) }()
				team.Run(100, bad)
				return nil
			}()
			if !strings.Contains(p.String(), "task three") {
				t.Fatalf("%d threads: Run panicked with %v", threads, p)
			}
			if threads > 1 && ran.Load() != 100 {
				t.Fatalf("%d threads: Run returned after %d of 100 tasks", threads, ran.Load())
			}
			ran.Store(0)
			if team.Run(100, good); ran.Load() != 100 {
				t.Fatalf("%d threads: %d of 100 tasks ran afterwards", threads, ran.Load())
			}
		}
		team.Close()
	}
}
