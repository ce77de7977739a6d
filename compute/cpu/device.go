// Package cpu runs models on the processor: AMX, AVX-512, AVX2 or plain Go, chosen at run time.
//
// Bits: the result of a row depends on its own plan only. The shapes alone decide the order in which products and
// attention sum (see gemm and attend). K and V are rounded to the cache's format before they are used. Threads divide
// rows, columns and heads, never sums.
//
// Lock order: device.mu is held while an operation runs on the team, and is a leaf.
package cpu

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/gemm"
	"grebe/compute/cpu/internal/feature"
	"grebe/compute/cpu/internal/team"
	"grebe/compute/cpu/vec"
)

// Options choose how a device runs. Zero means the default.
type Options struct {
	Threads int    // workers, the caller's goroutine included; all that Go may use
	Level   string // plain, avx2, avx512 or amx; the best that this machine has
}

// device is the processor.
type device struct {
	level feature.Level
	ops   vec.Ops
	mu    sync.Mutex // the team serves one caller at a time
	team  *team.Team
	mul   *gemm.Multiplier
	host  compute.Memory
}

// New starts a device. The caller MUST Close it.
func New(opt Options) (compute.Device, error) {
	level := feature.Best()
	if opt.Level != "" {
		l, err := feature.Parse(opt.Level)
		if err != nil {
			return nil, fmt.Errorf("cpu: %w", err)
		}
		if l > level {
			return nil, fmt.Errorf("cpu: this machine has no %s, its best is %s", l, level)
		}
		level = l
	}
	threads := opt.Threads
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	tm := team.New(threads)
	mul, err := gemm.New(tm)
	if err != nil {
		tm.Close()
		return nil, fmt.Errorf("cpu: %w", err)
	}
	return &device{level: level, ops: vec.For(level), team: tm, mul: mul, host: compute.NewHostMemory()}, nil
}

// BestLevel names the best kernels that this machine can run, for people.
func BestLevel() string { return feature.Best().String() }

func (d *device) Name() string {
	return fmt.Sprintf("cpu (%s, %d threads)", d.level, d.team.Threads())
}

func (d *device) Memory() compute.Memory { return d.host }

func (d *device) Close() error {
	d.team.Close()
	d.mul.Free()
	return nil
}

// linear is a packed matrix. Its memory is freed when nothing refers to it any more.
type linear struct {
	w  *gemm.Weights
	dt compute.DType
}

func newLinear(w *gemm.Weights, dt compute.DType) *linear {
	l := &linear{w, dt}
	runtime.AddCleanup(l, (*gemm.Weights).Free, w)
	return l
}

func (l *linear) Out() int     { return l.w.Out() }
func (l *linear) In() int      { return l.w.In() }
func (l *linear) Bytes() int64 { return l.w.Bytes() }

// Quantises makes the device a compute.Quantiser.
func (d *device) Quantises(dt compute.DType) bool { return dt == compute.INT8 }

// check refuses tensors that are not matrices of the size they say.
func check(parts ...compute.Tensor) error {
	if len(parts) == 0 {
		return errors.New("cpu: no tensors")
	}
	for i := range parts {
		t := &parts[i]
		if t.DType > compute.F16 && t.DType != compute.INT8 || t.Rows < 1 || t.Cols < 1 ||
			len(t.Data) != t.Rows*t.Cols*t.DType.Size() {
			return fmt.Errorf("cpu: tensor of %d×%d %s in %d bytes", t.Rows, t.Cols, t.DType, len(t.Data))
		}
	}
	return nil
}

func (d *device) Linear(dt compute.DType, parts ...compute.Tensor) (compute.Linear, error) {
	if err := check(parts...); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w, err := gemm.Pack(d.team, d.level, dt, parts...)
	if err != nil {
		return nil, fmt.Errorf("cpu: %w", err)
	}
	return newLinear(w, dt), nil
}

func (d *device) GateUp(dt compute.DType, gate, up compute.Tensor) (compute.Linear, error) {
	if err := check(gate, up); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w, err := gemm.PackGated(d.team, d.level, dt, gate, up)
	if err != nil {
		return nil, fmt.Errorf("cpu: %w", err)
	}
	return newLinear(w, dt), nil
}

// vector is a bias or a norm's gain.
type vector []float32

func (v vector) Len() int { return len(v) }

func (d *device) Vector(t compute.Tensor) (compute.Vector, error) {
	if err := check(t); err != nil {
		return nil, err
	}
	if t.Rows != 1 || t.DType == compute.INT8 {
		return nil, fmt.Errorf("cpu: vector of %d rows of %v", t.Rows, t.DType)
	}
	v := make(vector, t.Cols)
	t.Data = append(make([]byte, 0, len(t.Data)), t.Data...) // aligned
	d.row(v, t, 0)
	return v, nil
}

// table is a matrix read row by row: from where the checkpoint is mapped, or from a copy when the
// file does not align it.
type table struct {
	t    compute.Tensor
	copy int64
}

func (t *table) Rows() int    { return t.t.Rows }
func (t *table) Cols() int    { return t.t.Cols }
func (t *table) Bytes() int64 { return t.copy }

func (d *device) Table(t compute.Tensor) (compute.Table, error) {
	if err := check(t); err != nil {
		return nil, err
	}
	if t.DType == compute.INT8 {
		return nil, errors.New("cpu: table of int8")
	}
	if uintptr(unsafe.Pointer(&t.Data[0]))%uintptr(t.DType.Size()) == 0 {
		return &table{t: t}, nil
	}
	t.Data = append(make([]byte, 0, len(t.Data)), t.Data...)
	return &table{t: t, copy: int64(len(t.Data))}, nil
}

// row converts row i of t to float32.
func (d *device) row(dst []float32, t compute.Tensor, i int) {
	b := t.Data[i*t.Cols*t.DType.Size():][:t.Cols*t.DType.Size()]
	switch t.DType {
	case compute.F32:
		copy(dst, view[float32](b))
	case compute.BF16:
		d.ops.FromBF16(dst, view[uint16](b))
	case compute.F16:
		d.ops.FromF16(dst, view[uint16](b))
	}
}

// dot multiplies x with row i of t.
func (d *device) dot(x []float32, t compute.Tensor, i int) float32 {
	b := t.Data[i*t.Cols*t.DType.Size():][:t.Cols*t.DType.Size()]
	switch t.DType {
	case compute.BF16:
		return d.ops.DotBF16(x, view[uint16](b))
	case compute.F16:
		return d.ops.DotF16(x, view[uint16](b))
	}
	return d.ops.Dot(x, view[float32](b))
}

// view reads bytes, aligned by their owner, as values.
func view[T float32 | uint16](b []byte) []T {
	var v T
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(v)))
}
