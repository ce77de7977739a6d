package catalog

import (
	"fmt"
	"sync/atomic"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// BenchmarkItem is the read on a request's path: of items that were read lately, and of items that are decoded.
func BenchmarkItem(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("items=%d", n), func(b *testing.B) {
			c := New(Options{})
			ids := make([]string, n)
			for i := range ids {
				ids[i] = fmt.Sprint("item-", i)
				text := "a product with a title of some length"
				if _, err := c.PutItem(&grebev1.Item{Id: ids[i], Text: &text, Codes: []int32{1, 2, 3},
					Attributes: map[string]*grebev1.Values{"price": {Values: []string{"12.99"}}}}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, ok := c.Item(ids[i*7919%len(ids)]); !ok {
					b.Fatal("gone")
				}
			}
		})
	}
}

// BenchmarkPutItem is a durable write, by one writer and by 64 that share their syncs.
func BenchmarkPutItem(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			c := open(b, b.TempDir(), Options{})
			defer shut(b, c)
			text := "some words about an item, as many as usual"
			var n atomic.Int64
			b.SetParallelism(writers / 2)
			put := func() {
				if _, err := c.PutItem(&grebev1.Item{Id: fmt.Sprint(n.Add(1)), Text: &text}); err != nil {
					b.Error(err)
				}
			}
			if writers == 1 {
				for b.Loop() {
					put()
				}
				return
			}
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					put()
				}
			})
		})
	}
}

// BenchmarkApply is a durable batch of 1,000 items.
func BenchmarkApply(b *testing.B) {
	c := open(b, b.TempDir(), Options{})
	defer shut(b, c)
	text := "some words about an item, as many as usual"
	n := 0
	for b.Loop() {
		ops := make([]Op, 1000)
		for i := range ops {
			ops[i].PutItem = &grebev1.Item{Id: fmt.Sprint(n), Text: &text}
			n++
		}
		c.Apply(ops)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "items/s")
}

// BenchmarkAppendEvents appends to users with long histories, durably.
func BenchmarkAppendEvents(b *testing.B) {
	c := open(b, b.TempDir(), Options{MaxHistory: 1000})
	defer shut(b, c)
	var n atomic.Int64
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := n.Add(1)
			if _, _, _, err := c.AppendEvents(fmt.Sprint(i%50), []*grebev1.Event{{Item: "item-1", Time: i}}); err != nil {
				b.Error(err)
			}
		}
	})
}
