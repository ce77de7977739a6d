package proto

import "math"

// dims is the length of the vectors that walkers add up: the embedding, and its projections on the hyperplanes.
// Both are linear, so that a hyperplane's side of a context costs an addition per token.
const dims = Width + Planes

// vector is an embedding with its projections.
type vector [dims]float32

// sums are those of a context, one for each scale.
type sums [Scales]vector

// rows are what a token adds to the sums: the upper halves of float32, since what is read at random decides how long
// a lookup takes.
type rows [Scales][dims]uint16

// frame is what contexts are expressed in: base + place × places + the sums, in steps of an embedding.
type frame struct {
	base, places vector
	steps        float32 // that make 1
}

// advanceGo takes a token's rows into the sums, of which left stays.
func advanceGo(s *sums, row *rows, left *[Scales]float32) {
	for j := range s {
		for i, x := range row[j] {
			s[j][i] = float32(s[j][i]*left[j]) + math.Float32frombits(uint32(x)<<16)
		}
	}
}

// round makes a row of vectors, each value the nearest of its format.
func (r *rows) round(v *sums) {
	for j := range v {
		for i, x := range v[j] {
			b := math.Float32bits(x)
			r[j][i] = uint16((b + 0x7fff + b>>16&1) >> 16)
		}
	}
}

func (f *frame) at(s *sums, i int, place float32) float32 {
	return s[0][i] + s[1][i] + s[2][i] + f.base[i] + float32(f.places[i]*place)
}

// expressGo quantises the context at a place. The sketch has a bit for each hyperplane: set where the context lies
// above the threshold.
func expressGo(s *sums, f *frame, place float32, thresholds *[Planes]float32, out *[Width]int8) uint64 {
	for i := range out {
		q := f.at(s, i, place) * f.steps
		if !(q <= 127) { // what is no number too
			q = 127
		}
		out[i] = int8(max(-128, math.RoundToEven(float64(q))))
	}
	var sketch uint64
	for i, t := range thresholds {
		if f.at(s, Width+i, place) > t {
			sketch |= 1 << i
		}
	}
	return sketch
}

// distance is the square of the distance of two quantised embeddings, in steps.
func distanceGo(a, b *[Width]int8) int32 {
	var sum int32
	for i := range a {
		d := int32(a[i]) - int32(b[i])
		sum += d * d
	}
	return sum
}
