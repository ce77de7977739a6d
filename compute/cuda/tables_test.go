package cuda

import (
	"math/rand/v2"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/internal/offheap"
)

// TestRowsFindTheirChunks: of all rows, and of those that are left, each one's K and V go to its token of its chunk.
func TestRowsFindTheirChunks(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		b, want, left := &compute.Batch{}, []home(nil), some(nil)
		all := random.IntN(2) == 0
		for range 1 + random.IntN(4) {
			g := compute.Segment{First: len(b.Tokens)}
			for range random.IntN(5) {
				c := compute.Chunk{Addr: random.Uint64(), Tokens: 1 + random.IntN(9), Transient: random.IntN(4) == 0}
				g.Chunks, g.Len = append(g.Chunks, c), g.Len+c.Tokens
			}
			if n := len(g.Chunks); n > 0 {
				g.Len -= random.IntN(g.Chunks[n-1].Tokens)
				g.Cached = random.IntN(g.Len + 1)
			}
			at := 0
			for i := range g.Chunks {
				for k := at; k < at+g.Chunks[i].Tokens && k < g.Len; k++ {
					if k < g.Cached {
						continue
					}
					if row := int32(len(b.Tokens)); all || random.IntN(3) == 0 {
						left, want = append(left, row), append(want, home{g.Chunks[i].Addr, room(&g.Chunks[i]), int32(k - at)})
					}
					b.Tokens = append(b.Tokens, 0)
				}
				at += g.Chunks[i].Tokens
			}
			b.Segments = append(b.Segments, g)
		}
		if all {
			left = nil
		} else if left == nil {
			left = some{}
		}
		tab := &tables{host: &driver.Host{Bytes: make([]byte, headerBytes+16*(len(want)+1))}, rows: len(want)}
		tab.locate(b, left)
		for row, got := range offheap.Slice[home](tab.host.Bytes[tab.homesAt():], len(want)) {
			if got != want[row] {
				t.Fatalf("row %d of %d goes to %+v, want %+v; left %v of %+v", row, len(want), got, want[row], left, b.Segments)
			}
		}
	}
}
