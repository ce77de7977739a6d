package ref

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"

	"grebe/compute"
)

// check returns an error unless t's data has the size that its other fields say.
func check(t compute.Tensor) error {
	if t.DType > compute.F16 {
		return fmt.Errorf("unknown format %v", t.DType)
	}
	return checkSize(t)
}

func checkSize(t compute.Tensor) error {
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

// fromFP8 is the definition of e4m3: a sign, 4 bits of exponent with bias 7, 3 of mantissa; exponent 0
// has no leading one, and all ones are no number.
func fromFP8(b byte) float64 {
	exp, frac := int(b>>3&15), float64(b&7)/8
	v := math.Ldexp(1+frac, exp-7)
	switch {
	case b&127 == 127:
		return math.NaN()
	case exp == 0:
		v = math.Ldexp(frac, -6)
	}
	return math.Copysign(v, 0.5-float64(b>>7))
}

// numbersFP8 are the numbers that are not negative, ascending.
var numbersFP8 = func() (out [127]float64) {
	for b := range out {
		out[b] = fromFP8(byte(b))
	}
	return out
}()

// toFP8 returns the nearest e4m3 of v as a float32, the even one of two; there is nothing beyond 448.
func toFP8(v float64) byte {
	v = float64(float32(v))
	if math.IsNaN(v) {
		return 127
	}
	above := min(sort.SearchFloat64s(numbersFP8[:], math.Abs(v)), len(numbersFP8)-1)
	best := byte(above)
	if above > 0 {
		up, down := numbersFP8[above]-math.Abs(v), math.Abs(v)-numbersFP8[above-1]
		if down < up || down == up && above%2 == 1 {
			best--
		}
	}
	if math.Signbit(v) {
		best |= 128
	}
	return best
}

// scaleFP8 is the scale of a chunk whose first token has the vector v.
func scaleFP8(v []float64) float64 {
	most := 0.0
	for _, x := range v {
		if math.Abs(x) > most {
			most = math.Abs(x)
		}
	}
	if most = float64(float32(most)); most < 0x1p-126 || most >= 0x1p126 {
		return 1
	}
	return math.Ldexp(1, math.Ilogb(most))
}
