package generate

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"grebe/beam"
	"grebe/catalog/filter"
	"grebe/catalog/history"
	"grebe/compute/cpu"
	"grebe/engine"
	"grebe/model"
	"grebe/model/modeltest"
	"grebe/prompt"
)

// inCPU runs a function and reports the processor time of the process, which other processes do not change.
func inCPU(b *testing.B, run func()) {
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	start, n := used(), 0
	for b.Loop() {
		run()
		n++
	}
	b.ReportMetric(float64((used()-start).Microseconds())/1000/float64(n), "cpu-ms/op")
}

// BenchmarkRange measures a range filter on a million items with one price each: the first range of an attribute, which
// reads all items (run it with -benchtime 1x); the set of items of a range on a snapshot that had one before; and whole
// recommendations with a small model on two threads, with and without the range.
//
//	go test ./generate -run '^$' -bench Range
func BenchmarkRange(b *testing.B) {
	const count = 1_000_000
	r := rand.New(rand.NewPCG(1, 2))
	items := make([]*prompt.Item, count)
	for i := range items {
		items[i] = &prompt.Item{ID: fmt.Sprint("i", i), Codes: []int32{r.Int32N(256), r.Int32N(256), r.Int32N(256)},
			Identifier: -1,
			Attributes: map[string][]string{"brand": {fmt.Sprint(r.IntN(500))},
				"price": {fmt.Sprintf("%.2f", float64(r.IntN(100_000))/100)},
				"added": {time.Unix(r.Int64N(1<<30)+1e9, 0).UTC().Format(time.RFC3339)}}}
	}
	dev := must(cpu.New(cpu.Options{Threads: 2}))
	defer dev.Close()
	dir := b.TempDir()
	if err := modeltest.Write(dir, modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 512, Layers: 8, Heads: 8,
		KVHeads: 2, HeadDim: 64,
		Inter: 1536, Vocab: 1024, Seed: 1}); err != nil {
		b.Fatal(err)
	}
	m := must(model.Open(dir, dev, model.Options{DType: "bf16"}))
	defer m.Close()
	e := must(engine.New(m, dev, engine.Options{MaxTokens: 4096}))
	defer e.Close()
	p := must(prompt.New(prompt.Config{Codes: prompt.Codes{
		FirstToken: []int32{100, 356, 612}, Size: []int32{256, 256, 256}}}, nil, m.Vocab()))
	snap := must(NewSnapshot("1", items, p, m, nil))
	g := &Generator{Prompt: p, Do: e.Do, Shape: m.Shape()}
	g.Use(snap)
	for of, kind := range map[string]filter.Kind{"price": filter.Number, "added": filter.Time} {
		b.Run("first/"+of, func(b *testing.B) {
			fresh := &Snapshot{index: snap.index, table: history.NewTable(items), sets: map[attribute]*beam.Set{}}
			inCPU(b, func() { fresh.column(column{of, kind}) })
		})
	}
	user := make([]int32, 200)
	for i := range user {
		user[i] = r.Int32N(100)
	}
	between := func(share float64) filter.Filter {
		width := 1000 * share
		low := r.Float64() * (1000 - width)
		bounds := filter.Bounds{GTE: fmt.Sprintf("%.3f", low), LT: fmt.Sprintf("%.3f", low+width)}
		between, _, err := bounds.Range()
		if err != nil {
			b.Fatal(err)
		}
		return filter.Filter{"price": {Range: between}}
	}
	for _, share := range []float64{0.01, 0.1, 0.5, 0.9} {
		b.Run(fmt.Sprintf("set/%v", share), func(b *testing.B) {
			snap.filter(between(share))
			inCPU(b, func() { snap.filter(between(share)) })
		})
		b.Run(fmt.Sprintf("recommend/%v", share), func(b *testing.B) {
			inCPU(b, func() {
				must(g.Recommend(b.Context(), &Request{User: user, N: 10, Width: 128, Filter: between(share)}))
			})
		})
	}
	b.Run("recommend/all", func(b *testing.B) {
		inCPU(b, func() { must(g.Recommend(b.Context(), &Request{User: user, N: 10, Width: 128})) })
	})
	b.Run("not", func(b *testing.B) {
		snap.filter(filter.Filter{"brand": {Not: []string{"7"}}})
		inCPU(b, func() { snap.filter(filter.Filter{"brand": {Not: []string{"7"}}}) })
	})
}
