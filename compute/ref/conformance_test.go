package ref_test

import (
	"testing"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/ref"
)

func TestConformance(t *testing.T) {
	open := func(*testing.T) compute.Device { return ref.New() }
	computetest.Run(t, "ref", open, computetest.Options{SameBits: true, STU: true})
}

// TestLimitsLeaveRoom runs the suite on a device whose products have bf16 or split bf16 operands:
// limits that fail it would fail honest devices.
func TestLimitsLeaveRoom(t *testing.T) {
	open := func(*testing.T) compute.Device { return ref.NewCoarse() }
	computetest.Run(t, "coarse", open, computetest.Options{STU: true})
}
