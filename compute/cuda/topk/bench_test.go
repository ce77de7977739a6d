package topk

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// BenchmarkRound times one round: 512 beams of 8,192 valid codes, of which 512 are kept. Four copies of
// the logits, 67 MB, take turns in a graph, so that they come from memory; the warm line reads one again
// and again, as it comes out of the product before it.
func BenchmarkRound(b *testing.B) {
	for _, kind := range []string{"normal", "flat", "peaked", "valid paths", "first"} {
		for _, half := range []bool{false, true} {
			for _, warm := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/bf16=%v/warm=%v", kind, half, warm), func(b *testing.B) {
					m := gpu(b)
					for b.Loop() {
						m.bench(kind, half, warm)
					}
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}

func (m *machine) bench(kind string, half, warm bool) {
	r := rng(5)
	count, n := 512, func(int) int { return 8192 }
	sigma := 3.0
	switch kind {
	case "flat":
		sigma = 0.005
	case "valid paths":
		n = func(int) int { return 1 + r.IntN(8192) }
	case "first":
		count = 1
	}
	var searches []*Search
	for range 4 {
		o := beams(r, count, 8192, 512, n).fill(func(b, c int) float32 {
			if kind == "peaked" && c == b*7%1024 {
				return 25
			}
			return float32(sigma * r.NormFloat64())
		})
		o.bf16 = half
		searches = append(searches, m.place(o))
		if warm {
			searches = []*Search{searches[0], searches[0], searches[0], searches[0]}
			break
		}
	}
	g, err := m.stream.Capture(func() error {
		var errs []error
		for _, q := range searches {
			errs = append(errs, q.Round(m.stream, m.args, 1, true))
		}
		return errors.Join(errs...)
	})
	m.must(err)
	defer g.Close()
	start, err := m.c.NewEvent(true)
	m.must(err)
	end, err := m.c.NewEvent(true)
	m.must(err)
	defer func() { m.must(errors.Join(start.Close(), end.Close())) }()
	var times []time.Duration
	for i := range 31 {
		m.must(errors.Join(start.Record(m.stream), g.Launch(m.stream), end.Record(m.stream)))
		m.must(end.Sync())
		d, err := end.Since(start)
		m.must(err)
		if i > 0 {
			times = append(times, d/4)
		}
	}
	slices.Sort(times)
	fmt.Printf("select %-12s bf16=%-5v warm=%-5v  %7.2f us (min %.2f)\n", kind, half, warm,
		float64(times[len(times)/2].Nanoseconds())/1e3, float64(times[0].Nanoseconds())/1e3)
}
