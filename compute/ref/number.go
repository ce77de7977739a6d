package ref

import (
	"encoding/binary"
	"fmt"
	"math"

	"grebe/compute"
)

// check returns an error unless t's data has the size that its other fields say.
func check(t compute.Tensor) error {
	if t.DType > compute.F16 {
		return fmt.Errorf("unknown format %v", t.DType)
	}
	n := len(t.Data) / t.DType.Size()
	// The division comes first so that hostile sizes cannot overflow the product.
	if t.Rows < 1 || t.Cols < 1 || n/t.Rows != t.Cols || len(t.Data) != t.Rows*t.Cols*t.DType.Size() {
		return fmt.Errorf("%d bytes are no %d×%d matrix of %v", len(t.Data), t.Rows, t.Cols, t.DType)
	}
	return nil
}

// values returns a row of t, exactly.
func values(t compute.Tensor, row int) []float64 {
	out := make([]float64, t.Cols)
	for i := range out {
		out[i] = load(t.DType, t.Data, row*t.Cols+i)
	}
	return out
}

// load returns value i of data.
func load(dt compute.DType, data []byte, i int) float64 {
	switch dt {
	case compute.F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
	case compute.BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(data[2*i:])) << 16))
	default:
		return fromF16(binary.LittleEndian.Uint16(data[2*i:]))
	}
}

// store rounds v to dt, F32 or BF16, and writes it as value i of data.
func store(dt compute.DType, data []byte, i int, v float64) {
	if dt == compute.F32 {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32(v)))
		return
	}
	binary.LittleEndian.PutUint16(data[2*i:], uint16(math.Float32bits(float32(toBF16(v)))>>16))
}

// toBF16 rounds v to float32 and then to bf16, as a device does that computes in float32.
func toBF16(v float64) float64 {
	if math.IsNaN(v) {
		return v
	}
	bits := math.Float32bits(float32(v))
	bits += 0x7fff + bits>>16&1
	return float64(math.Float32frombits(bits &^ 0xffff))
}

func fromF16(h uint16) float64 {
	sign, exp, frac := uint64(h>>15), uint64(h>>10&31), uint64(h&1023)
	switch exp {
	case 0:
		return math.Copysign(float64(frac)*0x1p-24, 0.5-float64(sign))
	case 31:
		exp = 2047 - 1023 + 15 // infinity or NaN
	}
	return math.Float64frombits(sign<<63 | (exp+1023-15)<<52 | frac<<42)
}
