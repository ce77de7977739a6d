package safetensors

import (
	"encoding/binary"
	"math"

	"grebe/compute"
)

// Floats returns a tensor's values as float32, which is exact for every format.
func Floats(t compute.Tensor) []float32 {
	out := make([]float32, t.Rows*t.Cols)
	for i := range out {
		switch t.DType {
		case compute.F32:
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
		case compute.BF16:
			out[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(t.Data[2*i:])) << 16)
		case compute.F16:
			out[i] = fromF16(binary.LittleEndian.Uint16(t.Data[2*i:]))
		}
	}
	return out
}

// NotFinite returns the place of the first value that is infinite or no number; -1 where all are finite.
func NotFinite(t compute.Tensor) int {
	const f32, bf16, f16 = 0x7f800000, 0x7f80, 0x7c00 // exponents of what is not finite
	for i := range t.Rows * t.Cols {
		bad := false
		switch t.DType {
		case compute.F32:
			bad = binary.LittleEndian.Uint32(t.Data[4*i:])&f32 == f32
		case compute.BF16:
			bad = binary.LittleEndian.Uint16(t.Data[2*i:])&bf16 == bf16
		case compute.F16:
			bad = binary.LittleEndian.Uint16(t.Data[2*i:])&f16 == f16
		}
		if bad {
			return i
		}
	}
	return -1
}

func fromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0: // zero and subnormals: frac · 2⁻²⁴
		return math.Float32frombits(sign | math.Float32bits(float32(frac)*0x1p-24))
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// Encode appends values in the given format, rounded to nearest even, to dst.
func Encode(dst []byte, dt compute.DType, values ...float32) []byte {
	for _, v := range values {
		switch dt {
		case compute.F32:
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
		case compute.BF16:
			dst = binary.LittleEndian.AppendUint16(dst, toBF16(v))
		case compute.F16:
			dst = binary.LittleEndian.AppendUint16(dst, toF16(v))
		}
	}
	return dst
}

func toBF16(v float32) uint16 {
	b := math.Float32bits(v)
	if v != v {
		return uint16(b>>16) | 0x40 // stays a NaN whatever bits are cut
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func toF16(v float32) uint16 {
	b := math.Float32bits(v)
	sign := uint16(b >> 16 & 0x8000)
	abs := b & 0x7fffffff
	switch {
	case abs > 0x7f800000:
		return sign | 0x7e00
	case abs >= 0x477ff000: // rounds beyond 65504
		return sign | 0x7c00
	case abs < 0x38800000: // below 2⁻¹⁴: a multiple of 2⁻²⁴
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(abs))*0x1p24))
	}
	return sign | uint16((abs-0x38000000+0xfff+abs>>13&1)>>13)
}
