package server

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkRank measures everything but the engine: 100 candidates by id, over HTTP without a network.
func BenchmarkRank(b *testing.B) {
	w := newWorld(b, func(c *setup) { c.Models[1].Runner = constantRunner })
	body := `{"model":"pw","user":{"id":"u1"},"top_k":10,"candidates":[{"id":"i1"}` + strings.Repeat(`,{"id":"i2"}`, 99) +
		`]}`
	b.ReportAllocs()
	for b.Loop() {
		if rec := w.ask("POST", "/v1/rank", body); rec.Code != 200 {
			b.Fatal(fmt.Sprint(rec.Code, rec.Body))
		}
	}
}
