package embed

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// TestFinite: both checks find what the definition of a number finds, wherever it stands in a row.
func TestFinite(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	edges := []uint32{0, 0x8000_0000, 0x7F7F_FFFF, 0xFF7F_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7F80_0001, 0xFFFF_FFFF,
		0x007F_FFFF}
	for range 20_000 {
		n := 1 + r.IntN(9)
		wide, narrow := make([]byte, 4*n), make([]byte, 2*n)
		all, all16 := true, true
		for i := range n {
			bits := r.Uint32()
			if r.IntN(8) == 0 {
				bits = edges[r.IntN(len(edges))]
			}
			binary.LittleEndian.PutUint32(wide[4*i:], bits)
			binary.LittleEndian.PutUint16(narrow[2*i:], uint16(bits>>16))
			v, half := float64(math.Float32frombits(bits)), float64(math.Float32frombits(bits&0xFFFF_0000))
			all = all && !math.IsInf(v, 0) && !math.IsNaN(v)
			all16 = all16 && !math.IsInf(half, 0) && !math.IsNaN(half)
		}
		if got := finite(wide); got != all {
			t.Fatalf("% x: %v, want %v", wide, got, all)
		}
		if got := finite16(narrow); got != all16 {
			t.Fatalf("bf16 % x: %v, want %v", narrow, got, all16)
		}
	}
}
