package fp8

import (
	"math"
	"math/rand/v2"
	"testing"
)

// The values of the OCP's table of special numbers.
func TestSpecialNumbers(t *testing.T) {
	for code, want := range map[byte]float32{
		0: 0, 0x01: 0x1p-9, 0x07: 0.875 * 0x1p-6, 0x08: 0x1p-6, 0x38: 1, 0x39: 1.125, 0xb8: -1, 0x7e: 448, 0xfe: -448,
		0x70: 128,
	} {
		if got := Decode(code); got != want {
			t.Errorf("%#x is %v, want %v", code, got, want)
		}
	}
	if v := Decode(0x7f); v == v {
		t.Errorf("0x7f is %v, want NaN", v)
	}
}

func TestCodesStayThemselves(t *testing.T) {
	for b := range 256 {
		if got := Encode(Decode(byte(b))); got != byte(b) {
			t.Errorf("%#x decodes to %v, which encodes to %#x", b, Decode(byte(b)), got)
		}
	}
}

// nearest looks through all codes; of two at the same distance the even one.
func nearest(v float32) byte {
	best, distance := byte(0), math.Inf(1)
	for b := range 0x7f {
		d := math.Abs(math.Abs(float64(v)) - float64(Decode(byte(b))))
		if d < distance || d == distance && b%2 == 0 {
			best, distance = byte(b), d
		}
	}
	if math.Signbit(float64(v)) {
		best |= 0x80
	}
	return best
}

func TestEncodeIsNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	check := func(v float32) {
		if got, want := Encode(v), nearest(v); got != want {
			t.Fatalf("%v became %#x (%v), want %#x (%v)", v, got, Decode(got), want, Decode(want))
		}
	}
	for b := range 0x7e { // ties, and what is next to them
		tie := (Decode(byte(b)) + Decode(byte(b+1))) / 2
		for _, v := range []float32{tie, math.Nextafter32(tie, 0), math.Nextafter32(tie, 1000)} {
			check(v)
			check(-v)
		}
	}
	for range 20000 {
		check(float32(math.Ldexp(2*r.Float64()-1, r.IntN(24)-12)))
	}
	for _, v := range []float32{1e9, -1e9, float32(math.Inf(1)), float32(math.Inf(-1)), 448.1, 1e-30} {
		check(v)
	}
	if got := Encode(float32(math.NaN())); got&0x7f != 0x7f {
		t.Errorf("NaN became %#x", got)
	}
}

func TestScale(t *testing.T) {
	for most, want := range map[float32]float32{1: 1, 1.99: 1, 2: 2, 0.3: 0.25, 0: 1, 1e-45: 1, float32(math.Inf(1)): 1,
		3e38: 1} {
		if got := Scale(most); got != want {
			t.Errorf("the scale for %v is %v, want %v", most, got, want)
		}
	}
	if got := Most([]float32{1, -3, float32(math.NaN()), 2}); got != 3 {
		t.Errorf("most is %v, want 3", got)
	}
}
