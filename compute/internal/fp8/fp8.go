// Package fp8 is the number format e4m3 (OCP 8-bit floating point: a sign, 4 bits of exponent with bias
// 7, 3 of mantissa; no infinities, the largest magnitude is 448) and the scales of KV chunks that are
// stored in it, as compute.Chunk defines them.
package fp8

import "math"

// Largest is the largest magnitude.
const Largest = 448

// Decode returns the value of b.
func Decode(b byte) float32 { return values[b] }

// values are those of all 256 codes.
var values = func() (out [256]float32) {
	for b := range out {
		exp, frac := b>>3&15, float64(b&7)
		v := math.Ldexp(8+frac, exp-10)
		switch {
		case exp == 0:
			v = math.Ldexp(frac, -9)
		case b&127 == 127:
			v = math.NaN()
		}
		if b >= 128 {
			v = -v
		}
		out[b] = float32(v)
	}
	return out
}()

// Encode rounds v to nearest, ties to even. What is larger than Largest becomes that, and NaN stays.
func Encode(v float32) byte {
	bits := math.Float32bits(v)
	sign, bits := byte(bits>>24)&0x80, bits&0x7fffffff
	switch {
	case bits > 0x7f800000:
		return sign | 0x7f
	case bits >= 0x43e00000: // 448
		return sign | 0x7e
	case bits < 0x3c800000: // 2⁻⁶: in steps of 2⁻⁹, which adding 2¹⁴ rounds to
		return sign | byte(math.Float32bits(math.Float32frombits(bits)+0x1p14)&15)
	}
	bits += 0x7ffff + bits>>20&1 // the mantissa's 20 lower bits go
	return sign | byte(bits>>20-120<<3)
}

// Scale returns the scale of a chunk whose first token's vector has the largest magnitude most.
func Scale(most float32) float32 {
	bits := math.Float32bits(most) &^ 0x7fffff
	// Neither the scale nor its inverse may leave the normal numbers.
	if bits < 0x00800000 || bits > 0x7e000000 {
		return 1
	}
	return math.Float32frombits(bits)
}

// Most returns the largest magnitude in v; what is no number does not count.
func Most(v []float32) float32 {
	most := float32(0)
	for _, x := range v {
		if x = float32(math.Abs(float64(x))); x > most {
			most = x
		}
	}
	return most
}
