package beam

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
)

// bigCatalog draws ten million items. Clustered ones crowd under few prefixes, as learned codes do.
func bigCatalog(kind string, depth, size int) catalog {
	r := rng(11)
	const items = 10_000_000
	c := catalog{sizes: make([]int, depth), codes: make([]int32, 0, items*depth)}
	for l := range c.sizes {
		c.sizes[l] = size
	}
	for range items {
		prefix := uint32(0)
		for range depth {
			code := r.Uint32N(uint32(size))
			if kind == "clustered" { // a few codes of each prefix take most of the items
				u := r.Float64()
				code = (prefix*2654435761>>7 + uint32(u*u*u*u*float64(size))) % uint32(size)
				prefix = prefix*31 + code + 1
			}
			c.codes = append(c.codes, int32(code))
		}
	}
	return c
}

// BenchmarkBuild builds, stores and opens indices of ten million items, on one core.
func BenchmarkBuild(b *testing.B) {
	for _, shape := range [][2]int{{3, 8192}, {4, 256}, {5, 8192}} {
		for _, kind := range []string{"uniform", "clustered"} {
			b.Run(fmt.Sprintf("%dx%d/%s", shape[0], shape[1], kind), func(b *testing.B) {
				c := bigCatalog(kind, shape[0], shape[1])
				var build, open, bytesPerItem float64
				for b.Loop() {
					begin := time.Now()
					ix := c.build(b)
					build = time.Since(begin).Seconds()
					var stored bytes.Buffer
					if _, err := ix.WriteTo(&stored); err != nil {
						b.Fatal(err)
					}
					begin = time.Now()
					if _, err := Open(stored.Bytes(), ix.Len(), nil); err != nil {
						b.Fatal(err)
					}
					open = time.Since(begin).Seconds()
					bytesPerItem = float64(ix.Bytes()) / float64(ix.Len())
					b.ReportMetric(float64(stored.Len())/float64(ix.Len()), "stored-bytes/item")
					b.ReportMetric(float64(ix.Nodes(ix.Depth()-1))/float64(ix.Len()), "leaves/item")
					b.ReportMetric(float64(ix.Nodes(ix.Depth()-2))/float64(ix.Len()), "parents/item")
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(build, "build-s")
				b.ReportMetric(open, "open-s")
				b.ReportMetric(bytesPerItem, "bytes/item")
			})
		}
	}
}

// BenchmarkSearch times what a request of width 512 spends outside of the model, on ten million items.
func BenchmarkSearch(b *testing.B) {
	c := bigCatalog("clustered", 3, 8192)
	ix := c.build(b)
	r := rng(3)
	logits := make([]float32, 512*8192)
	for i := range logits {
		logits[i] = float32(3 * r.NormFloat64())
	}
	s, err := New(ix, nil, Options{Width: 512, N: 100})
	if err != nil {
		b.Fatal(err)
	}
	filter := func(share float64) *Set {
		set := NewSet(ix)
		for i := range ix.Len() {
			if r.Float64() < share {
				set.Add(uint32(i))
			}
		}
		return set
	}
	boosts := &Rules{Boosts: []Boost{{filter(0.1), 0.5}, {filter(0.01), 1}}}
	for _, test := range []struct {
		name    string
		set     *Set
		exclude int
		rules   *Rules
	}{
		{"all", nil, 0, nil}, {"exclude=1000", nil, 1000, nil}, {"filter=0.5", filter(0.5), 100, nil},
		{"filter=0.1", filter(0.1), 100, nil},
		{"filter=0.01", filter(0.01), 100, nil}, {"filter=0.001", filter(0.001), 100, nil},
		{"filter=0.00001", filter(0.00001), 0, nil},
		{"boost", nil, 0, boosts}, {"boost,filter=0.1", filter(0.1), 100, boosts},
		{"quota", nil, 0, &Rules{Accept: func(item uint32) bool { return item%2 == 0 }}},
		{"temperature", nil, 0, &Rules{Temperature: 1}}, {"temperature,filter=0.1", filter(0.1), 100, &Rules{Temperature: 1}},
	} {
		b.Run(test.name, func(b *testing.B) {
			e := &Eligible{}
			var results []Result
			rows := 0
			var times []float64
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for b.Loop() {
				rows = 0
				begin := threadTime()
				e.Reset(ix, test.set)
				for i := range test.exclude {
					e.Exclude(uint32(i * 31))
				}
				if err := s.Reset(ix, e, Options{Width: 512, N: 100, Rules: test.rules}); err != nil {
					b.Fatal(err)
				}
				for !s.Done() {
					rows += s.Rows()
					if err := s.Advance(logits, 8192); err != nil {
						b.Fatal(err)
					}
				}
				results, _ = s.Results(results[:0], 100)
				times = append(times, (threadTime()-begin).Seconds()*1e3)
			}
			slices.Sort(times)
			b.ReportMetric(times[len(times)/2], "cpu-ms")
			b.ReportMetric(float64(rows), "rows")
			b.ReportMetric(float64(len(results)), "results")
		})
	}
}
