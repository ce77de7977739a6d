package ref

import (
	"fmt"
	"math"

	"grebe/compute"
)

// INT8, as compute.Quantiser defines it.

// Quantises makes the device a compute.Quantiser.
func (d *device) Quantises() bool { return true }

// checkMatrix is check for a matrix that computes in dt.
func checkMatrix(t compute.Tensor, dt compute.DType) error {
	if t.DType != compute.INT8 {
		return check(t)
	}
	if dt != compute.INT8 || len(t.Scales) != t.Rows {
		return fmt.Errorf("an int8 matrix of %d rows with %d scales cannot compute in %v", t.Rows, len(t.Scales), dt)
	}
	return checkSize(t)
}

// appendIntegers adds row of t.
func (l *linear) appendIntegers(t compute.Tensor, row int) {
	if t.DType == compute.INT8 {
		for _, b := range t.Data[row*t.Cols : (row+1)*t.Cols] {
			l.w = append(l.w, float64(int8(b)))
		}
		l.scales = append(l.scales, t.Scales[row])
		return
	}
	scale, q := integers(values(t, row))
	l.w, l.scales = append(l.w, q...), append(l.scales, scale)
}

// integers returns the scale of values and what they are in it.
func integers(values []float64) (scale float32, q []float64) {
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
	inverse := 127 / largest
	for i, v := range values {
		q[i] = math.RoundToEven(float64(float32(float32(v) * inverse)))
	}
	return largest / 127, q
}

// integerProduct is product in INT8: a sum of integers, which is exact, times two scales.
func (r *runner) integerProduct(m *linear, bias vector, x []float64) []float64 {
	scale, q := integers(x)
	out := make([]float64, m.out)
	for i := range out {
		sum := float32(dot(m.w[i*m.in:(i+1)*m.in], q))
		out[i] = float64(float32(float32(sum*m.scales[i]) * scale))
	}
	if bias != nil {
		add(out, bias)
	}
	return out
}
