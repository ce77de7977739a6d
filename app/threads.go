package app

import (
	"runtime"
	"sync"

	"grebe/compute"
	"grebe/compute/cuda"
	"grebe/internal/config"
)

// cores returns the number of cores this process may use: those it is bound to, or fewer if its container has less CPU
// time.
var cores = sync.OnceValue(func() int { return runtime.GOMAXPROCS(0) })

// manyCores is the number of cores from which on one core is left to work other than the engines'.
const manyCores = 8

// threadsOf returns the number of threads that compute on the CPU. The default is one per core, less one if there are
// many. The threads of a layer wait for each other, so other work on one of their cores delays all of them.
func threadsOf(cfg *config.Config) int {
	return threadsFor(cfg.Threads, cores())
}

func threadsFor(wanted, cores int) int {
	switch {
	case wanted > 0:
		return wanted
	case cores >= manyCores:
		return cores - 1
	}
	return cores
}

// spareProcessors is how many more goroutines may run at once than there are computing threads.
const spareProcessors = 2

// yieldCores lets the operating system, not Go's scheduler, share the cores between computing threads and other work.
// If computing threads occupied all of the scheduler's processors, each step of other work would wait up to 10 ms for
// one: reading a request, continuing after a write to disk, answering.
func yieldCores(cfg *config.Config, d compute.Device) {
	if _, gpu := d.(cuda.Device); gpu || cores() < runtime.NumCPU() {
		return // with less CPU time than cores, more processors would only use it up sooner
	}
	if n := threadsOf(cfg) + spareProcessors; n > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(n)
	}
}
