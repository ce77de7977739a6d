package rows

import (
	"bytes"
	"strings"
	"testing"

	"grebe/compute/cuda/drivertest"
	"grebe/compute/cuda/rows/rowstest"
)

// TestRun: the bench runs on a simulated GPU, whose results it checks, and names a line per case.
func TestRun(t *testing.T) {
	t.Setenv("GREBE_KERNEL_CACHE", t.TempDir())
	g := drivertest.New()
	defer g.Close()
	rowstest.Simulate(g)
	var out bytes.Buffer
	o := Options{Bytes: 1 << 18, Features: 3, Requests: 20, Bag: 4, Users: 2, Events: 50, Missing: 100,
		RowBytes: []int{128, 256}, Repeats: 1}
	r, err := Run(t.Context(), o, &out)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range g.Errors {
		t.Error(e)
	}
	if want := 2 * 2 * (3 + 1 + 4); len(r.Lines) != want {
		t.Errorf("%d lines, want %d", len(r.Lines), want)
	}
	for _, want := range []string{"pooled, sum", "pooled, weighted", "sequences", "missing, fetched", "PCIe"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	if held := g.Held(); len(held) > 0 {
		t.Errorf("the bench leaves %v", held)
	}
}

func TestPeersArePlaced(t *testing.T) {
	r := Report{Lines: []Line{{Name: "sequences", Format: "bf16", RowBytes: 128},
		{Name: "sequences", Format: "f32", RowBytes: 128}}}
	const answer = `{"torch": "2.8", "peers": [{"name": "sequences", "format": "f32", "row_bytes": 128, "us": 7}]}`
	err := r.placePeers([]byte(answer))
	if err != nil || r.Torch != "2.8" || r.Lines[0].Peer != 0 || r.Lines[1].Peer != 7 {
		t.Errorf("%+v, %v", r, err)
	}
}
