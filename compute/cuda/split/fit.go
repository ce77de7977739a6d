package split

import (
	"errors"
	"fmt"
	"math"
)

// Measured is a shape and how long it took by each split that is possible.
type Measured struct {
	Work  Work
	Times []Timed
}

// Timed is a time by a split.
type Timed struct {
	Split Split
	US    float64 // microseconds of a layer
}

// By returns the time by a split.
func (m *Measured) By(s Split) (us float64, ok bool) {
	for _, t := range m.Times {
		if t.Split == s {
			return t.US, true
		}
	}
	return 0, false
}

// heldOut of the shapes, every so many, are left out to see how the others' model does on them.
const heldOut = 4

// Train fits a model. Shapes should come in an order in which every fourth are a fair sample.
func Train(shapes []Measured) (*Model, error) {
	var some, all []sample
	for i := range shapes {
		for _, t := range shapes[i].Times {
			l, ok := shapes[i].Work.Load(t.Split)
			if !ok {
				return nil, fmt.Errorf("split: shape %d was measured by a split that is not possible: %v", i, t.Split)
			}
			all = append(all, sample{l, t.US})
			if i%heldOut != 0 {
				some = append(some, sample{l, t.US})
			}
		}
	}
	trial, err := fit(some)
	if err != nil {
		return nil, err
	}
	m, err := fit(all)
	if err != nil {
		return nil, err
	}
	logs, n := 0.0, 0
	for i := 0; i < len(shapes); i += heldOut {
		fixed, ok1 := shapes[i].By(Fixed)
		chosen, ok2 := shapes[i].By(trial.Choose(&shapes[i].Work))
		if ok1 && ok2 {
			logs += math.Log(fixed / chosen)
			n++
		}
	}
	m.report.Gain = math.Exp(logs / float64(max(n, 1)))
	m.report.Useless = m.report.Gain < 1
	return m, nil
}

// sample is a load and its time.
type sample struct {
	load Load
	us   float64
}

// Model predicts times. It never changes.
type Model struct {
	weights [features]float64
	report  Report
}

// Report says how well a model does.
type Report struct {
	Off float64 `json:"off"` // root of the mean squared relative error of predictions on what it was fitted to
	// Gain is the time by Fixed to that by the model's choices, as a geometric mean over held-out shapes by a
	// model that was fitted to the others.
	Gain float64 `json:"gain"`
	// Useless: the gain was below 1, and Fixed is chosen always.
	Useless bool `json:"useless,omitempty"`
}

// Report returns how well the model does.
func (m *Model) Report() Report { return m.report }

func (m *Model) predict(l *Load) float64 {
	t := 0.0
	for i, f := range l.features() {
		t += m.weights[i] * f
	}
	return t
}

// minSamples are needed to fit a model.
const minSamples = 4 * features

// fit returns the model with the least squared relative error of all whose weights are not negative: none
// of what a load counts makes the GPU faster, and so held, a few noisy times cannot teach that it does.
func fit(samples []sample) (*Model, error) {
	if len(samples) < minSamples {
		return nil, errors.New("split: too few measurements to fit a model")
	}
	// Normal equations of features divided by the time: a·x = b with all targets 1.
	var a [features][features]float64
	var b [features]float64
	for i := range samples {
		s := &samples[i]
		if !(s.us > 0) || math.IsInf(s.us, 0) {
			return nil, errors.New("split: a measured time is no time")
		}
		f := s.load.features()
		for j := range f {
			f[j] /= s.us
		}
		for j := range f {
			b[j] += f[j]
			for k := range f {
				a[j][k] += f[j] * f[k]
			}
		}
	}
	m := &Model{weights: descend(&a, &b)}
	for i := range samples {
		e := m.predict(&samples[i].load)/samples[i].us - 1
		m.report.Off += e * e
	}
	m.report.Off = math.Sqrt(m.report.Off / float64(len(samples)))
	return m, nil
}

// descend solves the least squares for weights of at least 0, one weight after the other, with a small
// ridge that decides where features say the same.
func descend(a *[features][features]float64, b *[features]float64) (w [features]float64) {
	const (
		rounds = 20000
		ridge  = 1e-6
		still  = 1e-12
	)
	for range rounds {
		moved := 0.0
		for j := range w {
			d := a[j][j] * (1 + ridge)
			if d == 0 {
				continue
			}
			g := b[j]
			for k := range w {
				if k != j {
					g -= a[j][k] * w[k]
				}
			}
			next := max(0, g/d)
			moved = max(moved, math.Abs(next-w[j])*math.Sqrt(d))
			w[j] = next
		}
		if moved < still {
			break
		}
	}
	return w
}
