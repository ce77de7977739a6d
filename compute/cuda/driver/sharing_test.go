package driver_test

import (
	"testing"

	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/drivertest"
)

// A MIG instance and MPS are found out, and shown.
func TestSharing(t *testing.T) {
	t.Setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30")
	t.Setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
	const id = "00010203-0405-0607-0809-0a0b0c0d0e0f"
	for _, c := range []struct {
		name string
		mps  bool
		want driver.Sharing
		text string
	}{
		{"NVIDIA H200", false, driver.Sharing{UUID: "GPU-" + id}, ""},
		{"NVIDIA H200 MIG 1g.18gb", false, driver.Sharing{UUID: "MIG-" + id, MIG: true}, "MIG instance"},
		{"NVIDIA H200", true, driver.Sharing{UUID: "GPU-" + id, MPS: true, Threads: "30"},
			"MPS with 30 % of the multiprocessors"},
	} {
		g := drivertest.New()
		g.Name, g.MPS = c.name, c.mps
		x, err := driver.New(0)
		if err != nil {
			t.Fatal(err)
		}
		got := x.Info().Sharing
		if got != c.want || got.String() != c.text {
			t.Errorf("%s, MPS %v: %+v, %q; want %+v, %q", c.name, c.mps, got, got.String(), c.want, c.text)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		g.Close()
	}
	both := driver.Sharing{MIG: true, MPS: true, Memory: "0=2G"}
	if want := "MIG instance, MPS, memory limit 0=2G"; both.String() != want {
		t.Errorf("%q, want %q", both.String(), want)
	}
}

// A driver that does not tell how a GPU is shared is used all the same.
func TestSharingUnknown(t *testing.T) {
	g := drivertest.New()
	defer g.Close()
	g.Fail = func(call string) int32 {
		if call == "cuDeviceGetUuid_v2" {
			return 1
		}
		return 0
	}
	x, err := driver.New(0)
	if err != nil {
		t.Fatal(err)
	}
	if got := x.Info().Sharing; got != (driver.Sharing{}) {
		t.Errorf("%+v, want nothing", got)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}
