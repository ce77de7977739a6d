package load

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grebe/workload"
)

// A server of two places and 10 ms answers 200 requests a second; at equal distances all of them in time.
func TestSearchFindsTheRate(t *testing.T) {
	for _, start := range []float64{10, 190, 800} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(2, 10*time.Millisecond)
			var mu sync.Mutex
			highest := 0
			f, err := Search(t.Context(), SearchOptions{
				Run:      Options{Name: "toy", Duration: 5 * time.Second, SLO: 50 * time.Millisecond},
				Arrivals: func(rate float64, _ int) workload.Arrivals { return workload.Uniform(rate) },
				Start:    start, Precision: 0.02,
			}, func(ctx context.Context, i int) error {
				mu.Lock()
				highest = max(highest, i)
				mu.Unlock()
				return s.do(ctx, i)
			})
			if err != nil {
				t.Fatal(err)
			}
			// Slightly above 200 the queue takes longer than the run to reach the SLO.
			if f.Rate < 196 || f.Rate > 206 || f.Limit < f.Rate || f.Limit > 1.021*f.Rate {
				t.Errorf("from %v: found %v, limit %v, want 200", start, f.Rate, f.Limit)
			}
			near(t, "throughput at the rate found", f.Best.Throughput, f.Rate, 0.02)
			total := 0
			for _, trial := range f.Trials {
				if len(trial.Runs) != 2 {
					t.Errorf("%d runs at %v, want 2 that agree", len(trial.Runs), trial.Rate)
				}
				for _, r := range trial.Runs {
					total += r.Requests
				}
			}
			if highest >= total {
				t.Errorf("index %d of %d requests", highest, total)
			}
			var b strings.Builder
			if err := f.Write(&b); err != nil || !strings.Contains(b.String(), "toy keeps P99 ≤ 50.0 ms up to") {
				t.Errorf("%v:\n%s", err, b.String())
			}
		})
	}
}

// Poisson arrivals need room: the rate is below the capacity, and higher for a looser SLO.
func TestSearchWithPoissonArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rates []float64
		for _, slo := range []time.Duration{30 * time.Millisecond, 200 * time.Millisecond} {
			s := newServer(1, 10*time.Millisecond)
			f, err := Search(t.Context(), SearchOptions{Run: Options{Duration: 30 * time.Second, SLO: slo}, Start: 20}, s.do)
			if err != nil {
				t.Fatal(err)
			}
			rates = append(rates, f.Rate)
		}
		if rates[0] < 20 || rates[0] > 70 || rates[1] < rates[0] || rates[1] > 100 {
			t.Errorf("rates %v for 30 and 200 ms, want them to rise and stay below 100", rates)
		}
	})
}

func TestSearchAtTheEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := SearchOptions{Run: Options{Requests: 20, SLO: time.Millisecond}, Start: 10, Max: 35, Repeats: 1}
		f, err := Search(t.Context(), o, func(context.Context, int) error { return nil })
		if err != nil || f.Rate != 35 || f.Limit != 0 {
			t.Errorf("a server without cost: %v, limit %v, %v; want the highest rate, 35", f.Rate, f.Limit, err)
		}
		f, err = Search(t.Context(), o, func(context.Context, int) error { return errors.New("down") })
		if err != nil || f.Rate != 0 {
			t.Errorf("a server that fails: %v, %v; want 0", f.Rate, err)
		}
		o.Run.SLO = 0
		if _, err = Search(t.Context(), o, nil); err == nil {
			t.Error("no SLO: no error")
		}
	})
}

