// Package null is a device that computes nothing. It takes a given time, and answers with numbers that depend on
// tokens and positions alone: the same for the same rows, and meaningless. With it the cost of everything around the
// products can be measured, and many nodes can be tried on one machine.
package null

import (
	"errors"
	"fmt"
	"time"

	"grebe/compute"
)

// Options say how long a batch takes. The zero value takes no time.
type Options struct {
	Fixed time.Duration // per batch
	Row   time.Duration // per token that is computed
	Key   time.Duration // per key that these attend to, summed
	// Sleep waits; nil: time.Sleep.
	Sleep func(time.Duration)
}

type device struct {
	opt    Options
	memory compute.Memory
}

// New returns a device whose KV lies in the host's memory.
func New(opt Options) compute.Device {
	if opt.Sleep == nil {
		opt.Sleep = time.Sleep
	}
	return &device{opt: opt, memory: compute.NewHostMemory()}
}

func (d *device) Name() string { return "null (computes nothing)" }

func (d *device) Memory() compute.Memory { return d.memory }

func (d *device) Close() error { return nil }

// matrix has a size and no numbers.
type matrix struct{ out, in int }

func (m matrix) Out() int     { return m.out }
func (m matrix) In() int      { return m.in }
func (m matrix) Rows() int    { return m.out }
func (m matrix) Cols() int    { return m.in }
func (m matrix) Len() int     { return m.in }
func (m matrix) Bytes() int64 { return 0 }

func (d *device) Linear(_ compute.DType, parts ...compute.Tensor) (compute.Linear, error) {
	if len(parts) == 0 {
		return nil, errors.New("null: a matrix of no tensors")
	}
	m := matrix{in: parts[0].Cols}
	for i, t := range parts {
		if t.Cols != m.in {
			return nil, fmt.Errorf("null: part %d has %d columns, part 0 has %d", i, t.Cols, m.in)
		}
		m.out += t.Rows
	}
	return m, nil
}

func (d *device) GateUp(dt compute.DType, gate, up compute.Tensor) (compute.Linear, error) {
	return d.Linear(dt, gate, up)
}

func (d *device) Vector(t compute.Tensor) (compute.Vector, error) { return matrix{t.Rows, t.Cols}, nil }

func (d *device) Table(t compute.Tensor) (compute.Table, error) { return matrix{t.Rows, t.Cols}, nil }

func (d *device) Open(s compute.Shape, maxRows int) (compute.Runner, error) {
	if maxRows < 1 || s.Hidden < 1 {
		return nil, fmt.Errorf("null: open: room for %d rows of %d values", maxRows, s.Hidden)
	}
	return &runner{device: d, shape: s, err: errNoBatch}, nil
}

// Multiply answers for each row alike.
func (d *device) Multiply(w compute.Linear, in, out []float32) error {
	if w.In() == 0 || len(in)/w.In()*w.Out() != len(out) {
		return fmt.Errorf("null: %d values times %d × %d are not %d", len(in), w.Out(), w.In(), len(out))
	}
	for i := range out {
		out[i] = number(0, 0, int32(i%w.Out()))
	}
	return nil
}

// number is between -1 and 1, by what it is asked for.
func number(token, position, id int32) float32 {
	h := uint64(uint32(token))*0x9e3779b97f4a7c15 ^ uint64(uint32(position))*0xc2b2ae3d27d4eb4f ^ uint64(
		uint32(id))*0x165667b19e3779f9
	h ^= h >> 29
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 32
	return float32(h>>40)/(1<<23) - 1
}
