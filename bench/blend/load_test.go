package blend

import (
	"bytes"
	"strings"
	"testing"

	"grebe/compute/cpu"
)

// Prompts under load are answered both ways, and the books are right.
func TestLoad(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	p := Prompt{Preamble: 207, History: 40, Items: 6, Each: 20, Question: 20}
	l, err := MeasureLoad(t.Context(), LoadOptions{Device: dev, Shape: "tiny", Prompts: []Prompt{p}, Each: 2, Budget: 0.25,
		Seconds: 0.4, Rounds: 1, Warmup: 0.01})
	if err != nil {
		t.Fatal(err)
	}
	for i, computed := range []float64{180, 60} {
		w := &l.Ways[i]
		if w.Requests == 0 || w.Answered != w.Requests || w.Computed != computed || w.Latency.P50 <= 0 || len(w.Rounds) != 1 {
			t.Errorf("%s: %+v", w.Name, w)
		}
	}
	if l.Rate != 0.8*l.Capacity[0] || l.P99By <= 0 {
		t.Errorf("%+v", l)
	}
	var out bytes.Buffer
	if err := l.Text(&out); err != nil || !strings.Contains(out.String(), "tiny's shape") {
		t.Errorf("%v, %s", err, out.String())
	}
}
