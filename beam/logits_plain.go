package beam

import (
	"math"
	"unsafe"
)

var plain = kernels{maxes: maxesPlain, sums: sumsPlain, weigh: weighPlain}

func maxesPlain(x, maxes *float32, blocks int) bool {
	for b, m := 0, unsafe.Slice(maxes, blocks); b < blocks; b++ {
		m[b] = float32(negInf)
		for _, v := range unsafe.Slice(x, blocks*blockLen)[b*blockLen:][:blockLen] {
			if v > m[b] {
				m[b] = v
			} else if v != v {
				return false
			}
		}
	}
	return true
}

func sumsPlain(x, maxes, sums *float32, blocks int) {
	s := unsafe.Slice(sums, blocks)
	for b, top := range unsafe.Slice(maxes, blocks) {
		top = max(top, -math.MaxFloat32)
		s[b] = 0
		for _, v := range unsafe.Slice(x, blocks*blockLen)[b*blockLen:][:blockLen] {
			s[b] += exp(v - top)
		}
	}
}

func weighPlain(maxes, sums *float32, groups int, top float32) float64 {
	sum := 0.0
	weights := unsafe.Slice(sums, groups*groupLen)
	for i, m := range unsafe.Slice(maxes, groups*groupLen) {
		sum += float64(exp(m-top) * weights[i])
	}
	return sum
}

// exp(z) = 2^n · 2^f with n the whole number nearest to z·log2(e). Adding 1.5·2^23 rounds to it and leaves
// it in the low bits; below lowest nothing counts. The polynomial for 2^f is that of Cephes.
const (
	log2e  = 1.44269504088896341
	round  = 12582912
	lowest = -86
	p0     = 1.535336188319500e-4
	p1     = 1.339887440266574e-3
	p2     = 9.618437357674640e-3
	p3     = 5.550332471162809e-2
	p4     = 2.402264791363012e-1
	p5     = 6.931472028550421e-1
)

// exp is for z up to 0.
func exp(z float32) float32 {
	z = max(z, lowest)
	u := z*log2e + round
	f := z*log2e - (u - round)
	p := (((((p0*f+p1)*f+p2)*f+p3)*f+p4)*f+p5)*f + 1
	return math.Float32frombits(math.Float32bits(p) + math.Float32bits(u)<<23)
}
