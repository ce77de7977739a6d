package cuda

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda/driver"
)

// tiny is a shape that any device runs.
func tiny() compute.Shape {
	return compute.Shape{Layers: 1, Hidden: 16, Heads: 1, KVHeads: 1, HeadDim: 16, Inter: 16, Eps: 1e-6, KV: compute.BF16,
		Rope: compute.Rope{InvFreq: make([]float32, 8), Scale: 1}}
}

// TestAllocationThatFails: too large an allocation is an error, and the device goes on.
func TestAllocationThatFails(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	if _, err := d.Memory().Alloc(1 << 50); !driver.OutOfMemory(err) {
		t.Errorf("2⁵⁰ bytes: %v, want an error of memory", err)
	}
	if _, err := d.Open(tiny(), 1<<40); err == nil {
		t.Error("a runner of 2⁴⁰ rows was opened")
	}
	r, err := d.Open(tiny(), 8)
	if err != nil {
		t.Fatalf("a small runner after the failures: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestLostGPU: after a wild write the driver refuses all work of this process. Calls fail with that
// error and nothing panics. It runs in a process of its own.
func TestLostGPU(t *testing.T) {
	const loses = "GREBE_TEST_LOSES_GPU"
	d := open(t, Options{})
	if os.Getenv(loses) == "" {
		_ = d.Close() // the child opens its own
		cmd := exec.Command(os.Args[0], "-test.run=^TestLostGPU$", "-test.v")
		cmd.Env = append(os.Environ(), loses+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	own := d.(*device)
	r, err := d.Open(tiny(), 8)
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Memory().Alloc(256)
	if err != nil {
		t.Fatal(err)
	}
	lose(t, own)
	if err := own.c.Lost(); err == nil {
		t.Fatal("the device did not notice a wild write")
	}
	err = r.Begin(&compute.Batch{})
	if err == nil || !strings.Contains(err.Error(), "lost") {
		t.Errorf("Begin on a lost GPU: %v", err)
	}
	if err := d.Memory().Zero(b); err == nil {
		t.Error("the memory of a lost GPU was cleared")
	}
	_ = r.Close()
	if err := d.Close(); err != nil {
		t.Errorf("close a lost GPU: %v", err)
	}
	if d, err := New(Options{}); err == nil {
		t.Log("this driver opens a lost GPU again")
		_ = d.Close()
	}
}

// lose writes to an address that is nobody's.
func lose(t *testing.T, d *device) {
	t.Helper()
	defer d.c.Leave()
	if err := d.c.Enter(); err != nil {
		t.Fatal(err)
	}
	s, err := d.c.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.noise(s, 256, 1024, driver.NumberF32, 1); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(); err == nil {
		t.Error("a wild write went well")
	}
}
