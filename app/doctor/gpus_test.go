package doctor

import (
	"strings"
	"testing"

	"grebe/compute/cuda/drivertest"
)

// The doctor shows which GPU is used, and how others share it. Where none can be opened, CUDA_VISIBLE_DEVICES may be
// why.
func TestGPUsAreShown(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
	t.Setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "40")
	g := drivertest.New()
	defer g.Close()
	g.MPS = true
	text := func() string {
		r := &Report{}
		openGPUs(r)
		var all []string
		for _, f := range r.Findings {
			all = append(all, f.Detail, f.Remedy)
		}
		return strings.Join(all, "\n")
	}
	got := text()
	for _, want := range []string{"CUDA_VISIBLE_DEVICES is MIG-1", "GPU 0: simulated",
		"GPU-00010203-0405-0607-0809-0a0b0c0d0e0f, MPS with 40 % of the multiprocessors"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %s", want, got)
		}
	}
	g.Fail = func(call string) int32 {
		if call == "cuDeviceGetCount" {
			return 100
		}
		return 0
	}
	if got := text(); !strings.Contains(got, "does CUDA_VISIBLE_DEVICES name a GPU") {
		t.Errorf("no remedy in %s", got)
	}
}
