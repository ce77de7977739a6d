package wire

import (
	"syscall"
	"testing"
	"time"
)

// used returns the processor time that this program has used.
func used(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkIdle has eight routers follow one idle node over sockets. An op is a second, of heartbeats only. It reports
// the processor time of both sides per second and pair.
func BenchmarkIdle(b *testing.B) {
	const pairs = 8
	n := newNode(b, 1, "", ServerConfig{})
	var routers []*router
	for range pairs {
		r := newRouter(b, n.addr, nil)
		equal(b, r, n)
		routers = append(routers, r)
	}
	time.Sleep(1100 * time.Millisecond) // the node looks for events less often afterwards
	start, began := used(b), time.Now()
	for b.Loop() {
		time.Sleep(time.Second)
	}
	b.ReportMetric(float64((used(b)-start).Microseconds())/time.Since(began).Seconds()/pairs, "cpu-us/s")
	for _, r := range routers {
		if r.unknown() {
			b.Fatal("the node is unknown")
		}
	}
}
