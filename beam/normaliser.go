package beam

// Normaliser computes the logs of sums of exponentials as a search does, for those who choose beams in
// other ways and want to be as fast there. It belongs to one caller at a time.
type Normaliser struct {
	scratch, maxes, sums []float32
}

// LogSum returns the log of the sum of the exponentials of x, within 1e-6. x holds no NaN and no +Inf,
// and something besides -Inf.
func (n *Normaliser) LogSum(x []float32) float64 {
	whole := len(x) / blockLen
	n.scratch = padded(n.scratch, x[whole*blockLen:])
	blocks := whole + len(n.scratch)/blockLen
	n.maxes, n.sums = resized(n.maxes, blocks), resized(n.sums, blocks)
	scan(x[:whole*blockLen], n.maxes, n.sums)
	scan(n.scratch, n.maxes[whole:], n.sums[whole:])
	top := n.maxes[0]
	for _, m := range n.maxes {
		top = max(top, m)
	}
	return logSum(n.maxes, n.sums, top)
}

// resized returns a slice of n places, with groupLen more behind.
func resized(s []float32, n int) []float32 {
	if cap(s) < n+groupLen {
		s = make([]float32, n+groupLen)
	}
	return s[:n]
}
