//go:build !amd64 || noasm

package proto

func advance(sums, row *rows, left *[Scales]float32) { advanceGo(sums, row, left) }

func express(sums *rows, f *frame, place float32, thresholds *[Planes]float32, out *[Width]int8) uint64 {
	return expressGo(sums, f, place, thresholds, out)
}

func distance(a, b *[Width]int8) int32 { return distanceGo(a, b) }
