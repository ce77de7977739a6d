package blend

import (
	"bytes"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cpu"
)

// Blocks come from the disk in every run, and the scores are those of blocks in memory.
func TestDisk(t *testing.T) {
	near, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	other, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, dev := range []compute.Device{near, computetest.Far(other, true)} {
		onDisk(t, dev)
	}
}

func onDisk(t *testing.T, dev compute.Device) {
	t.Helper()
	p := Prompt{Preamble: 207, History: 40, Items: 6, Each: 20, Question: 20}
	d, err := MeasureDisk(t.Context(), DiskOptions{Device: dev, Dir: t.TempDir(), Shape: "tiny", Prompts: []Prompt{p},
		Repeats: 2, Rate: 200 << 20})
	if err != nil {
		t.Fatal(err)
	}
	l := d.Lines[0]
	if l.Bytes != 6*20*4*2*2*64*2 || l.Read <= 0 || l.First <= 0 || l.Memory <= 0 || l.Off != 0 {
		t.Errorf("%+v", l)
	}
	var out bytes.Buffer
	if err := d.Text(&out); err != nil || !strings.Contains(out.String(), "tiny's shape") {
		t.Errorf("%v, %s", err, out.String())
	}
	t.Log(out.String())
}
