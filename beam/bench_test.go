package beam

import (
	"bytes"
	"fmt"
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
					if _, err := Open(stored.Bytes()); err != nil {
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
