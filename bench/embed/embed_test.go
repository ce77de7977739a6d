package embed

import (
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"grebe/embed/redisserver"
)

// A small run goes through everything: sums are checked, hit rates are sane, the report has every line.
func TestRun(t *testing.T) {
	var out strings.Builder
	r, err := Run(t.Context(), Options{
		Rows: 10_000, Percents: []float64{5}, Batches: []int{16, 64}, Warm: 50_000, Rounds: 2, Parts: []string{"sums"},
		Traces: []string{"drift", "zipf"},
	}, &out)
	if errors.Is(err, redisserver.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Lines) != 2*2*4 {
		t.Fatalf("%d lines, want 16:\n%s", len(r.Lines), out.String())
	}
	for _, l := range r.Lines {
		if (l.Hits > 0.3) != (l.Policy != "none") || l.Rate <= 0 {
			t.Errorf("hits and rate make no sense: %+v", l)
		}
	}
}

// While Redis is gone, killed or hung, every request is answered with right rows and defaults, and afterwards with
// right rows.
func TestOutage(t *testing.T) {
	r, err := Run(t.Context(), Options{Parts: []string{"outage"}, Rows: 10_000, Outage: 300 * time.Millisecond},
		io.Discard)
	if errors.Is(err, redisserver.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range r.Outages {
		if o.Failed != 0 {
			t.Errorf("%d of %d requests have rows that are neither right nor the default", o.Failed, o.Requests)
		}
		before, gone, after := o.Phases[0], o.Phases[1], o.Phases[2]
		if before.Requests == 0 || gone.Requests == 0 || after.Requests == 0 {
			t.Errorf("requests stopped: %+v", o)
		}
		if gone.Defaults == 0 || gone.Hits == 0 {
			t.Errorf("without Redis %.3f of the rows were defaults and %.3f cached: want some of both", gone.Defaults, gone.Hits)
		}
		if after.Defaults > 0.9 {
			t.Errorf("no recovery: %.3f of the rows were defaults after Redis was back", after.Defaults)
		}
	}
}

func TestInterval(t *testing.T) {
	if got := ratioOf([]float64{9, 8, 7, 6, 5, 4, 3, 2, 1}); got != (Ratio{5, 2, 8}) {
		t.Errorf("of nine values: %+v, want the second to the eighth around 5", got)
	}
	if got := ratioOf([]float64{2}); got != (Ratio{2, 2, 2}) {
		t.Errorf("of one value: %+v", got)
	}
}

// Half of the popular rows are others after the half-life.
func TestTraceDrifts(t *testing.T) {
	const rows, halfLife = 20_000, 50_000
	tr := newTrace(rows, 0.99, halfLife, 1)
	before := slices.Clone(tr.ids[:rows/popular])
	tr.next(make([]uint64, halfLife))
	same := 0
	for i, id := range before {
		if tr.ids[i] == id {
			same++
		}
	}
	if share := float64(same) / float64(len(before)); math.Abs(share-0.5) > 0.06 {
		t.Errorf("%.2f of the popular rows are the same, want half", share)
	}
}

// Gathers of a small table: every way has a rate, and hits are what the cases say.
func TestGather(t *testing.T) {
	r, err := Run(t.Context(), Options{Parts: []string{"gather"}, Rows: 1 << 14, Rounds: 1}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range r.Gather.Rates {
		want := 0.0
		switch {
		case x.What == "all hit":
			want = 1
		case strings.HasPrefix(x.What, "90 %"):
			want = 0.9
		}
		if x.Bytes <= 0 || math.Abs(x.Hits-want) > 0.06 {
			t.Errorf("%s, batches of %d: %.0f bytes/s, %.3f hits, want about %.1f", x.What, x.Batch, x.Bytes, x.Hits, want)
		}
	}
}
