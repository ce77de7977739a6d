package allocator

import (
	"math"
	"math/rand/v2"

	"grebe/bench/allocator/smart"
)

const units = 16

// recurrent is a network of gated recurrent units (GRU) that names the best share from the states so far.
type recurrent struct {
	// update, reset, candidate: weights of inputs, memory, bias
	Gates [3][units][smart.Features + units + 1]float64 `json:"gates"`
	Out   [units + 1]float64                            `json:"out"`
}

// moment is what a step back through time needs of one epoch.
type moment struct {
	x             [smart.Features]float64
	before, after [units]float64
	z, r, c       [units]float64
	y             float64
}

func newRecurrent(r *rand.Rand) *recurrent {
	n := &recurrent{}
	for g := range n.Gates {
		for i := range n.Gates[g] {
			for j := range n.Gates[g][i] {
				n.Gates[g][i][j] = r.NormFloat64() / 5
			}
		}
	}
	n.Out[units] = start
	return n
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func (n *recurrent) gate(g, i int, x *[smart.Features]float64, h *[units]float64) float64 {
	w := &n.Gates[g][i]
	sum := w[smart.Features+units]
	for j, v := range x {
		sum += w[j] * v
	}
	for j, v := range h {
		sum += w[smart.Features+j] * v
	}
	return sum
}

// forward fills in a moment from its x and before.
func (n *recurrent) forward(m *moment) {
	var gated [units]float64
	for i := range units {
		m.z[i] = sigmoid(n.gate(0, i, &m.x, &m.before))
		m.r[i] = sigmoid(n.gate(1, i, &m.x, &m.before))
		gated[i] = m.r[i] * m.before[i]
	}
	m.y = n.Out[units]
	for i := range units {
		m.c[i] = math.Tanh(n.gate(2, i, &m.x, &gated))
		m.after[i] = (1-m.z[i])*m.before[i] + m.z[i]*m.c[i]
		m.y += n.Out[i] * m.after[i]
	}
}

// backward adds the gradients of half the squared error over a sequence to g.
func (n *recurrent) backward(seq []moment, want []float64, g *recurrent) {
	var back [units]float64 // gradient by after
	for t := len(seq) - 1; t >= 0; t-- {
		m := &seq[t]
		e := (m.y - want[t]) / float64(len(seq))
		g.Out[units] += e
		var pre [3][units]float64 // by the gates' sums
		var gated, down [units]float64
		for i := range units {
			g.Out[i] += e * m.after[i]
			back[i] += e * n.Out[i]
			pre[0][i] = back[i] * (m.c[i] - m.before[i]) * m.z[i] * (1 - m.z[i])
			pre[2][i] = back[i] * m.z[i] * (1 - m.c[i]*m.c[i])
			down[i] = back[i] * (1 - m.z[i])
		}
		for i := range units {
			for j := range units {
				gated[j] += pre[2][i] * n.Gates[2][i][smart.Features+j]
			}
		}
		for j := range units {
			pre[1][j] = gated[j] * m.before[j] * m.r[j] * (1 - m.r[j])
			down[j] += gated[j] * m.r[j]
		}
		for i := range units {
			for k := range pre {
				p, w := pre[k][i], &g.Gates[k][i]
				for j, v := range m.x {
					w[j] += p * v
				}
				for j, v := range m.before {
					if k == 2 {
						v *= m.r[j]
					} else {
						down[j] += p * n.Gates[k][i][smart.Features+j]
					}
					w[smart.Features+j] += p * v
				}
				w[smart.Features+units] += p
			}
		}
		back = down
	}
}

// numbers visits all weights.
func (n *recurrent) numbers(f func(i int, w *float64)) {
	at := 0
	for g := range n.Gates {
		for i := range n.Gates[g] {
			for j := range n.Gates[g][i] {
				f(at, &n.Gates[g][i][j])
				at++
			}
		}
	}
	for i := range n.Out {
		f(at, &n.Out[i])
		at++
	}
}

// fit trains the network on sequences of states and best shares, by Adam.
func (n *recurrent) fit(r *rand.Rand, seqs [][][smart.Features]float64, want [][]float64, rounds int) {
	const weights = 3*units*(smart.Features+units+1) + units + 1
	var m, v [weights]float64
	steps := 0
	for round := range rounds {
		rate := 3e-3 * (1 - 0.9*float64(round)/float64(rounds))
		for _, s := range r.Perm(len(seqs)) {
			var g recurrent
			n.backward(n.run(seqs[s]), want[s], &g)
			var grads [weights]float64
			g.numbers(func(i int, w *float64) { grads[i] = min(max(*w, -0.1), 0.1) })
			steps++
			c1, c2 := 1-math.Pow(0.9, float64(steps)), 1-math.Pow(0.999, float64(steps))
			n.numbers(func(i int, w *float64) {
				m[i] = 0.9*m[i] + 0.1*grads[i]
				v[i] = 0.999*v[i] + 0.001*grads[i]*grads[i]
				*w -= rate * m[i] / c1 / (math.Sqrt(v[i]/c2) + 1e-8)
			})
		}
	}
}

// run feeds a sequence.
func (n *recurrent) run(seq [][smart.Features]float64) []moment {
	ms := make([]moment, len(seq))
	var h [units]float64
	for t := range ms {
		ms[t].x, ms[t].before = seq[t], h
		n.forward(&ms[t])
		h = ms[t].after
	}
	return ms
}
