// Package vec has the row operations of a decoder on the CPU: norms, rotations, conversions between
// number formats, dot products. Rows have any length and alignment.
//
// Ops of one level always sum in the same order, so equal rows give equal bits. Kernels take the
// largest multiple of 16 values; plain Go, which is also the lowest level, takes the rest.
package vec

//go:generate go run ./gen

import (
	"math"

	"grebe/compute/cpu/internal/feature"
)

// unit is the number of values that kernels take at a time.
const unit = 16

// kernels are the operations of one instruction set on n values, n a positive multiple of unit.
type kernels struct {
	add        func(x, y *float32, n int)
	scale      func(x *float32, n int, a float32)
	norm       func(dst, x, gain *float32, n int, s float32)
	rotate     func(lo, hi, cos, sin *float32, n int)
	fromBF16   func(dst *float32, src *uint16, n int)
	fromF16    func(dst *float32, src *uint16, n int)
	toBF16     func(dst *uint16, src *float32, n int)
	sumSquares func(x *float32, n int) float32
	max        func(x *float32, n int) float32
	dot        func(x, row *float32, n int) float32
	dotBF16    func(x *float32, row *uint16, n int) float32
	dotF16     func(x *float32, row *uint16, n int) float32
	addScaled  func(x, y *float32, n int, a float32)
	multiply   func(x, y *float32, n int)
	affine     func(dst, x, gain, shift *float32, n int, m, s float32)
	silu       func(x *float32, n int)
	sum        func(x *float32, n int) float32
	deviation  func(x *float32, n int, m float32) float32
}

// Ops are the row operations of one level. Slices that belong together MUST be of equal length, or
// longer than the first.
type Ops struct{ k *kernels }

// For returns the operations of level l, which this machine MUST have.
func For(l feature.Level) Ops { return Ops{kernelsFor(l)} }

// whole returns how many of n values the kernels take.
func (o Ops) whole(n int) int {
	if o.k == nil {
		return 0
	}
	return n &^ (unit - 1)
}

// Add adds y to x.
func (o Ops) Add(x, y []float32) {
	y = y[:len(x)]
	n := o.whole(len(x))
	if n > 0 {
		o.k.add(&x[0], &y[0], n)
	}
	for i := n; i < len(x); i++ {
		x[i] += y[i]
	}
}

// Scale multiplies x by a.
func (o Ops) Scale(x []float32, a float32) {
	n := o.whole(len(x))
	if n > 0 {
		o.k.scale(&x[0], n, a)
	}
	for i := n; i < len(x); i++ {
		x[i] *= a
	}
}

// RMSNorm sets dst = x/√(mean(x²)+eps)·gain. dst may be x.
func (o Ops) RMSNorm(dst, x, gain []float32, eps float32) {
	x, gain = x[:len(dst)], gain[:len(dst)]
	if len(x) == 0 {
		return
	}
	s := float32(1 / math.Sqrt(float64(o.SumSquares(x))/float64(len(x))+float64(eps)))
	n := o.whole(len(x))
	if n > 0 {
		o.k.norm(&dst[0], &x[0], &gain[0], n, s)
	}
	for i := n; i < len(x); i++ {
		dst[i] = x[i] * s * gain[i]
	}
}

// Rotate turns the pairs (v[i], v[i+d/2]) of a head of d values by the angles whose cosines and
// sines are given.
func (o Ops) Rotate(v, cos, sin []float32) {
	half := len(v) / 2
	lo, hi, cos, sin := v[:half], v[half:2*half], cos[:half], sin[:half]
	n := o.whole(half)
	if n > 0 {
		o.k.rotate(&lo[0], &hi[0], &cos[0], &sin[0], n)
	}
	for i := n; i < half; i++ {
		a, b := lo[i], hi[i]
		lo[i], hi[i] = a*cos[i]-b*sin[i], b*cos[i]+a*sin[i]
	}
}

// SumSquares returns Σx².
func (o Ops) SumSquares(x []float32) float32 {
	var sum float32
	n := o.whole(len(x))
	if n > 0 {
		sum = o.k.sumSquares(&x[0], n)
	}
	return sum + dot(x[n:], x[n:])
}

// Max returns the largest value of x, −Inf if there is none.
func (o Ops) Max(x []float32) float32 {
	m := float32(math.Inf(-1))
	n := o.whole(len(x))
	if n > 0 {
		m = o.k.max(&x[0], n)
	}
	for _, v := range x[n:] {
		m = max(m, v)
	}
	return m
}

// Dot returns x·row.
func (o Ops) Dot(x, row []float32) float32 {
	row = row[:len(x)]
	var sum float32
	n := o.whole(len(x))
	if n > 0 {
		sum = o.k.dot(&x[0], &row[0], n)
	}
	return sum + dot(x[n:], row[n:])
}

// dot adds in four chains, which is faster and more exact than one.
func dot(x, y []float32) float32 {
	y = y[:len(x)]
	var s [4]float32
	for len(x) >= 4 {
		s[0] += x[0] * y[0]
		s[1] += x[1] * y[1]
		s[2] += x[2] * y[2]
		s[3] += x[3] * y[3]
		x, y = x[4:], y[4:]
	}
	for i := range x {
		s[i] += x[i] * y[i]
	}
	return (s[0] + s[2]) + (s[1] + s[3])
}
