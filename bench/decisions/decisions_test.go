package decisions

import (
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// By hand: the choices of signs whose sum of ranks is as large, of all.
func TestSlower(t *testing.T) {
	for _, c := range []struct {
		ratios []float64
		p      float64
	}{
		{[]float64{1.1, 1.2, 1.3, 1.4}, 1. / 16},
		{[]float64{.9, .8, .7, .6}, 1},
		{[]float64{.9, 1.2, 1.3, 1.4}, 2. / 16},  // the sums 9 and 10
		{[]float64{1.1, .5, 1.3, 1.05}, 7. / 16}, // 6 or more
		{[]float64{2, .5}, 3. / 4},               // equal distances: 1.5 or more
		{[]float64{1, 1, 1.5}, 1. / 2},
		{[]float64{1, 1}, 1},
	} {
		if got := slower(c.ratios); math.Abs(got-c.p) > 1e-9 {
			t.Errorf("slower(%v) is %v, want %v", c.ratios, got, c.p)
		}
	}
}

// Where both are the same, about one comparison in twenty says otherwise; a tenth more is nearly always seen.
func TestJudge(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	found := func(times float64) (n int) {
		for range 1000 {
			c := Cost{}
			for range 12 {
				busy := 1 + rng.ExpFloat64() // what else the machine does
				c.Old = append(c.Old, busy*(100+2*rng.NormFloat64()))
				c.New = append(c.New, busy*times*(100+2*rng.NormFloat64()))
			}
			if c.judge(); c.P < leastP {
				n++
			}
			if c.Slow != (c.P < leastP || c.Ratio > mostRatio) {
				t.Fatalf("%+v", c)
			}
		}
		return n
	}
	if n := found(1); n < 20 || n > 80 {
		t.Errorf("%d of 1000 comparisons of the same differ", n)
	}
	if n := found(1.1); n < 990 {
		t.Errorf("%d of 1000 comparisons find a tenth more", n)
	}
}

func TestRead(t *testing.T) {
	text := "# HELP x\nprocess_cpu_seconds_total 12.5\n" +
		"grebe_evictions_total{kind=\"item\",reason=\"a b\"} 3\ngrebe_evictions_total{kind=\"user\"} 4\n"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }))
	defer s.Close()
	if cpu, events, err := read(s.URL, "grebe_evictions_total"); cpu != 12.5 || events != 7 || err != nil {
		t.Errorf("reads %v, %v, %v", cpu, events, err)
	}
	text = "x 1\n"
	if _, _, err := read(s.URL, ""); err == nil {
		t.Error("a server without CPU time is read")
	}
}

func TestReport(t *testing.T) {
	r := &Report{Costs: []Cost{{Load: "all", Per: "request", Old: []float64{100, 102, 101}, New: []float64{120, 121, 119}}}}
	r.Costs[0].judge()
	var b strings.Builder
	if err := r.write(&b); err != nil || !strings.Contains(b.String(), "SLOWER") || !strings.Contains(b.String(), "1.186") {
		t.Errorf("%s, %v", b.String(), err)
	}
}
