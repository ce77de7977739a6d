package tiers

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cpu"
	"grebe/compute/cuda"
)

// TestTiersOnTheCPU: on a CPU whose memory stands for a device's, KV of every tier yields the bits of the
// recomputation.
func TestTiersOnTheCPU(t *testing.T) {
	var out bytes.Buffer
	cells, err := Run(t.Context(), Options{
		Open: func(int) (compute.Device, error) {
			d, err := cpu.New(cpu.Options{Threads: 2})
			if err != nil {
				return nil, err
			}
			return computetest.Far(d, true), nil
		},
		Items: []int{40, 100}, Scratch: []int{1}, Layers: 4, Limit: -1, Dir: t.TempDir(),
	}, &out)
	if err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	if want := len(Families) * len(Tiers) * 2; len(cells) != want {
		t.Errorf("%d checks, want %d", len(cells), want)
	}
	for _, c := range cells {
		if c.Spread == 0 || c.Tier != "device" && c.Items == 100 && c.Host <= 64 {
			t.Errorf("a check that shows nothing: %+v", c)
		}
	}
}

// TestTiersOnTheGPU checks all combinations, where there is a GPU. GREBE_TIERS names the families that are checked,
// with commas between them.
func TestTiersOnTheGPU(t *testing.T) {
	open := func(scratch int) (compute.Device, error) {
		return cuda.New(cuda.Options{Scratch: scratch, FixedSplit: true})
	}
	d, err := open(0)
	if err != nil {
		t.Skipf("no GPU to test on: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	var families []string
	if s := os.Getenv("GREBE_TIERS"); s != "" {
		families = strings.Split(s, ",")
	}
	var out bytes.Buffer
	_, err = Run(t.Context(), Options{Open: open, Dir: t.TempDir(), Families: families}, &out)
	t.Logf("\n%s", out.String())
	if err != nil {
		t.Error(err)
	}
}
