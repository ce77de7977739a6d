package decisions

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

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
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(text))
	}))
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
	r := &Report{
		Costs: []Cost{{Load: "all", Per: "request", Old: []float64{100, 102, 101}, New: []float64{120, 121, 119}}}}
	r.Costs[0].judge()
	var b strings.Builder
	if err := r.write(&b); err != nil || !strings.Contains(b.String(), "SLOWER") ||
		!strings.Contains(b.String(), "1.186") {
		t.Errorf("%s, %v", b.String(), err)
	}
}
