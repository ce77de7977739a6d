package app

import (
	"runtime"
	"sync"

	"grebe/compute"
	"grebe/compute/cuda"
	"grebe/internal/config"
)

// cores is how many cores this process may use: those that it is bound to, or fewer where its container has less
// time.
var cores = sync.OnceValue(func() int { return runtime.GOMAXPROCS(0) })

// manyCores is how many cores a machine has of which one is left to everything but the engines.
const manyCores = 8

// threadsOf returns how many threads compute on the CPU. By default there is one for each core, less one where
// there are many: the threads of a layer wait for each other, so that any other work on one of their cores delays
// all of them.
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

// spareProcessors is how many more goroutines may run at a time than there are threads that compute.
const spareProcessors = 2

// yieldCores has the operating system, not Go's scheduler, share the cores between the threads that compute and
// all else. While the former take all processors of Go's scheduler, it looks for other work every 10 ms only, and
// at each of its steps: to read a request, to go on after a write is on disk, to answer.
func yieldCores(cfg *config.Config, d compute.Device) {
	if _, gpu := d.(cuda.Device); gpu || cores() < runtime.NumCPU() {
		return // with less time than cores, more processors only spend it sooner
	}
	if n := threadsOf(cfg) + spareProcessors; n > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(n)
	}
}
