package gpu

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/compute/cuda"
	"grebe/compute/cuda/split"
	"grebe/compute/ref"
)

func TestChecksAgainstRef(t *testing.T) {
	d, err := cuda.New(cuda.Options{})
	if err != nil {
		t.Skipf("no GPU to test on: %v", err)
	}
	defer d.Close()
	if c, err := checkAll(d, 7); err != nil {
		t.Errorf("%+v: %v", c, err)
	}
}

// TestTrialsRun: the reference agrees with itself on the batches by which GPUs are judged.
func TestTrialsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("the reference is slow")
	}
	for _, x := range trials() {
		x.spec = decoder(x.spec.name, 1, 16, x.spec.shape.Heads/x.spec.shape.KVHeads, 1, 8, 8, 50) // the same plan on less
		if c, err := x.run(ref.New(), 3); err != nil || c.Error != 0 || c.Rows == 0 {
			t.Errorf("%s: %+v, %v", x.name, c, err)
		}
	}
}

func TestReportIsATable(t *testing.T) {
	r := Report{Device: "cuda (test)", Checks: []Check{{Name: "beams", Rows: 3, Error: 0.001, Limit: 0.02}},
		Lines: []Line{{Key: "prefill-256", Name: "prefill 1 × 256", Unit: "ms", Median: 2.5, Must: 2.4},
			{Key: "rank", Name: "rank", Unit: "×", Median: 1.1, Must: 1.12, Aim: 1.08},
			{Key: "sustained", Name: "sustained", Unit: "×", Median: 2.2, Must: 1.6, Aim: 2, AtLeast: true}},
		Models: []Model{{Name: "qwen", Report: split.Report{Off: 0.05, Gain: 1.02}}},
		Splits: []Split{{Name: "beams", Fixed: 20, Chosen: 18, Best: 17.5, Way: split.Split{Form: split.Even, Steps: 4}}}}
	r.place([]Peer{{Line: "prefill-256", Name: "torch.compile", Value: 3.6}, {Line: "other", Name: "nobody", Value: 1}})
	var out bytes.Buffer
	if err := r.write(&out, false); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"cuda (test)", "prefill 1 × 256", "2.5", "MISS", "torch.compile 3.6", "must", "aim",
		"2 of 3 lines", "512 keys", "5.0 %", "1.020 ×"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("the table does not say %q:\n%s", part, out.String())
		}
	}
	if strings.Contains(out.String(), "nobody") {
		t.Errorf("a peer of no line is in the table:\n%s", out.String())
	}
}

func TestSustainedRates(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rank.json")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(
		`{"workloads":[{"name":"books","policies":[{"name":"UP","found":{"rate":20}},{"name":"RE"},{"name":"auto",` +
			`"found":{"rate":36}}]}]}`)
	lines, err := sustainedRates(file)
	if err != nil || len(lines) != 1 || lines[0].Median != 1.8 || !lines[0].holds(lines[0].Must) ||
		lines[0].holds(lines[0].Aim) {
		t.Errorf("%+v, %v", lines, err)
	}
	for _, bad := range []string{"", "{", `{"workloads":[{"name":"books","policies":[{"name":"UP"}]}]}`} {
		write(bad)
		if lines, err := sustainedRates(file); err == nil {
			t.Errorf("%q has rates %+v", bad, lines)
		}
	}
}

// TestAttendedBatches: shapes on which splits are compared have names of their own and belong to a model.
func TestAttendedBatches(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range attendedBatches() {
		name := a.spec.name + a.name
		if seen[name] || len(a.batch.Tokens) == 0 || a.spec.name != qwen2.name && a.spec.name != qwen3.name {
			t.Errorf("%s: twice, empty, or of an unknown model", name)
		}
		seen[name] = true
	}
}

func TestCompareChosen(t *testing.T) {
	all := []path{{0, -1}, {1, -5}, {2, -2}, {3, -2 - normOff}, {4, -9}}
	for _, c := range []struct {
		got []path
		ok  bool
	}{
		{[]path{{0, -1}, {2, -2}}, true},
		{[]path{{0, -1}, {3, -2 - normOff}}, true}, // as good as equal
		{[]path{{0, -1}, {1, -5}}, false},
		{[]path{{0, -1.1}, {2, -2}}, false},
		{[]path{{2, -2}, {0, -1}}, false},
		{[]path{{2, -2}, {3, -2 - normOff}}, false}, // the best is missing
		{[]path{{0, -1}, {7, -2}}, false},
	} {
		if _, err := compareChosen(c.got, all); (err == nil) != c.ok {
			t.Errorf("%v: %v", c.got, err)
		}
	}
}
