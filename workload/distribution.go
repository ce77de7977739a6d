package workload

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
)

// lengths is a Lengths whose median is solved for.
type lengths struct {
	spec Lengths
	mu   float64 // of the logarithm
}

func newLengths(s Lengths) lengths {
	lo, hi := math.Log(float64(s.Min))-4*s.Sigma-1, math.Log(float64(s.Max))+4*s.Sigma+1
	for range 50 {
		mid := (lo + hi) / 2
		if (lengths{s, mid}).mean() < s.Mean {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lengths{s, lo}
}

// at returns the length of the thing that lies z standard deviations from the median.
func (l lengths) at(z float64) int {
	if l.spec.Sigma == 0 {
		return int(math.Round(l.spec.Mean))
	}
	x := math.Exp(l.mu + l.spec.Sigma*z)
	return int(math.Round(min(max(x, float64(l.spec.Min)), float64(l.spec.Max))))
}

// mean returns the mean of at over a normal z: the sum of the chances to reach each length.
func (l lengths) mean() float64 {
	m := float64(l.spec.Min)
	for k := l.spec.Min + 1; k <= l.spec.Max; k++ {
		z := (math.Log(float64(k)-0.5) - l.mu) / l.spec.Sigma
		m += math.Erfc(z/math.Sqrt2) / 2
	}
	return m
}

// zipf draws ranks 0…n−1 with chances proportional to (rank+v)^−s, for any s > 0, without a table:
// rejection-inversion (Hörmann and Derflinger, 1996). The plain law has v = 1; a larger v flattens the
// head (Zipf–Mandelbrot).
type zipf struct {
	n, v, s        float64
	first, last    float64 // the integral of the density below the first and up to the last rank
	acceptDistance float64
}

func newZipf(n, v int, s float64) zipf {
	z := zipf{n: float64(n), v: float64(v), s: s}
	z.first = z.integral(z.v+0.5) - z.density(z.v)
	z.last = z.integral(z.v + z.n - 0.5)
	z.acceptDistance = z.v + 1 - z.inverse(z.integral(z.v+1.5)-z.density(z.v+1))
	return z
}

// Zipf draws ranks 0…n−1 with chances proportional to (rank+flat)^−s. A flat of 1 is the plain law; a larger one
// flattens its head.
type Zipf struct{ law zipf }

// NewZipf returns the law of n ranks. Flat is at least 1 and s at least 0.
func NewZipf(n, flat int, s float64) *Zipf { return &Zipf{newZipf(n, flat, s)} }

// Draw draws a rank.
func (z *Zipf) Draw(r *rand.Rand) int { return z.law.draw(r) }

// Sizes is a Lengths that is ready to use.
type Sizes struct{ of lengths }

// NewSizes solves for the median of a distribution.
func NewSizes(l Lengths) Sizes { return Sizes{newLengths(l)} }

// At returns the length of what lies at a quantile, above 0 and below 1.
func (s Sizes) At(quantile float64) int { return s.of.at(normalQuantile(quantile)) }

func (z *zipf) draw(r *rand.Rand) int {
	for {
		u := z.last + r.Float64()*(z.first-z.last)
		y := z.inverse(u)
		k := min(max(math.Floor(y-z.v+0.5), 0), z.n-1)
		if k+z.v-y <= z.acceptDistance || u >= z.integral(k+z.v+0.5)-z.density(k+z.v) {
			return int(k)
		}
	}
}

// density is relative to that of the first rank, so that steep laws keep their precision.
func (z *zipf) density(y float64) float64 { return math.Pow(y/z.v, -z.s) }

// integral is that of the density from v; continuous in s at 1.
func (z *zipf) integral(y float64) float64 {
	l := math.Log(y / z.v)
	t := (1 - z.s) * l
	if math.Abs(t) < 1e-8 {
		return z.v * l * (1 + t/2)
	}
	return z.v * l * math.Expm1(t) / t
}

func (z *zipf) inverse(h float64) float64 {
	h /= z.v
	t := max(h*(1-z.s), -1)
	if math.Abs(t) < 1e-8 {
		return z.v * math.Exp(h*(1-t/2))
	}
	return z.v * math.Exp(h*math.Log1p(t)/t)
}

// maxExponent is steeper than any popularity worth simulating.
const maxExponent = 8

// exponent returns the exponent that gives the skew over n ranks when each request draws c distinct
// ones with chances proportional to (rank+c)^−s. Under the plain law twenty items of a catalog of
// 8000 would be in every request; under this one the hottest is in three of four. Only where 90 % of
// the candidates hardly fit into the hottest ones (2000 items, 100 candidates) do some come always.
func exponent(n, c int, skew Skew) (float64, error) {
	hot := int(math.Round(float64(n) * skew.Of))
	g := newGroups(n, hot)
	if s := g.share(maxExponent, c); s < skew.Share {
		return 0, fmt.Errorf("%d distinct of %d cannot put %.0f%% of the accesses on the hottest %d (at most %.0f%%): "+
			"fewer candidates or more to choose from",
			c, n, 100*skew.Share, hot, 100*s)
	}
	lo, hi := 0.0, float64(maxExponent)
	for range 40 {
		mid := (lo + hi) / 2
		if g.share(mid, c) < skew.Share {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi, nil
}

// groups are ranks with nearly equal chances, taken together so that a share is quick to compute.
type groups struct {
	rank, count []float64
	hot         int // groups among the hottest ranks
}

func newGroups(n, hot int) groups {
	var g groups
	for a := 1; a <= n; {
		b := max(a+1, a+a/100)
		if a <= hot {
			b = min(b, hot+1)
		}
		b = min(b, n+1)
		g.rank = append(g.rank, float64(a+b-1)/2)
		g.count = append(g.count, float64(b-a))
		if b == hot+1 {
			g.hot = len(g.rank)
		}
		a = b
	}
	return g
}

// share returns the hottest ranks' share of accesses. Drawing c distinct ranks one after the other
// chooses as exponential clocks with the ranks' rates do that ring until c have rung; at the time when
// c are expected to have rung, a rank of rate p has with chance 1−exp(−time·p).
func (g *groups) share(s float64, c int) float64 {
	rates := make([]float64, len(g.rank))
	sum := 0.0
	for i, r := range g.rank {
		rates[i] = math.Pow((r-1)/float64(c)+1, -s)
		sum += g.count[i] * rates[i]
	}
	if c == 1 {
		return g.rung(rates[:g.hot], 0) / sum
	}
	lo, hi := math.Log(float64(c)/sum), math.Log(float64(c)/rates[len(rates)-1])+math.Log(1e3)
	for range 60 {
		mid := (lo + hi) / 2
		if g.rung(rates, math.Exp(mid)) < float64(c) {
			lo = mid
		} else {
			hi = mid
		}
	}
	t := math.Exp(hi)
	return g.rung(rates[:g.hot], t) / g.rung(rates, t)
}

// rung sums the chances of having rung at a time; at time 0 the rates.
func (g *groups) rung(rates []float64, time float64) float64 {
	sum := 0.0
	for i, p := range rates {
		if time > 0 {
			p = -math.Expm1(-time * p)
		}
		sum += g.count[i] * p
	}
	return sum
}

// ranking is a bijection between ids and ranks that scatters them, so that no id is hot because it is
// small: id = (a·rank + b) mod n.
type ranking struct{ n, a, inverse, b uint64 }

func newRanking(n int, seed, kind uint64) ranking {
	r := ranking{n: uint64(n)}
	for try := uint64(0); ; try++ {
		h := mix(seed, kind, try)
		r.a, r.b = h%r.n, mix(h, kind, try)%r.n
		if r.inverse = modInverse(r.a, r.n); r.inverse > 0 || n == 1 {
			return r
		}
	}
}

func (r ranking) id(rank int) int { return int(r.step(uint64(rank), r.a, r.b)) }

func (r ranking) rank(id int) int {
	return int(r.step(uint64(id)+r.n-r.b, r.inverse, 0))
}

// step returns (x·m + plus) mod n.
func (r ranking) step(x, m, plus uint64) uint64 {
	hi, lo := bits.Mul64(x%r.n, m)
	_, rem := bits.Div64(hi, lo, r.n)
	return (rem + plus) % r.n
}

// modInverse returns the inverse of a modulo n, or 0 where there is none.
func modInverse(a, n uint64) uint64 {
	t, next := int64(0), int64(1)
	r, rest := int64(n), int64(a)
	for rest != 0 {
		q := r / rest
		t, next = next, t-q*next
		r, rest = rest, r-q*rest
	}
	if r != 1 {
		return 0
	}
	return uint64((t + int64(n)) % int64(n))
}
