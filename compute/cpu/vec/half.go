package vec

import "math"

// FromBF16 expands src to dst.
func (o Ops) FromBF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	n := o.whole(len(dst))
	if n > 0 {
		o.k.fromBF16(&dst[0], &src[0], n)
	}
	for i := n; i < len(dst); i++ {
		dst[i] = fromBF16(src[i])
	}
}

// FromF16 expands src to dst.
func (o Ops) FromF16(dst []float32, src []uint16) {
	src = src[:len(dst)]
	n := o.whole(len(dst))
	if n > 0 {
		o.k.fromF16(&dst[0], &src[0], n)
	}
	for i := n; i < len(dst); i++ {
		dst[i] = fromF16(src[i])
	}
}

// ToBF16 rounds src to the nearest bf16, ties to even. All levels give the same bits.
func (o Ops) ToBF16(dst []uint16, src []float32) {
	src = src[:len(dst)]
	n := o.whole(len(dst))
	if n > 0 {
		o.k.toBF16(&dst[0], &src[0], n)
	}
	for i := n; i < len(dst); i++ {
		dst[i] = toBF16(src[i])
	}
}

// DotBF16 returns x·row.
func (o Ops) DotBF16(x []float32, row []uint16) float32 {
	row = row[:len(x)]
	var sum float32
	n := o.whole(len(x))
	if n > 0 {
		sum = o.k.dotBF16(&x[0], &row[0], n)
	}
	return sum + dotHalf(x[n:], row[n:], fromBF16)
}

// DotF16 returns x·row.
func (o Ops) DotF16(x []float32, row []uint16) float32 {
	row = row[:len(x)]
	var sum float32
	n := o.whole(len(x))
	if n > 0 {
		sum = o.k.dotF16(&x[0], &row[0], n)
	}
	return sum + dotHalf(x[n:], row[n:], fromF16)
}

// dotHalf expands pieces of the row and adds up their dot products.
func dotHalf(x []float32, row []uint16, expand func(uint16) float32) float32 {
	var sum float32
	var buf [64]float32
	for len(x) > 0 {
		n := min(len(x), len(buf))
		for i, h := range row[:n] {
			buf[i] = expand(h)
		}
		sum += dot(x[:n], buf[:n])
		x, row = x[n:], row[n:]
	}
	return sum
}

func fromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

func toBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if f != f {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func fromF16(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&1023)
	switch exp {
	case 0: // zero and subnormals: a multiple of 2⁻²⁴
		return math.Float32frombits(sign | math.Float32bits(float32(frac)*(1.0/(1<<24))))
	case 31:
		if frac != 0 {
			frac |= 512 // quiet, as the processor's conversion does
		}
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}
