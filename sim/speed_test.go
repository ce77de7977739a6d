package sim

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// An operation is a request: run it with -benchtime=100000x. Making a fleet of empty nodes is not measured. Processor
// time is that of the second half, when memory is full; it says more than elapsed time on a busy machine.
func BenchmarkRequests(b *testing.B) {
	for _, routers := range []int{1, 4} {
		b.Run(fmt.Sprintf("routers=%d", routers), func(b *testing.B) {
			s, err := ReadScenario("testdata/million.yaml", func(s *Scenario) { s.Requests, s.Route.Routers = b.N, routers })
			if err != nil {
				b.Fatal(err)
			}
			var began time.Duration
			from := 0
			f, err := newFleet(s, Options{Progress: func(done, total int) {
				if from == 0 && done >= total/2 {
					from, began = done, cpuTime(b)
				}
			}})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			f.begin()
			r, err := f.run(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(cpuTime(b)-began)/float64(b.N-from), "cpu-ns/op")
			if r.Ended != b.N {
				b.Errorf("%d of %d requests ended", r.Ended, b.N)
			}
		})
	}
}

// cpuTime returns the processor time of this process so far.
func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
