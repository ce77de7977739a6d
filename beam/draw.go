package beam

import "math"

// draw is the perturbed log-probability of a path, for sampling without replacement (Kool, van Hoof and Welling,
// "Stochastic Beams and Where to Find Them", ICML 2019). The k paths with the highest sums of log-probability and
// independent Gumbel noise are k draws without replacement, in their order. The noise of paths is drawn from the top
// down: that of a prefix is the maximum over the paths below it, and noise of its continuations is drawn under the
// condition that this is their maximum. So a prefix that is cut has no path above its own value.
//
// Noise is a hash of seed and codes. It depends neither on the width of a search nor on what is eligible.
type draw struct {
	phi  float64 // log-probability at the temperature
	g    float64 // perturbed
	hash uint64  // of the seed and the codes so far
}

// root returns the draw of the empty prefix, which has probability one.
func root(seed uint64) draw {
	h := mix(seed ^ 0x5851f42d4c957f2d)
	return draw{g: gumbel(h), hash: h}
}

// drawnRow has what all continuations of a beam need to be drawn again.
type drawnRow struct {
	top, norm float64 // of the logits, over the temperature
	max       float64 // the largest perturbed log-probability before it was conditioned
}

// drawRow fills out with the perturbed log-probabilities of a beam's continuations. Those of probability zero get -Inf.
func drawRow(out []float64, parent draw, t float64, row *selectorRow) drawnRow {
	d := drawnRow{top: negInf, max: negInf}
	for i := range out {
		d.top = max(d.top, float64(row.logit(i)))
	}
	sum := 0.0
	for i := range out {
		sum += math.Exp((float64(row.logit(i)) - d.top) / t)
	}
	d.norm = math.Log(sum)
	for i := range out {
		out[i] = parent.phi + d.probability(row.logit(i), t) + gumbel(row.hash(parent, i))
		d.max = max(d.max, out[i])
	}
	for i, g := range out {
		if g > negInf {
			out[i] = conditioned(parent.g, g, d.max)
		}
	}
	return d
}

// child returns the draw of one continuation.
func (d drawnRow) child(parent draw, t float64, row *selectorRow, i int) draw {
	phi := parent.phi + d.probability(row.logit(i), t)
	h := row.hash(parent, i)
	return draw{phi: phi, g: conditioned(parent.g, phi+gumbel(h), d.max), hash: h}
}

// probability returns the log of a continuation's probability at a temperature.
func (d drawnRow) probability(logit float32, t float64) float64 {
	return (float64(logit)-d.top)/t - d.norm
}

func (r *selectorRow) hash(parent draw, i int) uint64 {
	code := int32(i)
	if r.codes.Len() > 0 {
		code = r.codes.At(i)
	}
	return mix(parent.hash + (uint64(code)+1)*0x9e3779b97f4a7c15)
}

// conditioned returns the value of a Gumbel variable g under the condition that the largest of its siblings, which was
// drawn as top, is want.
func conditioned(want, g, top float64) float64 {
	v := want - g + log1mexp(g-top)
	return want - max(0, v) - math.Log1p(math.Exp(-math.Abs(v)))
}

// log1mexp returns log(1 - exp(x)) for x ≤ 0.
func log1mexp(x float64) float64 {
	if x > -math.Ln2 {
		return math.Log(-math.Expm1(x))
	}
	return math.Log1p(-math.Exp(x))
}

// gumbel turns a hash into a variable of the standard Gumbel distribution.
func gumbel(hash uint64) float64 {
	u := (float64(mix(hash)>>11) + 0.5) / (1 << 53)
	return -math.Log(-math.Log(u))
}

// Noise returns noise of the standard Gumbel distribution, for those who sample from lists. Equal seeds and names get
// equal noise.
func Noise(seed uint64, name string) float64 {
	h := root(seed).hash
	for i := range len(name) {
		h = mix(h + (uint64(name[i])+1)*0x9e3779b97f4a7c15)
	}
	return gumbel(h)
}

// mix is the finaliser of SplitMix64 (Steele, Lea and Flood 2014), which spreads each bit over all.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
