package sim

import (
	"math"
	"testing"
)

// Tiles are counted from a segment's first token, and each goes through the keys of its last row.
func TestTiles(t *testing.T) {
	for _, tile := range []int{0, 1, 2, 5, 16} {
		for _, c := range [][3]int{{0, 1, 0}, {0, 15, 100}, {0, 16, 7}, {0, 17, 7}, {3, 40, 9}, {31, 32, 2}, {5, 5, 100}} {
			from, to, seen := c[0], c[1], c[2]
			var w Work
			w.Segment(from, to, seen, tile)
			rows, keys, tiled, segments := 0, 0, 0, 0
			for row := from; row < to; row++ {
				rows, segments = rows+1, 1
				keys += seen + row + 1
				if last := row == to-1 || tile > 1 && (row+1)%tile == 0; tile < 2 || last {
					tiled += seen + row + 1
				}
			}
			if want := (Work{Rows: rows, Keys: keys, Tiled: tiled, Segments: segments}); w != want {
				t.Errorf("tokens %d to %d behind %d in tiles of %d: %+v, want %+v", from, to, seen, tile, w, want)
			}
		}
	}
}

// Batches say how long a batch takes. What a node decides with does not change.
func TestBatches(t *testing.T) {
	run := func(b *Batches) *Result {
		s := small(t, func(s *Scenario) { s.Requests, s.Load.Rate = 500, 20 })
		p := *s.profiles[0]
		p.Noise, p.Batches = 0, b
		s.profiles = []*Profile{&p}
		r, _ := play(t, s, Options{})
		return r
	}
	m := small(t, func(*Scenario) {}).profiles[0].Prefill
	same := run(&Batches{Fixed: m.Fixed, Request: m.Request, Row: m.Row, Tiled: m.Key})
	plain, slower := run(nil), run(&Batches{Fixed: m.Fixed, Request: m.Request, Row: m.Row, Tiled: 16 * m.Key,
		Segment: m.Row, Tile: 16})
	if math.Abs(same.Latency.Mean-plain.Latency.Mean) > 1e-3*plain.Latency.Mean || m.Square > 0 {
		t.Errorf("the same coefficients give %+v and %+v", same.Latency, plain.Latency)
	}
	if slower.Latency.Mean < 1.05*same.Latency.Mean {
		t.Errorf("segments and tiles that take time: %.3f ms on average, and %.3f without", slower.Latency.Mean,
			same.Latency.Mean)
	}
}

// Products compute multiples of rows, and those of large batches are tuned for a few sizes.
func TestProducts(t *testing.T) {
	b := Batches{Fixed: 1, Row: .01, Multiple: 128, Sizes: []int{512, 1024}, Large: .5, Spare: .001}
	for _, c := range []struct {
		rows, computed, spare int
		large                 bool
		ms                    float64
	}{
		{1, 128, 0, false, 2.28}, {128, 128, 0, false, 2.28}, {129, 256, 0, false, 3.56}, {512, 512, 0, false, 6.12},
		{513, 640, 384, true, 8.284}, {1024, 1024, 0, true, 11.74}, {1025, 1152, 0, true, 13.02},
	} {
		computed, spare, large := b.Products(c.rows)
		ms := b.Predict(&Work{Rows: c.rows})
		if computed != c.computed || spare != c.spare || large != c.large || math.Abs(ms-c.ms) > 1e-9 {
			t.Errorf("%d rows: %d computed, %d spare, large %v, %v ms; want %+v", c.rows, computed, spare, large, ms, c)
		}
	}
	var plain Batches
	if computed, spare, large := plain.Products(129); computed != 129 || spare != 0 || large {
		t.Errorf("without sizes: %d, %d, %v", computed, spare, large)
	}
}
