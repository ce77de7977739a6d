package vec

import "math"

// AddScaled adds a·y to x.
func (o Ops) AddScaled(x, y []float32, a float32) {
	y = y[:len(x)]
	n := o.whole(len(x))
	if n > 0 {
		o.k.addScaled(&x[0], &y[0], n, a)
	}
	for i := n; i < len(x); i++ {
		x[i] += a * y[i]
	}
}

// Multiply multiplies x by y, value by value.
func (o Ops) Multiply(x, y []float32) {
	y = y[:len(x)]
	n := o.whole(len(x))
	if n > 0 {
		o.k.multiply(&x[0], &y[0], n)
	}
	for i := n; i < len(x); i++ {
		x[i] *= y[i]
	}
}

// LayerNorm sets dst = (x − mean(x))/√(variance(x)+eps)·gain + shift. dst may be x.
func (o Ops) LayerNorm(dst, x, gain, shift []float32, eps float32) {
	x, gain, shift = x[:len(dst)], gain[:len(dst)], shift[:len(dst)]
	if len(x) == 0 {
		return
	}
	m, s := o.Moments(x, eps)
	n := o.whole(len(x))
	if n > 0 {
		o.k.affine(&dst[0], &x[0], &gain[0], &shift[0], n, m, s)
	}
	for i := n; i < len(x); i++ {
		dst[i] = (x[i]-m)*s*gain[i] + shift[i]
	}
}

// Moments returns the mean of x, which has values, and 1/√(variance+eps).
func (o Ops) Moments(x []float32, eps float32) (mean, scale float32) {
	var sum, square float32
	n := o.whole(len(x))
	if n > 0 {
		sum = o.k.sum(&x[0], n)
	}
	for _, v := range x[n:] {
		sum += v
	}
	mean = sum / float32(len(x))
	if n > 0 {
		square = o.k.deviation(&x[0], n, mean)
	}
	for _, v := range x[n:] {
		square += (v - mean) * (v - mean)
	}
	return mean, float32(1 / math.Sqrt(float64(square)/float64(len(x))+float64(eps)))
}

// SiLU sets x = x·sigmoid(x).
func (o Ops) SiLU(x []float32) {
	n := o.whole(len(x))
	if n > 0 {
		o.k.silu(&x[0], n)
	}
	for i := n; i < len(x); i++ {
		x[i] = float32(float64(x[i]) / (1 + math.Exp(-float64(x[i]))))
	}
}
