package evict

import "math"

// log2 returns math.Log2(x) for x ≥ 1 to within 2e-8, and exactly for powers of two. It takes a third of the time,
// which counts because every access calls it.
func log2(x float64) float64 {
	b := math.Float64bits(x)
	f := math.Float64frombits(b&(1<<52-1)|1023<<52) - 1
	s := f / (2 + f) // then log(1+f) is 2·atanh(s)
	z := s * s
	atanh := s * (1 + z*(1.0/3+z*(1.0/5+z*(1.0/7+z*(1.0/9+z*(1.0/11+z*(1.0/13)))))))
	return float64(int(b>>52)-1023) + 2*math.Log2E*atanh
}

// exp2 returns math.Exp2(x) for x < 1000, to a relative error of 1e-10.
func exp2(x float64) float64 {
	if x < -1000 {
		return 0
	}
	whole := math.Floor(x)
	f := (x - whole) * math.Ln2
	p := 1.0/40320 + f*(1.0/362880+f*(1.0/3628800+f*(1.0/39916800)))
	p = 1 + f*(1+f*(1.0/2+f*(1.0/6+f*(1.0/24+f*(1.0/120+f*(1.0/720+f*(1.0/5040+f*p)))))))
	return p * math.Float64frombits(uint64(int64(whole)+1023)<<52)
}
