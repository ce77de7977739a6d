// Package ref is the device that defines what the operations of compute mean: float64, plain loops, one goroutine,
// dense attention with the mask written out. It is slow on purpose. computetest compares every other device with it,
// and models are tested on it.
//
// It rounds only the values that the contract stores in a narrow format: weights of a BF16 matrix, weights and input
// of one of 8 bits, K and V in chunks (read back from there before use), and the float32 angle of the rotation.
// Activations are float64. Rounding is to nearest, ties to even.
//
// The race detector leaves out the loops that multiply and add (go:norace): most of the time of tests under it went
// there. They use packed weights, which never change, and the runner's own numbers. Access to chunks, tables, batches
// and results is checked.
//
// Calling an operation out of order or with something that does not fit is an error, kept until the
// next Begin and returned by Logits and Hidden; it never panics.
package ref

import (
	"errors"
	"fmt"
	"slices"

	"grebe/compute"
)

// device has memory and no other state. A coarse device rounds where a real device may.
type device struct {
	coarse bool
	memory compute.Memory
}

// New returns the reference device.
func New() compute.Device { return &device{memory: compute.NewHostMemory()} }

// NewCoarse returns a device that rounds the operands of products to bf16, or for f32 to two bf16, and what is stored
// beside products of FP8 to bf16. Tests use it to see what limits must leave room for.
func NewCoarse() compute.Device { return &device{coarse: true, memory: compute.NewHostMemory()} }

func (d *device) Name() string { return "ref (float64)" }

func (d *device) Memory() compute.Memory { return d.memory }

func (d *device) Close() error { return nil }

// linear is a matrix [out][in]. Gated ones hold the gate's rows, then up's.
type linear struct {
	dt      compute.DType
	out, in int
	gated   bool
	w       []float64
	scales  []float32 // of the rows of INT8 and FP8, whose numbers w has without them
}

func (l *linear) Out() int     { return l.out }
func (l *linear) In() int      { return l.in }
func (l *linear) Bytes() int64 { return 8 * int64(len(l.w)) }

func (d *device) Linear(dt compute.DType, parts ...compute.Tensor) (compute.Linear, error) {
	l, err := d.pack(dt, parts)
	if err != nil {
		return nil, fmt.Errorf("ref: pack a matrix: %w", err)
	}
	return l, nil
}

func (d *device) GateUp(dt compute.DType, gate, up compute.Tensor) (compute.Linear, error) {
	if gate.Rows != up.Rows {
		return nil, fmt.Errorf("ref: pack gate and up: %d and %d rows", gate.Rows, up.Rows)
	}
	l, err := d.pack(dt, []compute.Tensor{gate, up})
	if err != nil {
		return nil, fmt.Errorf("ref: pack gate and up: %w", err)
	}
	l.gated = true
	return l, nil
}

func (d *device) pack(dt compute.DType, parts []compute.Tensor) (*linear, error) {
	if dt != compute.F32 && dt != compute.BF16 && !eight(dt) {
		return nil, fmt.Errorf("cannot compute in %v", dt)
	}
	if len(parts) == 0 {
		return nil, errors.New("no tensors")
	}
	l := &linear{dt: dt, in: parts[0].Cols}
	for i, t := range parts {
		if err := checkMatrix(t, dt); err != nil {
			return nil, fmt.Errorf("part %d: %w", i, err)
		}
		if t.Cols != l.in {
			return nil, fmt.Errorf("part %d has %d columns, part 0 has %d", i, t.Cols, l.in)
		}
		l.w = slices.Grow(l.w, t.Rows*t.Cols)
		for row := range t.Rows {
			if eight(dt) {
				l.appendEight(t, row)
			} else {
				l.w = append(l.w, values(t, row)...)
			}
		}
		l.out += t.Rows
	}
	for i, v := range l.w {
		if dt == compute.BF16 {
			v = toBF16(v)
		}
		l.w[i] = d.operand(dt, v)
	}
	return l, nil
}

type vector []float64

func (v vector) Len() int { return len(v) }

func (d *device) Vector(t compute.Tensor) (compute.Vector, error) {
	if err := check(t); err != nil {
		return nil, fmt.Errorf("ref: convert a vector: %w", err)
	}
	if t.Rows != 1 {
		return nil, fmt.Errorf("ref: convert a vector: it has %d rows", t.Rows)
	}
	return vector(values(t, 0)), nil
}

// table reads single rows from the checkpoint's memory.
type table struct{ t compute.Tensor }

func (t *table) Rows() int    { return t.t.Rows }
func (t *table) Cols() int    { return t.t.Cols }
func (t *table) Bytes() int64 { return 0 }

func (d *device) Table(t compute.Tensor) (compute.Table, error) {
	if err := check(t); err != nil {
		return nil, fmt.Errorf("ref: take a table: %w", err)
	}
	return &table{t}, nil
}

func (d *device) Open(s compute.Shape, maxRows int) (compute.Runner, error) {
	if err := checkShape(&s); err != nil {
		return nil, fmt.Errorf("ref: open: %w", err)
	}
	if maxRows < 1 {
		return nil, fmt.Errorf("ref: open: room for %d rows", maxRows)
	}
	return &runner{dev: d, s: s, max: maxRows, err: errNoBatch}, nil
}

func checkShape(s *compute.Shape) error {
	if s.Pointwise != nil {
		return s.CheckPointwise()
	}
	for _, n := range []int{s.Layers, s.Hidden, s.Heads, s.KVHeads, s.HeadDim, s.Inter} {
		if n < 1 {
			return fmt.Errorf("shape %+v has a size below 1", *s)
		}
	}
	if s.Heads%s.KVHeads != 0 {
		return fmt.Errorf("%d heads are no multiple of %d KV heads", s.Heads, s.KVHeads)
	}
	if s.HeadDim%2 != 0 {
		return fmt.Errorf("head dimension %d is odd", s.HeadDim)
	}
	if len(s.Rope.InvFreq) != s.HeadDim/2 {
		return fmt.Errorf("%d rotary frequencies for head dimension %d", len(s.Rope.InvFreq), s.HeadDim)
	}
	if s.KV != compute.F32 && s.KV != compute.BF16 && s.KV != compute.FP8 {
		return fmt.Errorf("cannot store K and V as %v", s.KV)
	}
	return nil
}

// operand is v as it enters a product that computes in dt.
//
//go:norace
func (d *device) operand(dt compute.DType, v float64) float64 {
	if !d.coarse || eight(dt) {
		return v
	}
	high := toBF16(v)
	if dt == compute.BF16 {
		return high
	}
	return high + toBF16(v-high) // float32 products made of split bf16
}
