package product

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"grebe/compute/cuda/driver"
)

// contender is one way to compute a product with the given weights.
type contender struct {
	name string
	run  func(w driver.Ptr) error
}

var shapes = []struct {
	model string
	form  Form
	n, k  int
	rows  []int
}{
	{"qwen2-1.5b", GateUp, 17920, 1536, []int{256, 512, 1024, 4096, 8192}},
	{"qwen3-1.7b", GateUp, 12288, 2048, []int{256, 512, 1024, 4096, 8192}},
	{"qwen2-1.5b-qkv", Plain, 2048, 1536, []int{256, 1024, 4096}},
	{"qwen2-1.5b-down", Add, 1536, 8960, []int{256, 1024, 4096}},
	{"qwen3-1.7b-qkv", Plain, 4096, 2048, []int{256, 1024}},
	{"qwen3-1.7b-down", Add, 2048, 6144, []int{256, 1024}},
}

// BenchmarkShapes times the products of real models, with the weights of several layers in turn, beside
// the best algorithm of the matrix library. Its times are medians of rounds in which all take turns.
func BenchmarkShapes(b *testing.B) {
	for _, s := range shapes {
		for _, rows := range s.rows {
			b.Run(fmt.Sprintf("%s/%d", s.model, rows), func(b *testing.B) {
				m := gpu(b)
				for b.Loop() {
					m.bench(s.form, rows, s.n, s.k)
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// bench prints a line per contender.
func (m *machine) bench(form Form, rows, n, k int) {
	const layers = 4
	e := m.example(form, rows, rows, n, k, false)
	e.op.Stride = e.op.columns()
	weights := []driver.Ptr{e.op.W}
	for range layers - 1 {
		weights = append(weights, m.upload(m.random(n*k, 0.05)))
	}
	tiles := Tiles(m.c.Info(), rows, n, k)
	var all []contender
	for _, tile := range tiles {
		all = append(all, m.ours(e.op, tile, false))
	}
	print := func(all []contender, times []time.Duration) {
		flops := 2 * float64(rows) * float64(n) * float64(k)
		for i, c := range all {
			fmt.Printf("%-8v %5d x %5d x %5d  %-28s %9.2f us %7.1f TF/s\n", form, rows, n, k, c.name,
				float64(times[i].Nanoseconds())/1e3, flops/times[i].Seconds()/1e12)
		}
	}
	times := m.interleave(all, weights)
	print(all, times)
	best := 0
	for i := range times {
		if times[i] < times[best] {
			best = i
		}
	}
	final := append([]contender{m.ours(e.op, tiles[best], false), m.ours(e.op, tiles[best], true)}, m.library(e.op)...)
	print(final, m.interleave(final, weights))
}

func (m *machine) ours(op Op, t Tile, overlap bool) contender {
	calls := map[driver.Ptr]*Call{}
	name := t.String()
	if overlap {
		name += " overlap"
	}
	return contender{name, func(w driver.Ptr) error {
		if calls[w] == nil {
			op.W = w
			c, err := m.set.Prepare(op, t)
			if err != nil {
				return err
			}
			calls[w] = c
		}
		return calls[w].Launch(m.stream, m.args, overlap)
	}}
}

// library returns the unfused product by the matrix library, its first choice and the best of several.
func (m *machine) library(op Op) []contender {
	const workspace = 32 << 20
	blas, err := m.c.NewBlas()
	m.must(err)
	m.tb.Cleanup(func() { _ = blas.Close() })
	p := driver.Product{M: op.Most, N: op.N, K: op.K, In: driver.NumberBF16, Out: driver.NumberBF16}
	if op.Form == Add {
		p.Out, p.Add = driver.NumberF32, true
	}
	plan, err := blas.NewPlan(p)
	m.must(err)
	m.tb.Cleanup(func() { _ = plan.Close() })
	algorithms, err := plan.Candidates(workspace, 16)
	m.must(err)
	out, err := m.c.Alloc(4 * op.Most * op.N)
	m.must(err)
	m.tb.Cleanup(func() { _ = m.c.Free(out) })
	space, err := m.c.Alloc(workspace)
	m.must(err)
	m.tb.Cleanup(func() { _ = m.c.Free(space) })
	var all []contender
	for i, a := range algorithms {
		all = append(all, contender{fmt.Sprintf("cublasLt %d", i), func(w driver.Ptr) error {
			plan.Use(a)
			return plan.Run(m.stream, out, op.X, w, space, workspace)
		}})
	}
	times := m.interleave(all, []driver.Ptr{op.W})
	best := 0
	for i := range all {
		if times[i] < times[best] {
			best = i
		}
	}
	return slices.CompactFunc([]contender{all[0], all[best]}, func(a, b contender) bool { return a.name == b.name })
}

// interleave returns the median time of a product by each contender, in graphs of all weights.
func (m *machine) interleave(all []contender, weights []driver.Ptr) []time.Duration {
	const rounds = 21
	clock, err := NewClock(m.stream)
	m.must(err)
	defer clock.Close()
	graphs := make([]*driver.Graph, len(all))
	for i, c := range all {
		for _, w := range weights {
			m.must(c.run(w)) // loads what is loaded lazily
		}
		m.must(m.stream.Sync())
		graphs[i], err = m.stream.Capture(func() error {
			var errs []error
			for range 2 {
				for _, w := range weights {
					errs = append(errs, c.run(w))
				}
			}
			return errors.Join(errs...)
		})
		m.must(err)
	}
	times := make([][]time.Duration, len(all))
	for range rounds {
		for i, g := range graphs {
			d, err := clock.Time(func() error { return g.Launch(m.stream) })
			m.must(err)
			times[i] = append(times[i], d/time.Duration(2*len(weights)))
		}
	}
	var medians []time.Duration
	for i, t := range times {
		slices.Sort(t)
		medians = append(medians, t[len(t)/2])
		m.must(graphs[i].Close())
	}
	return medians
}
