package gemm

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
	"grebe/compute/cpu/internal/team"
	"grebe/internal/offheap"
)

// Weights is a matrix [out][in] packed in panels of 32 columns of the product (rows of the matrix),
// padded with zeros to pairs of panels and steps of 32 k.
//
// Bf16: per step two tiles of 16 columns, each [16 pairs of k][16 columns][2], on every level.
// Float32: [k][32 columns]. Int8: steps of 64 k, two tiles of 16 columns, each [fours of k][16 columns][4], or by pairs
// of k where a level wants them so. Gated weights alternate panels of gate and up.
type Weights struct {
	format  compute.DType
	n, k    int
	panels  int
	steps   int
	gated   bool
	kernels *kernels
	block   *offheap.Block
	scales  []float32 // of int8: one per column of each panel
}

// Pack packs the rows of parts, one after the other, as format dt (BF16, F32 or INT8) for level. The
// owner MUST Free the weights.
func Pack(tm *team.Team, level feature.Level, dt compute.DType, parts ...compute.Tensor) (*Weights, error) {
	w := &Weights{format: dt}
	for i := range parts {
		w.n += parts[i].Rows
	}
	w.panels = 2 * ((w.n + 2*panelCols - 1) / (2 * panelCols))
	source := func(panel int, rows *[panelCols]sourceRow) {
		n := panel * panelCols
		for c := range rows {
			rows[c] = rowOf(parts, n+c)
		}
	}
	return w.pack(tm, level, parts, source)
}

// PackGated packs gate and up, which have the same shape, so that Gated can combine them.
func PackGated(tm *team.Team, level feature.Level, dt compute.DType, gate, up compute.Tensor) (*Weights, error) {
	if gate.Rows != up.Rows {
		return nil, fmt.Errorf("gemm: gate has %d rows and up %d", gate.Rows, up.Rows)
	}
	pair := []compute.Tensor{gate, up}
	w := &Weights{format: dt, n: 2 * gate.Rows, gated: true}
	w.panels = 2 * ((gate.Rows + panelCols - 1) / panelCols)
	source := func(panel int, rows *[panelCols]sourceRow) {
		part := pair[panel%2 : panel%2+1]
		n := panel / 2 * panelCols
		for c := range rows {
			rows[c] = rowOf(part, n+c)
		}
	}
	return w.pack(tm, level, pair, source)
}

// Out returns the columns of the product; gate's and up's together for gated weights.
func (w *Weights) Out() int { return w.n }

// In returns the depth.
func (w *Weights) In() int { return w.k }

// Bytes returns the memory that the weights hold.
func (w *Weights) Bytes() int64 { return int64(len(w.block.Bytes) + 4*len(w.scales)) }

// Free releases the memory.
func (w *Weights) Free() { w.block.Free() }

func (w *Weights) stepBytes() int { return panelCols * w.kernels.form.depth() * w.format.Size() }

// at returns the address of a step of a panel.
func (w *Weights) at(panel, step int) unsafe.Pointer {
	return unsafe.Pointer(&w.block.Bytes[(panel*w.steps+step)*w.stepBytes()])
}

// pair returns the addresses of a step of two panels.
func (w *Weights) pair(pair, step int) [2]unsafe.Pointer {
	return [2]unsafe.Pointer{w.at(2*pair, step), w.at(2*pair+1, step)}
}

func (w *Weights) pack(tm *team.Team, level feature.Level, parts []compute.Tensor,
	source func(int, *[panelCols]sourceRow)) (*Weights, error) {
	if w.format != compute.BF16 && w.format != compute.F32 && w.format != compute.INT8 {
		return nil, fmt.Errorf("gemm: pack weights as %v: want bf16, f32 or int8", w.format)
	}
	for i := range parts {
		t := &parts[i]
		if i == 0 {
			w.k = t.Cols
		}
		if t.Cols != w.k {
			return nil, fmt.Errorf("gemm: part %d has %d columns, the first %d", i, t.Cols, w.k)
		}
		if want := t.Rows * t.Cols * t.DType.Size(); len(t.Data) < want {
			return nil, fmt.Errorf("gemm: part %d has %d bytes, want %d", i, len(t.Data), want)
		}
		if t.DType == compute.INT8 && (w.format != compute.INT8 || len(t.Scales) != t.Rows) {
			return nil, fmt.Errorf("gemm: part %d is %v with %d scales for %d rows, packed as %v", i, t.DType,
				len(t.Scales), t.Rows, w.format)
		}
	}
	if w.n == 0 || w.k == 0 {
		return nil, fmt.Errorf("gemm: pack weights %d×%d: nothing to pack", w.n, w.k)
	}
	if w.format == compute.INT8 && w.k > maxInt8Depth {
		return nil, fmt.Errorf("gemm: pack weights of depth %d as int8: sums hold %d products at most", w.k,
			maxInt8Depth)
	}
	w.kernels = kernelsFor(level, w.format)
	depth := w.kernels.form.depth()
	w.steps = (w.k + depth - 1) / depth
	var err error
	if w.block, err = alloc(w.panels * w.steps * w.stepBytes()); err != nil {
		return nil, fmt.Errorf("gemm: pack weights %d×%d: %w", w.n, w.k, err)
	}
	if w.format == compute.INT8 {
		w.scales = make([]float32, w.panels*panelCols)
	}
	job := &team.Job{Do: func(_, panel int) {
		var rows [panelCols]sourceRow
		source(panel, &rows)
		w.packPanel(panel, &rows)
	}}
	tm.Run(w.panels, job)
	return w, nil
}

