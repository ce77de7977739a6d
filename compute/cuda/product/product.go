// Package product computes x·Wᵀ in bf16 or FP8 on Hopper GPUs with the end of the product fused: gate and up of
// a feed-forward layer in one, a bias, or the residual (kernels/gateup.cu). Other GPUs use the matrix
// library and kernels of their own for the ends.
//
// How a product is cut into tiles depends on the number of rows: tiles that leave no multiprocessor
// without work matter more than large ones. Tiles lists the promising ones, Choose times them.
//
// A Set and its calls belong to the goroutine that is inside the context.
package product

import (
	"errors"
	"fmt"
	"slices"

	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/kernels"
)

// ErrUnsupported says that the GPU lacks what the kernels need.
var ErrUnsupported = errors.New("product: only Hopper GPUs have fused products")

// Form is what happens at the end of a product.
type Form int

// Forms.
const (
	GateUp Form = iota // out = silu(gate)·up in bf16, N/2 columns; W is packed by PackGateUp
	Plain              // out = x·Wᵀ + bias in bf16
	Add                // out += x·Wᵀ + bias in float32
)

func (f Form) String() string { return [...]string{"gateup", "plain", "add"}[f] }

// Op is a product on addresses of one GPU. W is [N][K] and x [Most][K], row by row without gaps. N is a multiple of 8,
// in form GateUp of 16, and K of 64, in FP8 of 128.
type Op struct {
	Form      Form
	FP8       bool // x and W are e4m3, with scales, and not bf16
	X, W, Out driver.Ptr
	Bias      driver.Ptr // N values of float32, in the order of W's rows; 0: none
	Rows      driver.Ptr // int32: how many rows of x there are when the kernel runs
	Most      int        // rows of x that there is memory for; further ones are not written
	N, K      int
	Stride    int // of out, in values, a multiple of 8
	// RowScale and ColScale have the scales of x's Most rows and of W's, float32, in FP8.
	RowScale, ColScale driver.Ptr
}

// depth returns the columns of a line of x or W in shared memory.
func (o *Op) depth() int {
	if o.FP8 {
		return line
	}
	return line / 2
}

func (o *Op) validate() error {
	switch {
	case o.N <= 0 || o.N%8 != 0 || o.K <= 0 || o.K%o.depth() != 0 || o.Most <= 0:
		return fmt.Errorf("product: %d rows, N %d, K %d: want some rows, N a multiple of 8, K one of %d",
			o.Most, o.N, o.K, o.depth())
	case o.Form == GateUp && o.N%16 != 0:
		return fmt.Errorf("product: gate and up of %d columns, want a multiple of 8", o.N/2)
	case o.Stride%8 != 0 || o.Stride < o.columns():
		return fmt.Errorf("product: stride %d for %d columns", o.Stride, o.columns())
	case o.X%16 != 0 || o.W%16 != 0 || o.Out%16 != 0 || o.Bias%8 != 0:
		return fmt.Errorf("product: addresses %#x, %#x, %#x, %#x are not aligned", o.X, o.W, o.Out, o.Bias)
	case o.FP8 && (o.RowScale == 0 || o.ColScale == 0) || o.RowScale%4 != 0 || o.ColScale%8 != 0:
		return fmt.Errorf("product: scales at %#x and %#x: want both, and aligned", o.RowScale, o.ColScale)
	}
	return nil
}

// columns returns the number of columns of the result.
func (o *Op) columns() int {
	if o.Form == GateUp {
		return o.N / 2
	}
	return o.N
}

// Set holds the compiled kernels of one GPU.
type Set struct {
	c       *driver.Context
	kernels map[key]kernel
}

type key struct {
	form Form
	tile Tile
	bias bool
	fp8  bool
}

func (o *Op) key(t Tile) key { return key{o.Form, t, o.Bias != 0, o.FP8} }

type kernel struct {
	module   *driver.Module
	function *driver.Function
}

// New returns an empty set, or ErrUnsupported. The caller MUST Close it.
func New(c *driver.Context) (*Set, error) {
	if c.Info().Arch != 90 {
		return nil, ErrUnsupported
	}
	return &Set{c: c, kernels: map[key]kernel{}}, nil
}

