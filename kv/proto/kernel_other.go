//go:build !amd64 || noasm

package proto

func advance(s *sums, row *rows, left *[Scales]float32) { advanceGo(s, row, left) }

func express(s *sums, f *frame, place float32, thresholds *[Planes]float32, out *[Width]int8) uint64 {
	return expressGo(s, f, place, thresholds, out)
}

func distance(a, b *[Width]int8) int32 { return distanceGo(a, b) }

func prefetch(*[Width]int8) {}
