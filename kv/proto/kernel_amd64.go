//go:build !noasm

package proto

import "golang.org/x/sys/cpu"

// The kernels multiply and add in two roundings, as the plain ones do: all give the same bits.
var wide = cpu.X86.HasAVX2

//go:noescape
func advanceAVX2(s *sums, row *rows, left *[Scales]float32)

//go:noescape
func expressAVX2(s *sums, f *frame, place float32, thresholds *[Planes]float32, out *[Width]int8) uint64

//go:noescape
func distanceAVX2(a, b *[Width]int8) int32

// prefetch asks for a vector that is compared soon.
//
//go:noescape
func prefetch(v *[Width]int8)

func advance(s *sums, row *rows, left *[Scales]float32) {
	if wide {
		advanceAVX2(s, row, left)
		return
	}
	advanceGo(s, row, left)
}

func express(s *sums, f *frame, place float32, thresholds *[Planes]float32, out *[Width]int8) uint64 {
	if wide {
		return expressAVX2(s, f, place, thresholds, out)
	}
	return expressGo(s, f, place, thresholds, out)
}

func distance(a, b *[Width]int8) int32 {
	if wide {
		return distanceAVX2(a, b)
	}
	return distanceGo(a, b)
}
