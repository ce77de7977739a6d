package beam

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime is the CPU time of this thread: what else the machine does counts less than in wall time.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}
