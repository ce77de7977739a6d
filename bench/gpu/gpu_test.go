package gpu

import (
	"bytes"
	"strings"
	"testing"

	"grebe/compute/cuda"
)

func TestCheckAgainstRef(t *testing.T) {
	d, err := cuda.New(cuda.Options{})
	if err != nil {
		t.Skipf("no GPU to test on: %v", err)
	}
	defer d.Close()
	if c, err := check(d, 7); err != nil {
		t.Errorf("%+v: %v", c, err)
	}
}

func TestReportIsATable(t *testing.T) {
	r := Report{Device: "cuda (test)", Check: Check{Rows: 3, Relative: 0.001, Limit: 0.02},
		Lines: []Line{{Name: "prefill 1×256", Rows: 256, MS: 2.5, Must: 2.4}, {Name: "rank", MS: 3, Ratio: 1.1}},
		Peers: []Peer{{Name: "torch.compile", Tokens: 256, MS: 3.6}}}
	var out bytes.Buffer
	if err := r.write(&out, false); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"cuda (test)", "prefill 1×256", "2.500", "2.4", "1.1", "torch.compile"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("the table does not say %q:\n%s", part, out.String())
		}
	}
}

func TestRandomIsReproducible(t *testing.T) {
	a, b, c := random(1, 30, 50, 0, 1), random(1, 30, 50, 0, 1), random(2, 30, 50, 0, 1)
	if !bytes.Equal(a.Data, b.Data) || bytes.Equal(a.Data, c.Data) {
		t.Error("tensors do not depend on their seed alone")
	}
}
