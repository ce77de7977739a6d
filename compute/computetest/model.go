package computetest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"grebe/compute"
)

// vocabulary is the number of rows of the models' tables.
const vocabulary = 50

// config is what a random model is made from.
type config struct {
	seed   uint64
	shape  compute.Shape
	dt     compute.DType // of the products
	src    compute.DType // of the checkpoint
	bare   bool          // no biases, no norm before QKV
	headed bool          // query and key norms
	eye    bool          // the output projection passes attention through as it is
	quiet  bool          // x is little but what attention adds
	sharp  float64       // standard deviation of the scores
	// perHead: attention is normed per head, where the shape is HSTU's.
	perHead bool
}

func (c config) String() string {
	s := &c.shape
	return fmt.Sprintf("seed %d, hidden %d, %d/%d heads × %d, inter %d, %d layers, weights %v→%v, kv %v, bare %v, "+
		"head norms %v",
		c.seed, s.Hidden, s.Heads, s.KVHeads, s.HeadDim, s.Inter, s.Layers, c.src, c.dt, s.KV, c.bare, c.headed)
}

// shape returns a shape; frequencies and scale are those of a model with a base of 10,000.
func shape(layers, hidden, heads, kvHeads, headDim, inter int, kv compute.DType) compute.Shape {
	s := compute.Shape{Layers: layers, Hidden: hidden, Heads: heads, KVHeads: kvHeads, HeadDim: headDim,
		Inter: inter, Eps: 1e-2, KV: kv, Rope: compute.Rope{Scale: 1.25}}
	for i := range headDim / 2 {
		f := math.Pow(10000, -2*float64(i)/float64(headDim))
		s.Rope.InvFreq = append(s.Rope.InvFreq, float32(f))
	}
	return s
}

// model is a checkpoint: tensors in host memory.
type model struct {
	config
	embed, head, norm compute.Tensor
	layers            []layer
	stu               stuTables
	stuLayers         []stuLayer // instead of layers
}

type layer struct {
	norm, bias, qNorm, kNorm, outBias *compute.Tensor
	q, k, v, out                      compute.Tensor
	ffnNorm, gateUpBias, downBias     *compute.Tensor
	gate, up, down                    compute.Tensor
}

// newModel draws weights so that every product has values of about 1.
func newModel(c config) *model {
	r := newRandom(c.seed)
	s := &c.shape
	m := &model{config: c}
	m.embed = r.tensor(c.src, vocabulary, s.Hidden, 0, 0.25)
	if c.quiet {
		m.shape.Eps = 1e-6
		m.embed = r.tensor(c.src, vocabulary, s.Hidden, 0, 1.0/64)
	}
	m.head = r.tensor(c.src, vocabulary, s.Hidden, 0, 1/math.Sqrt(float64(s.Hidden)))
	m.norm = r.tensor(c.src, 1, s.Hidden, 1, 0.3)
	if s.Pointwise != nil {
		r.stuModel(m)
		return m
	}
	for range s.Layers {
		m.layers = append(m.layers, r.layer(c))
	}
	return m
}

func (r random) layer(c config) layer {
	s := &c.shape
	qWidth, kvWidth := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	in := 1 / math.Sqrt(float64(s.Hidden))
	l := layer{
		q:       r.tensor(c.src, qWidth, s.Hidden, 0, in*c.sharp),
		k:       r.tensor(c.src, kvWidth, s.Hidden, 0, in),
		v:       r.tensor(c.src, kvWidth, s.Hidden, 0, in),
		out:     r.tensor(c.src, s.Hidden, qWidth, 0, 1/math.Sqrt(float64(qWidth))),
		ffnNorm: r.vector(c.src, s.Hidden, 1, 0.3),
		gate:    r.tensor(c.src, s.Inter, s.Hidden, 0, in),
		up:      r.tensor(c.src, s.Inter, s.Hidden, 0, in),
		down:    r.tensor(c.src, s.Hidden, s.Inter, 0, 1.5/math.Sqrt(float64(s.Inter))),
	}
	if c.eye {
		l.out = eye(s.Hidden, qWidth)
	}
	if c.headed {
		l.qNorm = r.vector(c.src, s.HeadDim, c.sharp, 0.3*c.sharp)
		l.kNorm = r.vector(c.src, s.HeadDim, 1, 0.3)
	}
	if !c.bare {
		l.norm = r.vector(c.src, s.Hidden, 1, 0.3)
		l.bias = r.vector(c.src, qWidth+2*kvWidth, 0, 0.3)
		if !c.quiet {
			l.outBias = r.vector(c.src, s.Hidden, 0, 0.3)
		}
		l.gateUpBias = r.vector(c.src, 2*s.Inter, 0, 0.3)
		l.downBias = r.vector(c.src, s.Hidden, 0, 0.3)
	}
	return l
}

