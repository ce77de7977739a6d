package cuda

import (
	"os"
	"testing"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cuda/driver"
)

// ownProducts has tests run without the matrix library's kernels, which checking tools may fail in.
var ownProducts = os.Getenv("GREBE_TEST_PRODUCTS") == "own"

// open opens the first GPU or skips the test. A GPU whose memory others use is there: the test fails.
func open(t *testing.T, opt Options) Device {
	t.Helper()
	opt.OwnProducts = ownProducts
	d, err := New(opt)
	if driver.OutOfMemory(err) {
		t.Fatal(err)
	}
	if err != nil {
		t.Skipf("no GPU to test on: %v", err)
	}
	return d
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		opt  Options
	}{
		{"graphs", Options{}},
		{"plain", Options{Plain: true}},
		{"direct", Options{Direct: true, NoGraphs: true}},
	} {
		computetest.Run(t, c.name, func(t *testing.T) compute.Device { return open(t, c.opt) },
			computetest.Options{NoAlloc: !c.opt.NoGraphs && !ownProducts, STU: true, Aside: !c.opt.Direct})
	}
}

// TestConformanceScratch: attention's scratch has room for one layer at a time, and none for what stands in, which
// chunks get.
func TestConformanceScratch(t *testing.T) {
	computetest.Run(t, "small", func(t *testing.T) compute.Device { return open(t, Options{Scratch: 1}) },
		computetest.Options{NoAlloc: !ownProducts, STU: true})
}

// TestConformanceFused: products by kernels of our own, which small models do not meet otherwise.
func TestConformanceFused(t *testing.T) {
	if ownProducts {
		t.Skip("another product stands in for all")
	}
	computetest.Run(t, "fused", func(t *testing.T) compute.Device {
		d := open(t, Options{Fused: true})
		if !d.(*device).fuses {
			t.Skip("this GPU has no fused products")
		}
		return d
	}, computetest.Options{NoAlloc: true, Aside: true})
}

// TestStraightBits: whether what stands in goes straight to attention's scratch or by way of chunks, results have the
// same bits.
func TestStraightBits(t *testing.T) {
	for name, opt := range map[string]Options{"graphs": {}, "plain": {Plain: true}, "one by one": {NoGraphs: true}} {
		t.Run(name, func(t *testing.T) {
			a := open(t, opt)
			defer a.Close()
			opt.Scratch = 1
			b := open(t, opt)
			defer b.Close()
			computetest.SameBlends(t, a, b)
		})
	}
}

func TestBucket(t *testing.T) {
	for rows, want := range map[int]int{1: 8, 8: 8, 9: 16, 33: 64, 64: 64, 65: 128, 128: 128, 129: 256, 2048: 2048,
		2049: 2176} {
		if got := bucket(rows); got != want {
			t.Errorf("bucket(%d) = %d, want %d", rows, got, want)
		}
	}
	for rows, want := range map[int]int{64: 64, 2048: 2048, 2176: 3072, 3072: 3072, 3200: 4096, 8192: 8192, 8320: 12288} {
		if got := coarse(rows); got != want {
			t.Errorf("coarse(%d) = %d, want %d", rows, got, want)
		}
	}
}

// TestConversions holds the host's roundings against known pairs.
func TestConversions(t *testing.T) {
	for v, want := range map[float32]uint16{0: 0, 1: 0x3f80, -2: 0xc000, 1.00390625: 0x3f80, 1.01171875: 0x3f82,
		1.004: 0x3f81} {
		if got := toBF16(v); got != want {
			t.Errorf("bf16 of %v is %#x, want %#x", v, got, want)
		}
	}
	for h, want := range map[uint16]float32{0: 0, 0x3c00: 1, 0xc000: -2, 0x0001: 1.0 / (1 << 24), 0x7bff: 65504,
		0x8400: -1.0 / (1 << 14)} {
		if got := fromF16(h); got != want {
			t.Errorf("f16 %#x is %v, want %v", h, got, want)
		}
	}
}
