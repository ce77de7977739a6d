package schedule

import "math"

// moments are the sums that least squares needs, for any number of samples. Errors are relative: a sample says that
// features·c/ms should be 1, so short batches count as much as long ones.
type moments struct {
	a  [numFeatures]vector // Σ x·xᵀ
	b  vector              // Σ x
	yy float64             // Σ 1
}

// add adds a sample whose features were divided by its time.
func (m *moments) add(x vector) {
	for i := range x {
		for j := range x {
			m.a[i][j] += x[i] * x[j]
		}
		m.b[i] += x[i]
	}
	m.yy++
}

// scale multiplies the weight of all samples so far.
func (m *moments) scale(by float64) {
	for i := range m.a {
		for j := range m.a[i] {
			m.a[i][j] *= by
		}
		m.b[i] *= by
	}
	m.yy *= by
}

// solve finds the non-negative coefficients with the least error. Five features have 31 subsets. solve solves each
// without the constraint and returns the best that meets it. This is right because, at the optimum, the coefficients
// that are not 0 solve the least squares of their features alone.
func (m *moments) solve() (vector, bool) {
	var best vector
	lowest, found := math.Inf(1), false
	for mask := 1; mask < 1<<numFeatures; mask++ {
		c, ok := m.solveSubset(mask)
		if !ok {
			continue
		}
		if e := m.error(c); e < lowest-1e-12*m.yy {
			best, lowest, found = c, e, true
		}
	}
	return best, found
}

// error returns the sum of squared relative errors.
func (m *moments) error(c vector) float64 {
	e := m.yy
	for i := range c {
		e -= 2 * m.b[i] * c[i]
		for j := range c {
			e += c[i] * m.a[i][j] * c[j]
		}
	}
	return e
}

// solveSubset solves for the features in mask by Cholesky decomposition. It returns false if they are not independent
// or a coefficient is negative.
func (m *moments) solveSubset(mask int) (vector, bool) {
	var which [numFeatures]int
	n := 0
	for i := range numFeatures {
		if mask>>i&1 == 1 {
			which[n] = i
			n++
		}
	}
	var l [numFeatures]vector
	var y, c vector
	for i := range n {
		for j := range i + 1 {
			sum := m.a[which[i]][which[j]]
			for k := range j {
				sum -= l[i][k] * l[j][k]
			}
			if i != j {
				l[i][j] = sum / l[j][j]
				continue
			}
			if !(sum > 1e-11*m.a[which[i]][which[i]]) {
				return c, false
			}
			l[i][i] = math.Sqrt(sum)
		}
		sum := m.b[which[i]]
		for k := range i {
			sum -= l[i][k] * y[k]
		}
		y[i] = sum / l[i][i]
	}
	for i := n - 1; i >= 0; i-- {
		sum := y[i]
		for k := i + 1; k < n; k++ {
			sum -= l[k][i] * c[which[k]]
		}
		c[which[i]] = sum / l[i][i]
		if !(c[which[i]] >= 0) {
			return c, false
		}
	}
	return c, true
}
