// Package computetest compares a compute.Device with compute/ref, which defines the operations. A device package
// calls Run from one test:
//
//	func TestConformance(t *testing.T) {
//		open := func(t *testing.T) compute.Device { … }
//		computetest.Run(t, "avx512", open, computetest.Options{SameBits: true, NoAlloc: true})
//	}
//
// Every operation runs alone and in whole layers on random models and batches of the awkward sizes;
// limits.go states how far a number may be off, and why. K and V that the device must not touch are
// NaN or known bytes, so that a read or a write outside of what the batch means shows up.
//
// Runners that are a compute.Blender are held to that as well, and devices that are a compute.Quantiser or a
// compute.Retriever.
//
// All randomness comes from a case's seed, which its failure message names together with operation,
// shape, row and the numbers. Results are looked at only after Hidden or Logits has returned: until
// then a device may be lazy.
package computetest

import (
	"errors"
	"strings"
	"testing"

	"grebe/compute"
)

// Options says what a device claims beyond agreeing with ref.
type Options struct {
	// SameBits: what a row yields depends on its plan only, to the bit, whatever else is in the
	// batch, wherever its KV came from and however it is cut into chunks.
	SameBits bool
	// NoAlloc: a pass allocates nothing on the Go heap once the runner is warm.
	NoAlloc bool
	// STU: runners of shapes with Pointwise are compute.STU.
	STU bool
	// Aside: what Place has stand in for rows that are dropped need not be in their chunks, see compute.Blender. Results
	// report whether it was used.
	Aside bool
	// Sample says of which kinds of cases the first and one in eight of the others run; nil: all run. It is for cases that
	// another build runs, or that can find nothing on this device.
	Sample func(kind string) bool
}

// A check is one case of the suite.
type check struct {
	name string
	run  func(d compute.Device) error
}

// Run tests the device that open returns, as a subtest called name. It opens the device once and
// closes it in the end.
func Run(t *testing.T, name string, open func(t *testing.T) compute.Device, opts Options) {
	t.Run(name, func(t *testing.T) {
		d := open(t)
		seen := map[string]bool{}
		for i, c := range checks(opts) {
			kind, _, _ := strings.Cut(c.name, "/seed")
			if opts.Sample != nil && opts.Sample(kind) && seen[kind] && i%8 != 0 {
				continue
			}
			seen[kind] = true
			t.Run(c.name, func(t *testing.T) {
				switch err := c.on(d); {
				case errors.Is(err, errNoBlender), errors.Is(err, errNoEight), errors.Is(err, errNoRetriever):
					t.Skip(err)
				case err != nil:
					t.Error(err)
				}
			})
		}
		if err := d.Close(); err != nil {
			t.Errorf("close the device: %v", err)
		}
	})
}

// on runs the case and frees the memory that it took.
func (c check) on(d compute.Device) error {
	s := newScope(d)
	defer s.memory.free()
	return c.run(s)
}

func checks(opts Options) []check {
	all := append(memoryChecks(), packChecks()...)
	all = append(all, opChecks()...)
	all = append(all, attendChecks()...)
	all = append(all, layerChecks()...)
	all = append(all, scaledChecks(opts)...)
	all = append(all, containChecks()...)
	all = append(all, misuseChecks()...)
	all = append(all, check{"multiply", multiplies}, check{"logits of any number", logitCounts})
	all = append(all, blendChecks(opts)...)
	all = append(all, eightChecks(compute.INT8, opts)...)
	all = append(all, eightChecks(compute.FP8, opts)...)
	all = append(all, crowdedChecks()...)
	all = append(all, twiceChecks(opts)...)
	all = append(all, retrieveChecks()...)
	if opts.STU {
		all = append(all, stuChecks()...)
		all = append(all, stuContainChecks()...)
		all = append(all, check{"misuse/stu", stuMisuse})
	}
	if opts.SameBits && opts.STU {
		all = append(all, stuBitChecks()...)
	}
	if opts.SameBits {
		all = append(all, bitChecks()...)
	}
	if opts.NoAlloc && opts.STU {
		c := config{seed: 4100, shape: geometries[3].stuShape(2, compute.BF16, pointwises[1]), dt: compute.BF16, sharp: 1}
		all = append(all, check{"no allocation/stu", func(d compute.Device) error { return allocatesNothing(d, c) }})
	}
	if opts.NoAlloc {
		all = append(all, allocChecks()...)
	}
	return all
}
