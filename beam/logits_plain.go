package beam

import (
	"math"
	"unsafe"
)

var plain = kernels{maxes: maxesPlain, sumExp: sumExpPlain}

func maxesPlain(x, out *float32, blocks int) bool {
	maxes := unsafe.Slice(out, blocks)
	for b := range maxes {
		top := float32(negInf)
		for _, v := range unsafe.Slice(x, blocks*blockLen)[b*blockLen:][:blockLen] {
			if v > top {
				top = v
			} else if v != v {
				return false
			}
		}
		maxes[b] = top
	}
	return true
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

func sumExpPlain(x *float32, blocks int, top float32) float64 {
	sum := 0.0
	for b := range blocks {
		part := float32(0)
		for _, v := range unsafe.Slice(x, blocks*blockLen)[b*blockLen:][:blockLen] {
			z := v - top
			if z < lowest {
				continue
			}
			u := z*log2e + round
			f := z*log2e - (u - round)
			p := (((((p0*f+p1)*f+p2)*f+p3)*f+p4)*f+p5)*f + 1
			part += math.Float32frombits(math.Float32bits(p) + math.Float32bits(u)<<23)
		}
		sum += float64(part)
	}
	return sum
}
