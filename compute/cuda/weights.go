package cuda

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cuda/driver"
)

// padded rounds the columns of a matrix up, so that every row begins at a multiple of 32 bytes.
func padded(n int) int { return (n + 15) &^ 15 }

// linear is a matrix [padded(out)][padded(in)]. Rows of a gated one alternate: gate's, up's.
type linear struct {
	dt         compute.DType
	out, in    int
	rows, cols int // padded
	gated      bool
	data       driver.Ptr
	scales     driver.Ptr // of the rows of FP8
}

func (l *linear) Out() int { return l.out }
func (l *linear) In() int  { return l.in }
func (l *linear) Bytes() int64 {
	n := int64(l.rows) * int64(l.cols) * int64(l.dt.Size())
	if l.dt == compute.FP8 {
		n += 4 * int64(l.rows)
	}
	return n
}

// vector has padded(len) values.
type vector struct {
	n    int
	data driver.Ptr
}

func (v *vector) Len() int { return v.n }

// table is a matrix [rows][padded(cols)] in the checkpoint's own format.
type table struct {
	dt         compute.DType
	rows, cols int
	stride     int
	data       driver.Ptr
}

func (t *table) Rows() int    { return t.rows }
func (t *table) Cols() int    { return t.cols }
func (t *table) Bytes() int64 { return int64(t.rows) * int64(t.stride) * int64(t.dt.Size()) }

// check refuses tensors that are not matrices of the size they say, or not for products in dt.
func check(dt compute.DType, parts ...compute.Tensor) error {
	if len(parts) == 0 {
		return errors.New("cuda: no tensors")
	}
	for i := range parts {
		t := &parts[i]
		known := t.DType <= compute.F16 || t.DType == compute.FP8 && dt == compute.FP8
		if !known || t.Rows < 1 || t.Cols < 1 || len(t.Data) != t.Rows*t.Cols*t.DType.Size() {
			return fmt.Errorf("cuda: tensor of %d×%d %s in %d bytes", t.Rows, t.Cols, t.DType, len(t.Data))
		}
		if t.DType == compute.FP8 && len(t.Scales) != t.Rows {
			return fmt.Errorf("cuda: a matrix of fp8 and %d rows with %d scales", t.Rows, len(t.Scales))
		}
		if t.Cols != parts[0].Cols {
			return fmt.Errorf("cuda: tensors of %d and %d columns in one matrix", parts[0].Cols, t.Cols)
		}
	}
	return nil
}

func (d *device) Linear(dt compute.DType, parts ...compute.Tensor) (compute.Linear, error) {
	if err := check(dt, parts...); err != nil {
		return nil, err
	}
	rows := 0
	for i := range parts {
		rows += parts[i].Rows
	}
	l := &linear{dt: dt, out: rows, in: parts[0].Cols, rows: padded(rows), cols: padded(parts[0].Cols)}
	return d.pack(l, func(i int) (*compute.Tensor, int) {
		for p := range parts {
			if i < parts[p].Rows {
				return &parts[p], i
			}
			i -= parts[p].Rows
		}
		return nil, 0
	})
}

func (d *device) GateUp(dt compute.DType, gate, up compute.Tensor) (compute.Linear, error) {
	if err := check(dt, gate, up); err != nil {
		return nil, err
	}
	if gate.Rows != up.Rows {
		return nil, fmt.Errorf("cuda: gate has %d rows, up %d", gate.Rows, up.Rows)
	}
	l := &linear{dt: dt, out: 2 * gate.Rows, in: gate.Cols, rows: 2 * padded(gate.Rows), cols: padded(gate.Cols),
		gated: true}
	return d.pack(l, func(i int) (*compute.Tensor, int) {
		if i >= l.out {
			return nil, 0
		}
		if i%2 == 0 {
			return &gate, i / 2
		}
		return &up, i / 2
	})
}

// pack fills l row by row from what source names; rows without a source are zero.
func (d *device) pack(l *linear, source func(i int) (*compute.Tensor, int)) (compute.Linear, error) {
	if l.dt == compute.FP8 && d.Quantises(l.dt) {
		return d.packFP8(l, source)
	}
	if l.dt != compute.F32 && l.dt != compute.BF16 {
		return nil, fmt.Errorf("cuda: %s cannot compute in %v", d.c.Info().Name, l.dt)
	}
	p, err := d.upload(l.rows, l.cols*l.dt.Size(), func(i int, to []byte) {
		if t, row := source(i); t != nil {
			convertRow(to, l.dt, t, row)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("cuda: weights of %d×%d: %w", l.out, l.in, err)
	}
	l.data = p
	freeWith(d, l, p)
	return l, nil
}

func (d *device) Vector(t compute.Tensor) (compute.Vector, error) {
	if err := check(compute.F32, t); err != nil {
		return nil, err
	}
	if t.Rows != 1 {
		return nil, fmt.Errorf("cuda: vector of %d rows", t.Rows)
	}
	v := &vector{n: t.Cols}
	p, err := d.upload(1, 4*padded(t.Cols), func(_ int, to []byte) { convertRow(to, compute.F32, &t, 0) })
	if err != nil {
		return nil, fmt.Errorf("cuda: vector of %d: %w", t.Cols, err)
	}
	v.data = p
	freeWith(d, v, p)
	return v, nil
}

func (d *device) Table(t compute.Tensor) (compute.Table, error) {
	if err := check(compute.F32, t); err != nil {
		return nil, err
	}
	tab := &table{dt: t.DType, rows: t.Rows, cols: t.Cols, stride: padded(t.Cols)}
	size := t.Cols * t.DType.Size()
	p, err := d.upload(t.Rows, tab.stride*t.DType.Size(), func(i int, to []byte) { copy(to, t.Data[i*size:(i+1)*size]) })
	if err != nil {
		return nil, fmt.Errorf("cuda: table of %d×%d: %w", t.Rows, t.Cols, err)
	}
	tab.data = p
	freeWith(d, tab, p)
	return tab, nil
}

// convertRow writes row i of t to dst in dt, F32 or BF16. The checkpoint may not align its values.
func convertRow(dst []byte, dt compute.DType, t *compute.Tensor, i int) {
	size := t.DType.Size()
	src := t.Data[i*t.Cols*size:][:t.Cols*size]
	if dt == t.DType {
		copy(dst, src)
		return
	}
	for c := range t.Cols {
		v := number(t.DType, src[c*size:])
		if dt == compute.F32 {
			*(*float32)(unsafe.Pointer(&dst[4*c])) = v
		} else {
			*(*uint16)(unsafe.Pointer(&dst[2*c])) = toBF16(v)
		}
	}
}

func number(dt compute.DType, b []byte) float32 {
	switch dt {
	case compute.F32:
		return math.Float32frombits(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
	case compute.BF16:
		return math.Float32frombits(uint32(b[0])<<16 | uint32(b[1])<<24)
	}
	return fromF16(uint16(b[0]) | uint16(b[1])<<8)
}

// toBF16 rounds to nearest, ties to even; a NaN stays one.
func toBF16(v float32) uint16 {
	b := math.Float32bits(v)
	if v != v {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func fromF16(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&1023)
	switch exp {
	case 0:
		v := float32(frac) / (1 << 24)
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 31:
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}