// sourceRow is a row of a checkpoint's tensor; one without data is all zeros.
type sourceRow struct {
	dtype compute.DType
	data  []byte
	scale float32 // of INT8
}

func rowOf(parts []compute.Tensor, n int) sourceRow {
	for i := range parts {
		t := &parts[i]
		if n < t.Rows {
			size := t.Cols * t.DType.Size()
			r := sourceRow{dtype: t.DType, data: t.Data[n*size : (n+1)*size]}
			if t.DType == compute.INT8 {
				r.scale = t.Scales[n]
			}
			return r
		}
		n -= t.Rows
	}
	return sourceRow{}
}

func (w *Weights) packPanel(panel int, rows *[panelCols]sourceRow) {
	if w.format == compute.INT8 {
		w.packInt8(panel, rows)
		return
	}
	for s := range w.steps {
		dst := w.at(panel, s)
		n := min(stepDepth, w.k-s*stepDepth)
		if w.format == compute.F32 {
			packF32((*[stepDepth][panelCols]float32)(dst), rows, s*stepDepth, n)
		} else {
			packBF16((*[2][16][16]uint32)(dst), rows, s*stepDepth, n)
		}
	}
}

func packF32(dst *[stepDepth][panelCols]float32, rows *[panelCols]sourceRow, at, n int) {
	var v [stepDepth]float32
	for c := range rows {
		if !rows[c].floats(&v, at, n) {
			continue
		}
		for i := range v {
			dst[i][c] = v[i]
		}
	}
}

func packBF16(dst *[2][16][16]uint32, rows *[panelCols]sourceRow, at, n int) {
	var v [stepDepth]float32
	for c := range rows {
		r, tile := &rows[c], &dst[c/16]
		if r.dtype == compute.BF16 && n == stepDepth && r.data != nil {
			src := (*[64]byte)(r.data[2*at:])
			for i := range 16 {
				tile[i][c%16] = binary.LittleEndian.Uint32(src[4*i:])
			}
			continue
		}
		if !r.floats(&v, at, n) {
			continue
		}
		for i := range 16 {
			tile[i][c%16] = uint32(toBF16(v[2*i])) | uint32(toBF16(v[2*i+1]))<<16
		}
	}
}

// floats reads n values from place at and fills the rest with zeros; it reports false for a row of
// zeros, which the memory holds already.
func (r *sourceRow) floats(v *[stepDepth]float32, at, n int) bool {
	if r.data == nil {
		return false
	}
	clear(v[n:])
	src := r.data[at*r.dtype.Size():]
	switch r.dtype {
	case compute.F32:
		for i := range v[:n] {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case compute.BF16:
		for i := range v[:n] {
			v[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	default:
		for i := range v[:n] {
			v[i] = fromF16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	}
	return true
}

// toBF16 rounds to nearest, ties to even; a NaN stays one.
func toBF16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > 0x7f800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// fromF16 converts exactly: a half's exponent and fraction, put in a float's place, lack 2¹¹².
func fromF16(h uint16) float32 {
	sign, rest := uint32(h&0x8000)<<16, uint32(h&0x7fff)<<13
	if rest >= 0x7c00<<13 { // infinite or NaN
		return math.Float32frombits(sign | 0x7f800000 | rest&0x7fffff)
	}
	return math.Float32frombits(sign | math.Float32bits(math.Float32frombits(rest)*0x1p112))
}
