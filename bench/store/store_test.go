package store

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// Means and medians may double beside published users, if there were enough lookups and users.
func TestBars(t *testing.T) {
	times := func(mean, p50 float64) Times { return Times{Gets: leastGets, Mean: mean, P50: p50, P99: 1} }
	for _, c := range []struct {
		name string
		r    Report
		want bool
	}{
		{"twice", Report{Alone: times(3, 2), Beside: times(6, 4), Rate: 100, Published: 95}, true},
		{"median", Report{Alone: times(3, 2), Beside: times(3, 4.1)}, false},
		{"mean", Report{Alone: times(3, 2), Beside: times(6.1, 2)}, false},
		{"few users", Report{Alone: times(3, 2), Beside: times(3, 2), Rate: 100, Published: 94}, false},
		{"few lookups", Report{Alone: times(3, 2), Beside: Times{Gets: 5, Mean: 3, P50: 2}}, false},
	} {
		if c.r.judge(); c.r.Passed != c.want {
			t.Errorf("%s: passed %v", c.name, c.r.Passed)
		}
		var b bytes.Buffer
		if err := c.r.write(&b); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), "FAIL") == c.want {
			t.Errorf("%s: %s", c.name, b.String())
		}
	}
}

func TestTimes(t *testing.T) {
	all := []time.Duration{4000, 1000, 2000, 3000}
	if got, want := timesOf(all), (Times{Gets: 4, Mean: 2.5, P50: 3, P99: 4, Max: 4}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := timesOf(nil); got != (Times{}) {
		t.Errorf("%+v of nothing", got)
	}
}

// A small run has all entries in memory and on disk, and measures both kinds of windows.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	r, err := Run(t.Context(), Options{Entries: 200, Window: 10 * time.Millisecond, Rounds: 1, Dir: t.TempDir()}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if r.Entries != 200 || r.Below != 200 || r.Alone.Gets == 0 || r.Beside.Gets == 0 || out.Len() == 0 {
		t.Errorf("%+v", r)
	}
}