// packed is a model on a device.
type packed struct {
	embed, head compute.Table
	project     compute.Linear // the head as a product
	norm        compute.Vector
	attention   []compute.AttentionWeights
	ffn         []compute.FFNWeights

	actions, positions compute.Table // of HSTU
	stu                []compute.STUWeights
}

// packer packs and keeps the first error.
type packer struct {
	d   compute.Device
	err error
}

func (p *packer) keep(err error) {
	if p.err == nil {
		p.err = err
	}
}

func (p *packer) linear(dt compute.DType, parts ...compute.Tensor) compute.Linear {
	l, err := p.d.Linear(dt, parts...)
	p.keep(err)
	return l
}

func (p *packer) gateUp(dt compute.DType, gate, up compute.Tensor) compute.Linear {
	l, err := p.d.GateUp(dt, gate, up)
	p.keep(err)
	return l
}

func (p *packer) vector(t *compute.Tensor) compute.Vector {
	if t == nil {
		return nil
	}
	v, err := p.d.Vector(*t)
	p.keep(err)
	return v
}

func (p *packer) table(t compute.Tensor) compute.Table {
	tab, err := p.d.Table(t)
	p.keep(err)
	return tab
}

func (m *model) pack(d compute.Device) (*packed, error) {
	p := &packer{d: d}
	out := &packed{embed: p.table(m.embed), head: p.table(m.head), project: p.linear(m.dt, m.head),
		norm: p.vector(&m.norm)}
	if m.shape.Pointwise != nil {
		out.actions, out.positions = p.table(m.stu.actions), p.table(m.stu.positions)
		for i := range m.stuLayers {
			out.stu = append(out.stu, p.stuLayer(m.dt, &m.stuLayers[i], m.perHead))
		}
	}
	for _, l := range m.layers {
		out.attention = append(out.attention, compute.AttentionWeights{
			Norm: p.vector(l.norm), QKV: p.linear(m.dt, l.q, l.k, l.v), QKVBias: p.vector(l.bias),
			QNorm: p.vector(l.qNorm), KNorm: p.vector(l.kNorm), Out: p.linear(m.dt, l.out), OutBias: p.vector(l.outBias),
		})
		out.ffn = append(out.ffn, compute.FFNWeights{
			Norm: p.vector(l.ffnNorm), GateUp: p.gateUp(m.dt, l.gate, l.up), GateUpBias: p.vector(l.gateUpBias),
			Down: p.linear(m.dt, l.down), DownBias: p.vector(l.downBias),
		})
	}
	if p.err != nil {
		return nil, fmt.Errorf("pack weights on %s: %w", d.Name(), p.err)
	}
	return out, nil
}

// random draws a case's numbers.
type random struct{ *rand.Rand }

func newRandom(seed uint64) random { return random{rand.New(rand.NewPCG(seed, 1))} }

// tensor draws normally distributed values.
func (r random) tensor(dt compute.DType, rows, cols int, mean, deviation float64) compute.Tensor {
	t := compute.Tensor{DType: dt, Rows: rows, Cols: cols, Data: make([]byte, 0, rows*cols*dt.Size())}
	for range rows * cols {
		t.Data = appendValue(t.Data, dt, mean+deviation*r.NormFloat64())
	}
	return t
}

func (r random) vector(dt compute.DType, n int, mean, deviation float64) *compute.Tensor {
	t := r.tensor(dt, 1, n, mean, deviation)
	return &t
}

func eye(rows, cols int) compute.Tensor {
	t := compute.Tensor{DType: compute.F32, Rows: rows, Cols: cols}
	for i := range rows {
		for j := range cols {
			v := 0.0
			if i == j {
				v = 1
			}
			t.Data = appendValue(t.Data, compute.F32, v)
		}
	}
	return t
}

// appendValue rounds v to dt. A last-bit difference from other roundings does not matter here.
func appendValue(b []byte, dt compute.DType, v float64) []byte {
	switch dt {
	case compute.F32:
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
	case compute.BF16:
		return binary.LittleEndian.AppendUint16(b, uint16((math.Float32bits(float32(v))+0x8000)>>16))
	}
	return binary.LittleEndian.AppendUint16(b, toF16(v))
}

// toF16 converts values below 65,504.
func toF16(v float64) uint16 {
	sign := uint16(0)
	if math.Signbit(v) {
		sign, v = 0x8000, -v
	}
	// In steps of the value's binade, 2⁻²⁴ for subnormals; rounding up to the next binade carries
	// into the exponent.
	exp := max(math.Ilogb(v), -14)
	steps := uint16(math.RoundToEven(math.Ldexp(v, 10-exp)))
	return sign | (uint16(exp+14)<<10 + steps)
}

// value decodes value i of K or V.
func value(dt compute.DType, b []byte, i int) float32 {
	if dt == compute.F32 {
		return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16)
}
