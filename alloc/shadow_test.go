package alloc

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Watching one key in eight, the shadow says within some percent what a larger cache would have saved: as one that
// watches all.
func TestShadowOfASample(t *testing.T) {
	said := func(every int) float64 {
		r := rand.New(rand.NewPCG(3, 3))
		s := NewShadow(every, 20000)
		s.Resize(2<<30, 120<<30)
		const rows = 1 << 20 // bytes of an entry
		for range 400_000 {
			k := uint64(1 + math.Pow(r.Float64(), 2.5)*20000)
			s.Use(k*0x9E3779B97F4A7C15, rows, 1)
		}
		c := s.Take()
		return c[0] + c[1]
	}
	all, some := said(1), said(8)
	if all < 1000 || math.Abs(some/all-1) > 0.15 {
		t.Errorf("two GiB more would have saved %.0f by all keys, %.0f by a sample", all, some)
	}
}

func TestShadowKeepsWithinItsBytes(t *testing.T) {
	s := NewShadow(1, 8)
	s.Resize(100, 1000)
	for k := uint64(1); k <= 50; k++ {
		s.Use(k<<20, int64(1+k%60), 1)
		if s.used > 100 || len(s.at) > 8 {
			t.Fatalf("%d bytes in %d entries", s.used, len(s.at))
		}
	}
	s.Resize(10, 1000)
	if s.used > 10 {
		t.Errorf("%d bytes after shrinking to 10", s.used)
	}
	s.Use(7<<20, 1000, 1) // larger than the cache
	if s.used > 10 {
		t.Errorf("%d bytes after an entry that is too large", s.used)
	}
}

// A shadow that becomes much smaller does so in steps, during which it is used.
func TestShadowShrinksInSteps(t *testing.T) {
	const entries = 5 * shadowAtOnce
	s := NewShadow(1, entries)
	s.Resize(entries, entries)
	for k := uint64(1); k <= entries; k++ {
		s.Use(k<<20, 1, 1)
	}
	for n := 1; ; n++ {
		before := len(s.at)
		done := s.Resize(10, entries)
		if evicted := before - len(s.at); evicted > shadowAtOnce {
			t.Fatalf("%d entries evicted at once", evicted)
		}
		s.Use(uint64(entries+n)<<20, 1, 1)
		if done {
			break
		}
		if n > 10 {
			t.Fatalf("%d bytes after %d steps", s.used, n)
		}
	}
	if s.used > 10 {
		t.Errorf("%d bytes after shrinking to 10", s.used)
	}
}