// The machine gets slower from run to run; the ratio does not.
func TestCompareUnderDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 4))
		slow := 1.0
		variant := func(name string, service time.Duration) Variant {
			return Variant{name, func(ctx context.Context, block int) (Result, error) {
				slow *= 1.02
				noise := 1 + 0.1*rng.Float64()
				s := newServer(1, time.Duration(float64(service)*slow*noise))
				r, err := Closed(ctx, Options{Workers: 1, Requests: 20, First: 20 * block}, s.do)
				r.Extra = map[string]float64{"reused": service.Seconds()}
				return r, err
			}}
		}
		c, err := Compare(t.Context(), CompareOptions{Blocks: 15, Warmup: 1,
			Metrics: []Metric{ByThroughput, ByP50, ByExtra("reused")}},
			[]Variant{variant("base", 10*time.Millisecond), variant("twice", 5*time.Millisecond),
				variant("same", 10*time.Millisecond)})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []float64{1, 2, 1} {
			v := c.Variants[i]
			if v.Requests != 15*20 {
				t.Errorf("%s: %d requests, want 300 without the warm-up", v.Name, v.Requests)
			}
			m := v.Metrics[0]
			near(t, v.Name+": ratio", m.Ratio, want, 0.05)
			if m.Low > m.Ratio || m.Ratio > m.High || m.Low > want*1.02 || m.High < want*0.98 || m.High-m.Low > 0.15*want {
				t.Errorf("%s: ratio %+v, want a narrow interval around %v", v.Name, m, want)
			}
			near(t, v.Name+": ratio of P50", v.Metrics[1].Ratio, 1/want, 0.05)
		}
		if m := c.Variants[1].Metrics[2]; m.Ratio != 0.5 || m.Median != 0.005 {
			t.Errorf("a figure of the caller: %+v", m)
		}
		var b strings.Builder
		if err := c.Write(&b); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"twice", "×2.0", "reused", "ratios to base with 95 % confidence"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("no %q in\n%s", want, b.String())
			}
		}
	})
}

func TestCompareStopsAtAnError(t *testing.T) {
	down := errors.New("down")
	_, err := Compare(t.Context(), CompareOptions{}, []Variant{
		{"a", func(context.Context, int) (Result, error) { return Result{}, down }}})
	if !errors.Is(err, down) || !strings.Contains(err.Error(), "a in block 0") {
		t.Errorf("error %v", err)
	}
	if _, err := Compare(t.Context(), CompareOptions{}, nil); err == nil {
		t.Error("nothing to compare: no error")
	}
}

// The interval must hold the truth about as often as it says. For medians of few values bootstrap
// intervals are known to be somewhat off; far off would be a mistake here.
func TestBootstrapCovers(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const trials = 200
	covered := 0
	for range trials {
		values := make([]float64, 15)
		for i := range values {
			values[i] = 3 + rng.NormFloat64()
		}
		if low, high := bootstrap(values, 0.9, rng); low <= 3 && 3 <= high {
			covered++
		}
	}
	if covered < trials*80/100 || covered > trials*98/100 {
		t.Errorf("90 %% intervals hold the median in %d of %d trials", covered, trials)
	}
}

func TestMerge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fast, slow := newServer(10, time.Millisecond), newServer(10, 9*time.Millisecond)
		a := open(t, Options{Name: "a", Arrivals: workload.Uniform(10), Duration: 3 * time.Second}, fast.do)
		b := open(t, Options{Arrivals: workload.Uniform(30), Duration: time.Second, SLO: time.Millisecond}, slow.do)
		a.Extra, b.Extra = map[string]float64{"x": 1}, map[string]float64{"x": 3}
		m := Merge(a, b)
		checkBooks(t, &m)
		if m.Name != "a" || m.Requests != 60 || m.Good != 30 || m.Seconds != 4 || m.Throughput != 15 || m.Latency.Mean != 5 ||
			m.Extra["x"] != 2 {
			t.Errorf("merged %+v", m)
		}
		near(t, "P99", m.Latency.P99, 9, 0.001)
		near(t, "P50", m.Latency.P50, 1, 0.001)
		near(t, "offered", m.Offered, 15, 1e-6)
	})
}

func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(10, 3*time.Millisecond)
		r := open(t, Options{Name: "games", Arrivals: workload.Uniform(100), Duration: time.Second, SLO: time.Millisecond},
			s.do)
		r.Extra = map[string]float64{"tokens reused": 0.58}
		r.Errors["shed"] = 4
		var b strings.Builder
		if err := WriteTable(&b, r); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"games", "P99.9", "tokens reused", "0.58", "shed 4"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("no %q in\n%s", want, b.String())
			}
		}
		b.Reset()
		if err := WriteJSON(&b, r); err != nil {
			t.Fatal(err)
		}
		var back Result
		if err := json.Unmarshal([]byte(b.String()), &back); err != nil {
			t.Fatal(err)
		}
		if back.Throughput != 100 || back.Latency.P99 != 3 || back.SLO != 1 || back.Good != 0 || back.Errors["shed"] != 4 {
			t.Errorf("read back %+v", back)
		}
	})
}
