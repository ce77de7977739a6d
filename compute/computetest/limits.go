package computetest

import (
	"fmt"
	"math"

	"grebe/compute"
)

// How far a device may be off.
//
// Rounding an operand of a product to bf16 moves each value by at most 2⁻⁸ of it, in the root mean
// square by 0.425·2⁻⁸ = 1.7e-3 (error uniform, mantissa log-uniform). The errors of the K terms are
// independent and add up like the terms themselves, as √K, so the product's RMS error is 1.7e-3 of
// its RMS, whatever K is. For f32 the worst that is accepted is a product made of split bf16 (three
// products of two halves each): 1.7e-3² for each operand's lost rest and for the product left out,
// √3·2.8e-6 = 4.8e-6; float32 sums of a few hundred terms stay below 1e-6.
//
// An operation's variance is the number of such roundings on its way, each squared. The error of a
// row is measured against the RMS of the row as ref has it: its RMS may be 2.5 standard deviations
// (rows are short and the constants averages), a single value 10 (the tail over 10⁵ values, heavier
// than Gaussian). A wrong element is off by about the row's RMS, far outside.
const (
	noiseBF16 = 1.7e-3
	noiseF32  = 4.8e-6
	noiseFP8  = 16 * noiseBF16 // e4m3 has four bits less
	// Both sides round the input of an INT8 product, to steps of about 1/36 of its RMS (127 are the largest of
	// a row). Values that differ by noiseF32 fall on two sides of a boundary so seldom that the RMS is √(noiseF32/36).
	noiseINT8 = 3.7e-4

	slackRMS = 2.5
	slackMax = 10

	// A row of few values may cancel to nearly nothing; it is measured against the RMS of all rows
	// where that is larger, and only the limit for single values holds.
	narrow = 32

	// Two values that round to bf16 on different sides of a boundary differ by one step, 2⁻⁷.
	stepBF16 = 1.0 / 128
	// To e4m3, by 2⁻³; those below 2⁻⁶ of the scale by 2⁻⁹ of it. Heads' values are normal and a chunk's
	// scale is at most the largest of a head's first one, which seldom has more than 4 RMS.
	stepFP8  = 1.0 / 8
	smallFP8 = 4.0 / 512
)

func variance(dt compute.DType) float64 {
	switch dt {
	case compute.BF16:
		return noiseBF16 * noiseBF16
	case compute.FP8:
		return noiseFP8 * noiseFP8
	case compute.INT8:
		return noiseINT8 * noiseINT8
	}
	return noiseF32 * noiseF32
}

// Variances of the operations' results, given the format of the products and of K and V.

// varNorm: norms, logits and copies are float32 on every device.
func varNorm() float64 { return variance(compute.F32) }

// varQKV: the normed x is rounded.
func varQKV(dt compute.DType) float64 { return variance(dt) + varNorm() }

// varKV: as varQKV, and both sides round what they store.
func varKV(dt, kv compute.DType) float64 { return varQKV(dt) + 2*variance(kv) }

// varAttend counts V and the probabilities, which act on the result directly, and the query and K,
// which act on scores of standard deviation sharp; and the rounding before the output product.
func varAttend(dt, kv compute.DType, sharp float64) float64 {
	operand := kv
	if kv == compute.FP8 {
		operand = compute.BF16 // it is a format of chunks only
	}
	values := varKV(dt, kv) + variance(operand)
	scores := varQKV(dt) + variance(operand) + varKV(dt, kv)
	return values + sharp*sharp*scores + variance(dt)
}

// varFFN: the normed x is rounded once for gate and once for up, then silu(gate)·up. Silu has a
// slope of up to 1.1.
func varFFN(dt compute.DType) float64 { return 4 * varQKV(dt) }

// varLayers: what one layer leaves in x goes through the following ones, each of which adds a
// little more of it than the residual carries.
func varLayers(layers int, dt, kv compute.DType, sharp float64) float64 {
	return 1.5 * float64(layers) * (varAttend(dt, kv, sharp) + varFFN(dt))
}

// A limit bounds the error of a row relative to the row's RMS.
type limit struct {
	rms, max float64
	step     float64 // further error of single values, relative to the value itself
}

func within(variance float64) limit {
	deviation := math.Sqrt(variance)
	return limit{rms: slackRMS * deviation, max: slackMax * deviation}
}

// rounded is the limit after one more product in dt.
func (l limit) rounded(dt compute.DType) limit {
	more := within(variance(dt))
	return limit{rms: math.Hypot(l.rms, more.rms), max: math.Hypot(l.max, more.max), step: l.step}
}

// exact allows nothing.
var exact = limit{}

// compare checks rows of width values each; name says what row i is.
func (l limit) compare(got, want []float32, width int, name func(i int) string) error {
	if len(got) != len(want) {
		return fmt.Errorf("got %d values, want %d", len(got), len(want))
	}
	floor := 0.0
	if width < narrow {
		floor = rms(want)
	}
	for i := 0; i*width < len(want); i++ {
		if err := l.compareRow(got[i*width:(i+1)*width], want[i*width:(i+1)*width], floor); err != nil {
			return fmt.Errorf("%s: %w", name(i), err)
		}
	}
	return nil
}

// compareRow checks one row against its RMS, or floor where that is larger.
func (l limit) compareRow(got, want []float32, floor float64) error {
	scale, sum, at, worst := max(rms(want), floor), 0.0, -1, 0.0
	for i := range want {
		diff := math.Abs(float64(got[i]) - float64(want[i]))
		sum += diff * diff
		allowed := l.max*scale + l.step*math.Abs(float64(want[i]))
		// Written so that a NaN is an excess.
		if excess := diff - allowed; !(excess <= 0) && (at < 0 || excess > worst) {
			at, worst = i, excess
		}
	}
	if at >= 0 {
		return fmt.Errorf("value %d: got %v, want %v: off by %.3g of the row's RMS %.3g, limit %.3g",
			at, got[at], want[at], math.Abs(float64(got[at])-float64(want[at]))/scale, scale, l.max)
	}
	if off := math.Sqrt(sum / float64(len(want))); len(want) >= narrow && off > l.rms*scale {
		return fmt.Errorf("RMS error is %.3g of the row's RMS %.3g, limit %.3g (got %v…, want %v…)",
			off/scale, scale, l.rms, got[:4], want[:4])
	}
	return nil
}

func rms(v []float32) float64 {
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	return math.Sqrt(sum / float64(len(v)))
}
