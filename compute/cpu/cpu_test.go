package cpu

import (
	"fmt"
	"testing"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cpu/internal/feature"
)

// Every level that this machine has passes the suite, on one thread and on several. Kernels without assembly take most
// of the time. Where they are not the best, a sample of the cases runs on them: `make test-noasm` runs all of them.
func TestConformance(t *testing.T) {
	for level := feature.Plain; level <= feature.Best(); level++ {
		for _, threads := range []int{1, 3} {
			if threads == 1 && level < feature.Best() {
				continue // what differs on one thread does so at every level
			}
			open := func(t *testing.T) compute.Device {
				dev, err := New(Options{Level: level.String(), Threads: threads})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { dev.Close() })
				return dev
			}
			opts := computetest.Options{SameBits: true, NoAlloc: true, STU: true}
			if level == feature.Plain && level < feature.Best() {
				opts.Sample = func(string) bool { return true }
			}
			computetest.Run(t, fmt.Sprintf("%s-%d", level, threads), open, opts)
		}
	}
}

// The suite and the device agree over memory that the host cannot see: neither touches it but as it
// may.
func TestConformanceFar(t *testing.T) {
	open := func(t *testing.T) compute.Device {
		dev, err := New(Options{Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		return computetest.Far(dev, true)
	}
	computetest.Run(t, "far", open, computetest.Options{SameBits: true, NoAlloc: true, STU: true})
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Options{Level: "mmx"}); err == nil {
		t.Error("an unknown level was accepted")
	}
}
