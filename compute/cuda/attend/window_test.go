package attend

import (
	"math/rand/v2"
	"testing"

	"grebe/compute"
)

// bounded is the dense mask of HSTU, from its definition.
func bounded(b *compute.Batch, p *compute.Pointwise) [][]int8 {
	mask := wanted(b)
	var positions []int // of slots
	for i := range b.Segments {
		for t := range b.Segments[i].Len {
			positions = append(positions, b.Segments[i].Start+t)
		}
	}
	first := 0
	for i := range b.Segments {
		g := &b.Segments[i]
		for t := g.Cached; t < g.Len; t++ {
			row, position := mask[g.First+t-g.Cached], g.Start+t
			for slot := range row {
				switch {
				case position < p.Context:
					if slot >= first && slot < first+g.Len {
						row[slot] = 1
					}
				case p.Window > 0 && p.Place(position)-p.Place(positions[slot]) > p.Window:
					row[slot] = 0
				}
			}
		}
		first += g.Len
	}
	return mask
}

func TestBoundedPlanSeesWhatTheMaskSays(t *testing.T) {
	var list []int32
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 8))
		w := &compute.Pointwise{Alpha: 1, Scale: 1, Window: []int{0, 1, 7, 40, 100, 300}[r.IntN(6)],
			Context: []int{0, 0, 3, 20}[r.IntN(4)]}
		p := plan{cut: cut{costs: measuredCosts}, pointwise: w}
		b := batchOf(r, 1+r.IntN(3))
		rows := 0
		for i := range b.Segments {
			g := &b.Segments[i]
			g.Start = r.IntN(200) * r.IntN(2)
			if g.Start < w.Context {
				g.Cached = 0
			}
			g.First = rows
			rows += g.Rows()
		}
		heads, blocks := 1+r.IntN(4), []int{1, 7, 132}[r.IntN(3)]
		p.build(b, nil, Held{}, tileRows)
		p.cutUnits(heads, blocks, 2*blocks)
		list = p.encode(list[:0])
		if err := checkMask(list, b, bounded(b, w), tileRows, heads, blocks); err != nil {
			t.Fatalf("seed %d: %d rows, %d segments, %+v: %v", seed, rows, len(b.Segments), *w, err)
		}
	}
}

// A window is work in proportion to it, and candidates behind a history share tiles.
func TestWindowsSaveWork(t *testing.T) {
	p := plan{cut: cut{costs: measuredCosts}, pointwise: &compute.Pointwise{Alpha: 1, Scale: 1, Window: 1000}}
	b := sequence(10000)
	for range 100 {
		add(b, 1, 0, []int32{0})
		b.Segments[len(b.Segments)-1].Start = 10000
	}
	p.build(b, nil, Held{}, tileRows)
	steps := 0
	for i := range p.tiles {
		steps += int(p.tiles[i].steps)
	}
	if n := len(p.tiles); n != 80 {
		t.Errorf("%d tiles, want 79 of the history and one of the candidates", n)
	}
	if steps > 80*11 {
		t.Errorf("%d steps of 128 keys for 80 tiles with a window of 1,000", steps)
	}
}
