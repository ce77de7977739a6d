package evict

import "math"

// loss is the loss function that trees minimise. It holds the state of every row.
type loss interface {
	// begin returns the prediction before the first tree.
	begin() float32
	// weightUnits returns the integer that stands for a weight of one.
	weightUnits() int
	// gradients writes the gradient and weight of each row into out. It returns the unit of gradients divided by the
	// unit of weights.
	gradients(rows []int32, out []bucket, seed uint64) float64
	// bound limits a leaf's step, before the learning rate is applied.
	bound(float64) float64
	// step adds each row's leaf value to its prediction.
	step(at []uint8, leaf []float32)
}

// squares is squared error: the gradient is the residual, and every row has weight one.
type squares struct {
	base     float32
	residual []float32
}

func newSquares(labels []float32) *squares {
	s := &squares{residual: make([]float32, len(labels))}
	sum := 0.0
	for _, y := range labels {
		sum += float64(y)
	}
	s.base = float32(sum / float64(max(len(labels), 1)))
	for i, y := range labels {
		s.residual[i] = y - s.base
	}
	return s
}

func (s *squares) begin() float32          { return s.base }
func (s *squares) weightUnits() int        { return 1 }
func (s *squares) bound(x float64) float64 { return x }

func (s *squares) gradients(rows []int32, out []bucket, _ uint64) float64 {
	magnitude := math.Float32bits(1e-30)
	for _, r := range s.residual {
		magnitude = max(magnitude, math.Float32bits(r)&math.MaxInt32) // integers that compare as the floats do
	}
	largest := math.Float32frombits(magnitude)
	unit := one / largest
	for _, i := range rows {
		// The conversion truncates. With one added first, the value is not negative, so that +0.5 rounds it.
		out[i] = bucket(int64(s.residual[i]*unit+(one+0.5))-one)<<weightBits + 1
	}
	return float64(largest) / one
}

func (s *squares) step(at []uint8, leaf []float32) {
	residual := s.residual[:len(at)]
	for i, n := range at {
		residual[i] -= leaf[n]
	}
}

// Outcome says how long a sample was watched, and whether its key returned at the end of that time.
type Outcome struct {
	Time     float32
	Returned bool
}

// returns is the Poisson loss of Outcomes, in the log of returns per time. Its gradient is returned − expected and
// its weight is expected, where expected is the model's expected number of returns in the row's time so far.
type returns struct {
	unit     float32 // log2 of the unit of time
	expected []float32
	returned []float32
}

// largestStep limits the change by one leaf, as a power of e.
const largestStep = 2

const (
	expectedUnits = 32                        // the integer that stands for one expected return
	mostExpected  = maxWeight / expectedUnits // of a row
	gradientUnits = one / (mostExpected + 1)
)

func newReturns(outcomes []Outcome) *returns {
	l := &returns{expected: make([]float32, len(outcomes)), returned: make([]float32, len(outcomes))}
	time, events := 0.0, 1.0 // one event to start with, so that no rate is zero
	for i, o := range outcomes {
		l.expected[i] = max(o.Time, 1)
		time += float64(l.expected[i])
		if o.Returned {
			l.returned[i] = 1
			events++
		}
	}
	rate := float32(events / max(time, 1))
	for i := range l.expected {
		l.expected[i] *= rate
	}
	l.unit = -float32(math.Log2(float64(rate)))
	return l
}

func (l *returns) begin() float32          { return 0 } // one return per unit
func (l *returns) weightUnits() int        { return expectedUnits }
func (l *returns) bound(x float64) float64 { return max(-largestStep, min(largestStep, x)) }

// gradients rounds weights at random, so that the sum of many small ones is preserved.
func (l *returns) gradients(rows []int32, out []bucket, seed uint64) float64 {
	for _, i := range rows {
		e := min(l.expected[i], mostExpected)
		seed = seed*6364136223846793005 + 1442695040888963407
		w := int64(e*expectedUnits + float32(seed>>40)*(1.0/(1<<24)))
		g := int64((l.returned[i]-e)*gradientUnits + (one + 0.5))
		out[i] = bucket(g-one)<<weightBits + bucket(min(w, maxWeight))
	}
	return expectedUnits / float64(gradientUnits)
}

func (l *returns) step(at []uint8, leaf []float32) {
	var times [1 << maxDepth]float32
	for n, v := range leaf {
		times[n] = float32(math.Exp(float64(v)))
	}
	expected := l.expected[:len(at)]
	for i, n := range at {
		expected[i] *= times[n]
	}
}
