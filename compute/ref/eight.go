package ref

import (
	"fmt"
	"math"

	"grebe/compute"
)

// INT8 and FP8, as compute.Quantiser defines them.

// eight reports whether products in dt are of 8 bits.
func eight(dt compute.DType) bool { return dt == compute.INT8 || dt == compute.FP8 }

// Quantises makes the device a compute.Quantiser.
func (d *device) Quantises(dt compute.DType) bool { return eight(dt) }

// checkMatrix is check for a matrix that computes in dt.
func checkMatrix(t compute.Tensor, dt compute.DType) error {
	if !eight(t.DType) {
		return check(t)
	}
	if dt != t.DType || len(t.Scales) != t.Rows {
		return fmt.Errorf("a matrix of %v, %d rows and %d scales cannot compute in %v", t.DType, t.Rows, len(t.Scales), dt)
	}
	return checkSize(t)
}

// appendEight adds row of t.
func (l *linear) appendEight(t compute.Tensor, row int) {
	if !eight(t.DType) {
		scale, q := quantised(l.dt, values(t, row))
		l.w, l.scales = append(l.w, q...), append(l.scales, scale)
		return
	}
	for _, b := range t.Data[row*t.Cols : (row+1)*t.Cols] {
		v := float64(int8(b))
		if t.DType == compute.FP8 {
			v = fromFP8(b)
		}
		l.w = append(l.w, v)
	}
	l.scales = append(l.scales, t.Scales[row])
}

// quantised returns the scale of values and what they are in it.
func quantised(dt compute.DType, values []float64) (scale float32, q []float64) {
	most, round := float32(127), math.RoundToEven
	if dt == compute.FP8 {
		most, round = 448, func(v float64) float64 { return fromFP8(toFP8(v)) }
	}
	largest, q := float32(0), make([]float64, len(values))
	for _, v := range values {
		largest = max(largest, float32(math.Abs(v))) // NaN, if any is
	}
	switch {
	case !(largest <= math.MaxFloat32):
		return float32(math.NaN()), q
	case largest < 0x1p-100:
		return 0, q
	}
	inverse := most / largest
	for i, v := range values {
		q[i] = round(float64(float32(float32(v) * inverse)))
	}
	return largest / most, q
}

// eightProduct is product in 8 bits: a sum, which is exact of integers, times two scales.
func (r *runner) eightProduct(m *linear, bias vector, x []float64) []float64 {
	scale, q := quantised(m.dt, x)
	out := make([]float64, m.out)
	for i := range out {
		sum := float32(r.dev.stored(m.dt, dot(m.w[i*m.in:(i+1)*m.in], q)))
		out[i] = float64(float32(float32(sum*m.scales[i]) * scale))
	}
	if bias != nil {
		add(out, bias)
	}
	return out
}

// stored is v as it is stored before or behind a product that computes in dt: GPUs keep attention's results and those
// of products of FP8 in bf16.
//
//go:norace
func (d *device) stored(dt compute.DType, v float64) float64 {
	if d.coarse && dt == compute.FP8 {
		return toBF16(v)
	}
	return v
}