// Close unloads the kernels, none of which may be running.
func (s *Set) Close() error {
	var errs []error
	for _, k := range s.kernels {
		errs = append(errs, k.module.Close())
	}
	clear(s.kernels)
	return errors.Join(errs...)
}

// load returns the kernel for a tile.
func (s *Set) load(want key) (*driver.Function, error) {
	if k, ok := s.kernels[want]; ok {
		return k.function, nil
	}
	m, err := kernels.Load(s.c, "gateup.cu", want.defines()...)
	if err != nil {
		return nil, err
	}
	f, err := m.Function("product")
	if err == nil {
		err = f.AllowShared(want.tile.shared())
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	s.kernels[want] = kernel{m, f}
	return f, nil
}

// Call is a product that is ready to be launched.
type Call struct {
	op       Op
	tile     Tile
	function *driver.Function
	x, w     *driver.TensorMap
	grid     int
}

// Prepare makes a call of op by tiles t.
func (s *Set) Prepare(op Op, t Tile) (*Call, error) {
	if err := op.validate(); err != nil {
		return nil, err
	}
	if err := t.validate(s.c.Info()); err != nil {
		return nil, err
	}
	f, err := s.load(op.key(t))
	if err != nil {
		return nil, err
	}
	c := &Call{op: op, tile: t, function: f, grid: s.c.Info().Processors / t.cluster() * t.cluster()}
	if c.x, err = op.tensorMap(op.X, op.Most, t.xBox()); err != nil {
		return nil, err
	}
	c.w, err = op.tensorMap(op.W, op.N, t.wBox())
	return c, err
}

// tensorMap describes rows of K values, of which a copy brings a line of each of box rows.
func (o *Op) tensorMap(base driver.Ptr, rows, box int) (*driver.TensorMap, error) {
	t := driver.Tiled{Type: driver.BF16, Base: base, Dims: []int{o.K, rows}, Strides: []int{2 * o.K},
		Box: []int{o.depth(), box}, Swizzle: driver.Swizzle128, Promote: 256}
	if o.FP8 {
		t.Type, t.Strides[0] = driver.U8, o.K
	}
	return t.Encode()
}

// Launch puts the product into the stream; overlap as in driver.Launch: W is read before the kernel ahead
// has finished, all else afterwards. args is overwritten.
func (c *Call) Launch(s *driver.Stream, args *driver.Args, overlap bool) error {
	o := &c.op
	args.Reset().Map(c.x).Map(c.w).Ptr(o.Out).Ptr(o.Bias).Ptr(o.Rows).Int(o.Most).Int(o.N).Int(o.K).Int(o.Stride).
		Ptr(o.RowScale).Ptr(o.ColScale)
	return c.function.Launch(s, driver.Launch{Grid: [3]int{c.grid}, Block: [3]int{threads}, Shared: c.tile.shared(),
		Cluster: c.tile.cluster(), Overlap: overlap}, args)
}

// Resources says what the compiler gave the call's kernel.
func (c *Call) Resources() (driver.Resources, error) { return c.function.Resources() }

// PackGateUp returns the rows of gate and up, each of rowBytes bytes, alternately: the W of form GateUp.
func PackGateUp(gate, up []byte, rowBytes int) ([]byte, error) {
	if rowBytes <= 0 || len(gate) != len(up) || len(gate)%rowBytes != 0 {
		return nil, fmt.Errorf("product: pack gate of %d and up of %d bytes in rows of %d", len(gate), len(up), rowBytes)
	}
	out := make([]byte, 0, len(gate)+len(up))
	for i := 0; i < len(gate); i += rowBytes {
		out = append(append(out, gate[i:i+rowBytes]...), up[i:i+rowBytes]...)
	}
	return out, nil
}

// PackBias returns the values of gate and up alternately: the bias of form GateUp.
func PackBias(gate, up []float32) ([]float32, error) {
	if len(gate) != len(up) {
		return nil, fmt.Errorf("product: pack biases of %d and %d values", len(gate), len(up))
	}
	out := make([]float32, 0, 2*len(gate))
	for i, g := range gate {
		out = append(out, g, up[i])
	}
	return slices.Clip(out), nil
}
