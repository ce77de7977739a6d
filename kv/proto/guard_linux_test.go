package proto

import (
	"math"
	"math/rand/v2"
	"syscall"
	"testing"
	"unsafe"
)

// fence is memory between pages that may not be touched.
type fence struct{ data []byte }

func newFence(t *testing.T, pages int) fence {
	page := syscall.Getpagesize()
	all, err := syscall.Mmap(-1, 0, (pages+2)*page, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(all) })
	for _, edge := range [][]byte{all[:page], all[(pages+1)*page:]} {
		if err := syscall.Mprotect(edge, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return fence{all[page : (pages+1)*page]}
}

// fenced returns a T so many bytes behind the first fence, or before the last one.
func fenced[T any](f fence, off int, last bool) *T {
	size := int(unsafe.Sizeof(*new(T)))
	if last {
		off = len(f.data) - size - off
	}
	return (*T)(unsafe.Pointer(&f.data[off : off+size][0]))
}

// Kernels read and write what they are given and nothing beside it, wherever it lies, and agree with the plain code on
// values of every kind, those that are no numbers too.
func TestKernelsStayWithinTheirMemory(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	odd := []float32{0, float32(math.Copysign(0, -1)), float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)),
		1e-40, 3e38, -3e38, 1e7, -1e7, 0.5, 127.5 / 300, -128.5 / 300}
	share := 0.0
	value := func() float32 {
		if r.Float64() < share {
			return odd[r.IntN(len(odd))]
		}
		return float32(r.NormFloat64() * 0.2)
	}
	fill := func(v []float32) {
		for i := range v {
			v[i] = value()
		}
	}
	var fences [6]fence
	for i := range fences {
		fences[i] = newFence(t, 2)
	}
	for round := range 400 {
		last := round%2 == 0
		share = []float64{0, 0.01, 0.3, 1}[round/2%4]
		off := func(unit int) int { return r.IntN(17) * unit }
		s, row, f := fenced[sums](fences[0], off(4), last), fenced[rows](fences[1], off(2), last),
			fenced[frame](fences[2], off(4), last)
		thresholds, out := fenced[[Planes]float32](fences[3], off(4), last), fenced[[Width]int8](fences[4], off(1), last)
		left := fenced[[Scales]float32](fences[5], off(4), last)
		var added sums
		for j := range s {
			fill(s[j][:])
			fill(added[j][:])
		}
		row.round(&added)
		fill(f.base[:])
		fill(f.places[:])
		fill(thresholds[:])
		f.steps, *left = 300, [Scales]float32{0.6, 0.98, 0.9995}

		place := value()
		var plain [Width]int8
		p, q := express(s, f, place, thresholds, out), expressGo(s, f, place, thresholds, &plain)
		if p != q {
			t.Fatalf("round %d: sketches %x and %x", round, p, q)
		}
		for i := range plain {
			if out[i] != plain[i] {
				t.Fatalf("round %d: %v in steps of 1/%v is %d, plain %d", round, f.at(s, i, place), f.steps, out[i], plain[i])
			}
		}
		after := *s
		advance(s, row, left)
		advanceGo(&after, row, left)
		for j := range after {
			for i, want := range after[j] {
				if got := s[j][i]; got != want && !(got != got && want != want) {
					t.Fatalf("round %d: sum %d of scale %d is %v, plain %v", round, i, j, got, want)
				}
			}
		}
		other := fenced[[Width]int8](fences[3], off(1), last)
		for i := range other {
			other[i] = int8(r.IntN(256) - 128)
			if share == 1 { // the farthest that two can be
				other[i], out[i] = -128, 127
			}
		}
		if d, e := distance(out, other), distanceGo(out, other); d != e {
			t.Fatalf("round %d: distances %d and %d", round, d, e)
		}
		prefetch(other)
	}
}
