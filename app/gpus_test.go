package app

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda"
	"grebe/compute/cuda/drivertest"
)

// The log at the start says which GPU is used, and how others share it.
func TestGPUsAreDescribed(t *testing.T) {
	t.Setenv("GREBE_KERNEL_CACHE", t.TempDir())
	t.Setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "40")
	t.Setenv("CUDA_VISIBLE_DEVICES", "1")
	g := drivertest.New()
	defer g.Close()
	g.Name, g.MPS = "NVIDIA H200 MIG 1g.18gb", true
	d, err := cuda.New(cuda.Options{FixedSplit: true})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	describeGPUs([]compute.Device{d}, slog.New(slog.NewTextHandler(&out, nil)))
	for _, want := range []string{`name="NVIDIA H200 MIG 1g.18gb"`, "uuid=MIG-00010203", "cuda_visible_devices=1",
		`shared="MIG instance, MPS with 40 % of the multiprocessors"`, "free=", "total="} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in %s", want, out.String())
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
