package workload

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func take(a Arrivals, n int) []time.Duration {
	var out []time.Duration
	for range n {
		at, ok := a.Next()
		if !ok {
			break
		}
		out = append(out, at)
	}
	return out
}

func TestPoissonArrivals(t *testing.T) {
	const n, rate = 20_000, 250.0
	times := take(Poisson(rate, 7), n)
	if !slices.IsSorted(times) || !slices.Equal(times, take(Poisson(rate, 7), n)) {
		t.Fatal("arrivals go back, or differ for one seed")
	}
	if got := Rate(times); math.Abs(got-rate) > 5*rate/math.Sqrt(n) {
		t.Errorf("rate %.1f, want %.1f", got, rate)
	}
	// Exponential gaps deviate from their mean as much as the mean.
	var squares float64
	for i := 1; i < n; i++ {
		d := (times[i] - times[i-1]).Seconds() - 1/rate
		squares += d * d
	}
	if cv := math.Sqrt(squares/n) * rate; math.Abs(cv-1) > 0.05 {
		t.Errorf("gaps deviate by %.3f of their mean, want 1", cv)
	}
}

func TestUniformArrivals(t *testing.T) {
	got := take(Uniform(3), 4)
	want := []time.Duration{0, time.Second / 3, 2 * time.Second / 3, time.Second}
	if !slices.Equal(got, want) {
		t.Errorf("arrivals at %v, want %v", got, want)
	}
}

// A rate that was measured may be 0: nobody comes then, rather than everybody at once.
func TestNoArrivals(t *testing.T) {
	for _, rate := range []float64{0, -1, math.NaN(), math.SmallestNonzeroFloat64} {
		for name, a := range map[string]Arrivals{"poisson": Poisson(rate, 1), "uniform": Uniform(rate)} {
			if got := take(a, 100); len(got) > 1 || len(got) == 1 && got[0] != 0 {
				t.Errorf("%s: arrivals at %v at a rate of %v, want none", name, got, rate)
			}
		}
	}
}

func TestTraceArrivals(t *testing.T) {
	got := take(Trace([]time.Duration{0, time.Second, 3 * time.Second}, 2), 10)
	if want := []time.Duration{0, time.Second / 2, 3 * time.Second / 2}; !slices.Equal(got, want) {
		t.Errorf("arrivals at %v, want %v and the end", got, want)
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadTrace(t *testing.T) {
	want := []time.Duration{0, 1500 * time.Millisecond, 2 * time.Second}
	for name, text := range map[string]string{
		// Out of order, and with Windows' line ends, as the published files are.
		"a.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.5000000,374,44\r\n2023-11-16 " +
			"18:15:48.5000000,1,1\r\n2023-11-16 18:15:48.0,396,109\r\n",
		"b.jsonl": "{\"timestamp\": 27000, \"hash_ids\": [1]}\n{\"timestamp\": 28500}\n\n{\"timestamp\": 29000}",
	} {
		got, err := ReadTrace(write(t, name, text))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, want)
		}
	}
	for name, text := range map[string]string{
		"bad.csv": "TIMESTAMP\nyesterday,1,2\n", "empty.csv": "TIMESTAMP,A\n", "bad.jsonl": "{\"timestamp\":",
		"none.jsonl": "{}\n", "x.txt": "1\n",
	} {
		if got, err := ReadTrace(write(t, name, text)); err == nil {
			t.Errorf("%s was read: %v", name, got)
		}
	}
	if _, err := ReadTrace(filepath.Join(t.TempDir(), "absent.csv")); err == nil {
		t.Error("an absent file was read")
	}
}

// Counts as their publishers give them.
func TestReadRealTraces(t *testing.T) {
	for name, want := range map[string]int{"azure-conv-2023.csv": 19_366, "mooncake-conversation.jsonl": 12_031,
		"mooncake-synthetic.jsonl": 3_993} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("..", "..", "shared", "data", "traces", name)
			if _, err := os.Stat(path); err != nil {
				t.Skipf("no recorded trace: %v", err)
			}
			times, err := ReadTrace(path)
			if err != nil {
				t.Fatal(err)
			}
			if len(times) != want || times[0] != 0 || !slices.IsSorted(times) {
				t.Errorf("%d arrivals from %v, want %d in order from 0", len(times), times[0], want)
			}
			span := times[len(times)-1]
			if span < 15*time.Minute || span > 61*time.Minute {
				t.Errorf("the trace spans %v, want an hour or less", span)
			}
			t.Logf("%.2f requests per second over %v", Rate(times), span)
		})
	}
}
